"""A model of one job's life: which responses each operation may have in a state, and the states that follow.

It is written from the contract (the life of a job), not from the scripts. Instants are ms on the store's clock. Timed
changes (a due job becomes ready, a lease expires, a dead job's retention ends) happen in the model when a response
shows them, and not before they may: until then a job whose lease has expired is both held and waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from tests.faults.history import UNKNOWN, Operation

CANCELLED_MARK_MS = 60_000
"""How long after its lease the holder of a cancelled job gets "cancelled"; later it may get "not found"."""
DEAD_RETENTION_MS = 3_000
"""How long the services of a run keep a dead job."""
MOST_HIDDEN = 8
"""Most unseen deliveries of a job between one known state and a change."""


class Place(Enum):
    """Where a job is. A finished job without `retain`, and a cancelled one, are gone."""

    GONE = auto()
    WAITING = auto()
    HELD = auto()
    DEAD = auto()
    FINISHED = auto()


class Terms(NamedTuple):
    """Options of a put; 0 means no retention for `retain_ms` and `dead_retain_ms`, and no limit for the others."""

    tag: str = ""
    ttr_ms: int = 0
    max_attempts: int = 0
    ttl_ms: int = 0
    retain_ms: int = 0
    dead_retain_ms: int = DEAD_RETENTION_MS
    time_limit_ms: int = 0
    deadline_ms: int = 0


class Life(NamedTuple):
    """One job at an instant.

    `since_ms` is when it is due while it waits, when its lease ends while it is held, and when its retention ends while
    it is dead or finished: at the earliest, or exactly if `is_sure`. `attempts` are deliveries that have ended.
    `receipt` is that of the live delivery, or of the one that finished the job. `hidden` counts deliveries by pops
    without a response; their receipt is empty. A `snoozed` job was delivered, whatever its attempts.
    `cancelled_marks` are receipts whose holders must get "cancelled", and until when at least; the empty receipt is for
    calls without one, until the id is put again.
    """

    place: Place = Place.GONE
    terms: Terms = Terms()
    since_ms: float = 0
    is_sure: bool = False
    attempts: int = 0
    receipt: str = ""
    result: str = ""
    hidden: int = 0
    snoozed: bool = False
    deadline_at_ms: float = inf
    is_deadline_sure: bool = False
    latest_lease_end_ms: float = inf
    cancelled_marks: frozenset[tuple[str, float]] = frozenset()

    def gone(self) -> Life:
        """Finished without retention, or cancelled while nobody held it."""
        return Life(hidden=self.hidden, cancelled_marks=self.cancelled_marks)

    def finished(self, at_ms: float, result: str) -> Life:
        """Finished, and retained if the put requested it."""
        if not self.terms.retain_ms:
            return self.gone()
        until_ms = at_ms + self.terms.retain_ms
        return self._replace(place=Place.FINISHED, since_ms=until_ms, is_sure=False, result=result)

    def cancelled(self, at_ms: float) -> Life:
        """Cancelled while it was held: its holder gets "cancelled"."""
        until_ms = max(self.since_ms, at_ms) + CANCELLED_MARK_MS
        return Life(
            hidden=self.hidden, cancelled_marks=self.cancelled_marks | {(self.receipt, until_ms), ("", until_ms)}
        )

    def waiting(self, due_ms: float, *, is_sure: bool = False) -> Life:
        """Waiting, due at `due_ms`."""
        return self._replace(place=Place.WAITING, since_ms=due_ms, is_sure=is_sure, receipt="")

    def due_anew(self, due_ms: float, *, is_sure: bool = False) -> Life:
        """Waiting, and its deadline counts from this due time."""
        deadline_at_ms = due_ms + self.terms.deadline_ms if self.terms.deadline_ms else inf
        return self.waiting(due_ms, is_sure=is_sure)._replace(deadline_at_ms=deadline_at_ms, is_deadline_sure=is_sure)

    def is_past_deadline(self, at_ms: float | None) -> bool:
        """Whether the deadline had certainly passed at an instant."""
        return self.is_deadline_sure and at_ms is not None and at_ms >= self.deadline_at_ms

    def returned(self, due_ms: float) -> Life:
        """Waiting for the next delivery after one has ended."""
        return self.waiting(due_ms)._replace(attempts=self.attempts + 1)

    def dead(self, at_ms: float) -> Life:
        """Dead since `at_ms`, and gone if it is not kept."""
        if not self.terms.dead_retain_ms:
            return self.gone()
        return self._replace(
            place=Place.DEAD, since_ms=at_ms + self.terms.dead_retain_ms, is_sure=False, receipt="", deadline_at_ms=inf
        )

    @property
    def is_last_attempt(self) -> bool:
        """Whether the current or next delivery is the last."""
        return 0 < self.terms.max_attempts <= self.attempts + 1


Step = tuple[Life, float]
"""The state after an operation, and the earliest instant at which it was executed."""
HiddenFrom = Callable[[int], float]
"""From when on so many pops without a response may have taken the job; infinity: never."""


def after(life: Life, operation: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """The possible steps of an operation executed at `at_ms` or later; none if no instant explains its response.

    With an unknown outcome: the steps if it was executed and changed something.
    """
    match operation.kind:
        case "put":
            steps = _put(life, operation, at_ms, hidden_from)
        case "change":
            steps = _change(life, operation, at_ms, hidden_from)
        case "cancel":
            steps = _cancel(life, operation, at_ms, hidden_from)
        case "deliver":
            steps = _deliver(life, operation, hidden_from)
        case "redrive":
            steps = _redrive(life, operation, at_ms, hidden_from)
        case "look":
            steps = _shown(life, operation, hidden_from) if operation.outcome == "there" else _gone(life, hidden_from)
        case _:
            steps = _holder_call(life, operation, at_ms, hidden_from)
    return [(reached, max(at_ms, from_ms)) for reached, from_ms in steps if from_ms < inf]


# Timed changes that may have happened, and from when on. Those that need not have happened yet are left for later.


def _there(life: Life) -> list[Step]:
    return [] if life.place is Place.GONE else [(life, -inf)]


def _waiting(life: Life) -> list[Step]:
    if life.place is Place.WAITING:
        return [(life, -inf)]
    if life.place is Place.HELD and not life.is_last_attempt:
        return [(life.returned(life.since_ms), life.since_ms)]
    return []


def _dead(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.DEAD:
        return [(life, -inf)]
    if life.place is Place.HELD and life.is_last_attempt:
        return [(life.dead(life.since_ms), life.since_ms)]
    steps: list[Step] = []
    if life.place in {Place.HELD, Place.WAITING} and life.deadline_at_ms < inf:
        ended_ms = max(life.deadline_at_ms, life.since_ms if life.place is Place.HELD else -inf)
        steps.append((life.dead(ended_ms), ended_ms))
    for waiting, _ in _waiting(life):
        if waiting.terms.ttl_ms and not waiting.attempts and not waiting.snoozed:
            expired_ms = waiting.since_ms + waiting.terms.ttl_ms
            steps.append((waiting.dead(expired_ms), expired_ms))
        if waiting.terms.max_attempts:  # unseen deliveries until no attempt was left
            left = waiting.terms.max_attempts - waiting.attempts
            hidden = waiting.hidden + left
            ended_ms = max(waiting.since_ms, hidden_from(hidden)) + left * waiting.terms.ttr_ms
            steps.append((waiting._replace(hidden=hidden).dead(ended_ms), ended_ms))
    return steps


def _returned(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    """Waiting again after unseen deliveries; for operations that change when the job is due."""
    steps = []
    for waiting, _ in _waiting(life):
        for times in range(1, MOST_HIDDEN + 1):
            returned = waiting._replace(attempts=waiting.attempts + times, hidden=waiting.hidden + times)
            if 0 < waiting.terms.max_attempts <= returned.attempts:
                break
            ended_ms = max(waiting.since_ms, hidden_from(returned.hidden)) + times * waiting.terms.ttr_ms
            steps.append((returned.waiting(ended_ms), ended_ms))
    return steps


def _gone(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.GONE:
        return [(life, -inf)]
    ended = [*_dead(life, hidden_from), *_finished(life)]
    return [(was.gone(), max(from_ms, was.since_ms)) for was, from_ms in ended]


def _finished(life: Life) -> list[Step]:
    return [(life, -inf)] if life.place is Place.FINISHED else []


def _held(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.HELD:
        return [(life, -inf)]
    if life.place is Place.WAITING:  # an unseen delivery
        return [(life, max(life.since_ms, hidden_from(life.hidden + 1)))]
    return []


def _held_unseen(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    """Held by an unseen delivery; for operations that end it for good."""
    return [
        (was._replace(hidden=was.hidden + 1), max(from_ms, was.since_ms, hidden_from(was.hidden + 1)))
        for was, from_ms in _waiting(life)
    ]


def _in_state(life: Life, state: str, hidden_from: HiddenFrom) -> list[Step]:
    match state:
        case "delayed":
            return _waiting(life) if life.place is Place.WAITING else []
        case "ready":
            return [(was, max(from_ms, was.since_ms)) for was, from_ms in _waiting(life)]
        case "reserved":
            return _held(life, hidden_from)
        case "dead":
            return _dead(life, hidden_from)
        case "finished":
            return _finished(life)
        case _:  # the response does not show it
            return _there(life)


def _shown(life: Life, response: Operation, hidden_from: HiddenFrom) -> list[Step]:
    """The job that a response shows."""
    return [
        (was, from_ms)
        for was, from_ms in _in_state(life, response.state, hidden_from)
        if response.shown in {"", was.terms.tag} and (response.state != "finished" or response.result == was.result)
    ]


# Operations


def _put(life: Life, put: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    match put.outcome:
        case "exists":
            return _there(life) if not put.on_conflict else []
        case "kept":
            return _shown(life, put, hidden_from) if put.on_conflict == "keep" else []
        case "held":
            return _held(life, hidden_from)
    before = _gone(life, hidden_from)
    if put.on_conflict == "replace":
        before += _waiting(life) + _dead(life, hidden_from) + _finished(life)
    dead_retain_ms = DEAD_RETENTION_MS if put.dead_retain_ms is None else put.dead_retain_ms
    terms = Terms(
        *(put.tag, put.ttr_ms, put.max_attempts, put.ttl_ms, put.retain_ms),
        *(dead_retain_ms, put.time_limit_ms, put.deadline_ms),
    )
    steps = []
    for was, from_ms in before:
        put_ms = max(at_ms, from_ms)
        due_ms = max(put_ms, put.run_at_ms) if put.run_at_ms else put_ms + put.delay_ms
        marks = frozenset((receipt, until_ms) for receipt, until_ms in was.cancelled_marks if receipt)
        new = Life(terms=terms, hidden=was.hidden, cancelled_marks=marks)
        steps.append((new.due_anew(due_ms, is_sure=put.at_ms is not None), put_ms))
    return steps


def _change(life: Life, change: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if change.outcome == "held":
        return _held(life, hidden_from)
    if change.outcome == "not found":
        return [*_gone(life, hidden_from), *_dead(life, hidden_from), *_finished(life)]
    steps = []
    for was, from_ms in [*_waiting(life), *_returned(life, hidden_from)]:
        changed_ms = max(at_ms, from_ms)
        steps.append((was.due_anew(changed_ms + change.delay_ms, is_sure=change.at_ms is not None), changed_ms))
    return steps


def _cancel(life: Life, cancel: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if cancel.outcome == "not found":
        return _gone(life, hidden_from)
    states = ("delayed", "ready", "dead", "finished") if cancel.outcome == UNKNOWN else (cancel.outcome,)
    steps = [
        (was.gone(), from_ms)
        for state in states
        if state != "reserved"
        for was, from_ms in _in_state(life, state, hidden_from)
    ]
    if cancel.outcome in {"reserved", UNKNOWN}:
        held = [(life, -inf)] if life.place is Place.HELD else []
        for was, from_ms in [*held, *_held_unseen(life, hidden_from)]:
            steps.append((was.cancelled(max(at_ms, from_ms)), from_ms))
    return steps


def _deliver(life: Life, delivery: Operation, hidden_from: HiddenFrom) -> list[Step]:
    steps = []
    for was, from_ms in _waiting(life):
        terms = was.terms
        # A delivery by a pop without a response counts as an attempt, and ended with its lease.
        between = delivery.attempt - 1 - was.attempts
        is_too_late = (
            delivery.attempt == 1
            and not was.snoozed
            and terms.ttl_ms
            and was.is_sure
            and delivery.at_ms is not None
            and delivery.at_ms >= was.since_ms + terms.ttl_ms
        )
        is_too_often = 0 < terms.max_attempts < delivery.attempt
        is_too_late = is_too_late or was.is_past_deadline(delivery.at_ms)
        if terms.tag != delivery.tag or between < 0 or is_too_late or is_too_often:
            continue
        hidden = was.hidden + between
        held = was._replace(
            place=Place.HELD,
            since_ms=delivery.lease_end_ms,
            is_sure=True,
            attempts=delivery.attempt - 1,
            receipt=delivery.receipt,
            hidden=hidden,
            latest_lease_end_ms=_latest_lease_end_ms(was, delivery),
        )
        if held.since_ms > held.latest_lease_end_ms:
            continue
        steps.append((held, max(from_ms, hidden_from(hidden), was.since_ms + between * terms.ttr_ms)))
    return steps


def _latest_lease_end_ms(life: Life, delivery: Operation) -> float:
    deadline_ms = life.deadline_at_ms if life.is_deadline_sure else inf
    if not life.terms.time_limit_ms or delivery.at_ms is None:
        return deadline_ms
    return min(deadline_ms, delivery.at_ms + life.terms.time_limit_ms)


def _redrive(life: Life, redrive: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if redrive.outcome == "none":
        return _gone(life, hidden_from) if life.place is Place.DEAD else [(life, -inf)]
    return [
        (was.due_anew(max(at_ms, from_ms))._replace(attempts=0, snoozed=False), from_ms)
        for was, from_ms in _dead(life, hidden_from)
    ]


def _holder_call(life: Life, call: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """Calls of the holder of the receipt; a finish without one ends the live delivery."""
    marked_until_ms = max(
        (until_ms for receipt, until_ms in life.cancelled_marks if receipt == call.receipt), default=0.0
    )
    holds = life.place is Place.HELD and call.receipt in {"", life.receipt}
    is_repeated = call.kind == "finish" and life.place is Place.FINISHED and call.receipt == life.receipt != ""
    match call.outcome:
        case "cancelled":
            return _gone(life, hidden_from) if marked_until_ms else []
        case "not found":
            return [(gone, max(from_ms, marked_until_ms)) for gone, from_ms in _gone(life, hidden_from)]
        case "stale" if holds:
            return [*_waiting(life), *_dead(life, hidden_from)]
        case "stale":
            return [] if is_repeated else _there(life)
    if is_repeated:
        return [(life, -inf)]
    if call.kind == "finish":
        return _finish(life, call, at_ms, hidden_from, holds=holds)
    if not holds:
        return []
    match call.kind:
        case "bury":
            return [(life.dead(at_ms), -inf)]
        case "release" | "snooze":
            return _release(life, call, at_ms)
        case _ if call.lease_end_ms > life.latest_lease_end_ms:
            return []
        case _:
            return [(life._replace(since_ms=call.lease_end_ms), -inf)]


def _release(life: Life, release: Operation, at_ms: float) -> list[Step]:
    """Release or snooze of the delivery that holds the job."""
    steps: list[Step] = []
    if release.outcome != "done" and life.deadline_at_ms < inf:
        steps.append((life.dead(life.deadline_at_ms), life.deadline_at_ms))
    if release.kind == "release" and life.is_last_attempt:
        return steps if release.outcome == "done" else [*steps, (life.dead(at_ms), -inf)]
    if is_dead(release) or life.is_past_deadline(release.at_ms):
        return steps
    if release.kind == "snooze":
        return [*steps, (life.waiting(at_ms + release.delay_ms)._replace(snoozed=True), -inf)]
    return [*steps, (life.returned(at_ms + release.delay_ms), -inf)]


def _finish(life: Life, finish: Operation, at_ms: float, hidden_from: HiddenFrom, *, holds: bool) -> list[Step]:
    holding = [(life, -inf)] if holds else []
    if not finish.receipt:
        holding += _held_unseen(life, hidden_from)
    return [(was.finished(max(at_ms, from_ms), finish.result), from_ms) for was, from_ms in holding]


def is_dead(release: Operation) -> bool:
    """Whether the response to a release shows that the job had no attempt or time left."""
    return release.outcome == "dead"
