"""A model of one job's life: which responses each operation may have in a state, and the states that follow.

It is written from the contract (the life of a job), not from the scripts. Instants are ms on the store's clock. Timed
changes (a due job becomes ready, a lease expires, a dead job's retention ends) happen in the model when a response
shows them, and not before they may: until then a job whose lease has expired is both held and waiting.
"""

from __future__ import annotations

from math import inf

from tests.faults.history import UNKNOWN, Operation
from tests.faults.job_puts import put
from tests.faults.job_state import HiddenFrom, Life, Place, Step
from tests.faults.timed_changes import (
    if_dead,
    if_finished,
    if_followed,
    if_gone,
    if_held,
    if_held_unseen,
    if_in_state,
    if_returned,
    if_shown,
    if_there,
    if_waiting,
)


def after(life: Life, operation: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """The possible steps of an operation executed at `at_ms` or later; none if no instant explains its response.

    With an unknown outcome: the steps if it was executed and changed something.
    """
    starts = [(life, -inf), *if_followed(life, hidden_from)]
    return [
        (reached, max(at_ms, began_ms, from_ms))
        for start, began_ms in starts
        if began_ms < inf
        for reached, from_ms in _steps(start, operation, max(at_ms, began_ms), hidden_from)
        if from_ms < inf
    ]


def _steps(life: Life, operation: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    match operation.kind:
        case "put":
            return put(life, operation, at_ms, hidden_from)
        case "change":
            return _change(life, operation, at_ms, hidden_from)
        case "cancel":
            return _cancel(life, operation, at_ms, hidden_from)
        case "deliver":
            return _deliver(life, operation, hidden_from)
        case "redrive":
            return _redrive(life, operation, at_ms, hidden_from)
        case "end":
            return _end(life, operation, hidden_from)
        case "look":
            there = operation.outcome == "there"
            return if_shown(life, operation, hidden_from) if there else if_gone(life, hidden_from)
        case _:
            return _holder_call(life, operation, at_ms, hidden_from)


def _change(life: Life, change: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if change.outcome == "held":
        return if_held(life, hidden_from)
    if change.outcome == "not found":
        return [*if_gone(life, hidden_from), *if_dead(life, hidden_from), *if_finished(life)]
    steps = []
    for was, from_ms in [*if_waiting(life), *if_returned(life, hidden_from)]:
        changed_ms = max(at_ms, from_ms)
        due_ms = change.due_ms or changed_ms + change.delay_ms
        is_sure = change.due_ms > 0 or change.at_ms is not None
        steps.append((was.due_anew(due_ms, is_sure=is_sure), changed_ms))
    return steps


def _cancel(life: Life, cancel: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if cancel.outcome == "not found":
        return [(gone, max(from_ms, gone.taken_until_ms)) for gone, from_ms in if_gone(life, hidden_from)]
    states = ("delayed", "ready", "dead", "finished") if cancel.outcome == UNKNOWN else (cancel.outcome,)

    def ended(was: Life, state: str) -> Life:
        return was if state in {"dead", "finished"} else was.ended("cancelled")

    def left(was: Life, gone: Life, ended_ms: float) -> Life:
        if not (cancel.keeps_follow_up and was.follow_up is not None):
            return gone
        return was._replace(cancelled_marks=gone.cancelled_marks, ends=gone.ends).followed(ended_ms)

    steps = [
        (left(was, ended(was, state).gone(), max(at_ms, from_ms)), from_ms)
        for state in states
        if state != "reserved"
        for was, from_ms in if_in_state(life, state, hidden_from)
    ]
    if "finished" in states:  # an id that is only taken
        steps += [(gone.gone(), from_ms) for gone, from_ms in if_gone(life, hidden_from) if gone.taken_until_ms]
    if cancel.outcome in {"reserved", UNKNOWN}:
        held = [(life, -inf)] if life.place is Place.HELD else []
        for was, from_ms in [*held, *if_held_unseen(life, hidden_from)]:
            cancelled_ms = max(at_ms, from_ms)
            ended_ms = max(was.since_ms, cancelled_ms)  # the holder may still be at work
            steps.append((left(was, was.cancelled(cancelled_ms), ended_ms), from_ms))
    return steps


def _end(life: Life, end: Operation, hidden_from: HiddenFrom) -> list[Step]:
    """What an end has put was taken; or none is left."""
    if end.outcome == "none":
        return [(life, -inf)] if all(one.may_be for one in life.ends.left) else []
    steps = []
    for was, from_ms in [(life, -inf), *if_dead(life, hidden_from), *if_followed(life, hidden_from)]:
        for one in was.ends.left:
            if (one.outcome, one.content, one.result) == (end.outcome, end.tag, end.result):
                left = list(was.ends.left)
                left.remove(one)
                steps.append((was._replace(ends=was.ends._replace(left=tuple(left))), from_ms))
    return steps


def _deliver(life: Life, delivery: Operation, hidden_from: HiddenFrom) -> list[Step]:
    steps = []
    for was, from_ms in if_waiting(life):
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
        if was.content != delivery.tag or between < 0 or is_too_late or is_too_often:
            continue
        hidden = was.hidden + between
        held = was._replace(
            place=Place.HELD,
            since_ms=delivery.lease_end_ms,
            is_sure=True,
            attempts=delivery.attempt - 1,
            receipt=delivery.receipt,
            hidden=hidden,
            is_open=False,
            latest_lease_end_ms=_latest_lease_end_ms(was, delivery),
        )
        if held.since_ms > held.latest_lease_end_ms:
            continue
        steps.append((held, max(from_ms, hidden_from(hidden), was.since_ms + between * terms.unseen_lease_ms)))
    return steps


def _latest_lease_end_ms(life: Life, delivery: Operation) -> float:
    deadline_ms = life.deadline_at_ms if life.is_deadline_sure else inf
    if not life.terms.time_limit_ms or delivery.at_ms is None:
        return deadline_ms
    return min(deadline_ms, delivery.at_ms + life.terms.time_limit_ms)


def _redrive(life: Life, redrive: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if redrive.outcome == "none":
        return if_gone(life, hidden_from) if life.place is Place.DEAD else [(life, -inf)]
    return [
        (was.due_anew(max(at_ms, from_ms))._replace(attempts=0, snoozed=False), from_ms)
        for was, from_ms in if_dead(life, hidden_from)
    ]


def _holder_call(life: Life, call: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """Calls of the holder of the receipt; a finish without one ends the live delivery."""
    marked_until_ms = max(
        (until_ms for receipt, until_ms in life.cancelled_marks if receipt == call.receipt), default=0.0
    )
    holds = life.place is Place.HELD and call.receipt in {"", life.receipt}
    finished_by = {life.succeeds, life.receipt if life.place is Place.FINISHED else ""} - {""}
    is_repeated = call.kind == "finish" and call.receipt in finished_by
    match call.outcome:
        case "cancelled":
            return if_gone(life, hidden_from) if marked_until_ms else []
        case "not found":
            return [(gone, max(from_ms, marked_until_ms)) for gone, from_ms in if_gone(life, hidden_from)]
        case "stale" if holds:
            return [*if_waiting(life), *if_dead(life, hidden_from)]
        case "stale":
            return [] if is_repeated else if_there(life)
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
        holding += if_held_unseen(life, hidden_from)
    steps = [(was.finished(max(at_ms, from_ms), finish.result), from_ms, was.receipt) for was, from_ms in holding]
    if not finish.chain:
        return [(ended, from_ms) for ended, from_ms, _ in steps]
    return [(ended._replace(chained=(finish.chain, receipt)), from_ms) for ended, from_ms, receipt in steps]


def is_dead(release: Operation) -> bool:
    """Whether the response to a release shows that the job had no attempt or time left."""
    return release.outcome == "dead"
