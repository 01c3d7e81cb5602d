"""One job at an instant, in the model of its life: where it is, its options, and what waits for it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from tests.faults.history import text_of

CANCELLED_MARK_MS = 60_000
"""How long after its lease the holder of a cancelled job gets "cancelled"; later it may get "not found"."""
DEAD_RETENTION_MS = 3_000
"""How long the services of a run keep a dead job."""


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
    unique_for_ms: int = 0
    on_end: str = ""

    @property
    def unseen_lease_ms(self) -> int:
        """How long a delivery lasts whose consumer is not heard of."""
        return min(self.ttr_ms, self.time_limit_ms or self.ttr_ms)


class End(NamedTuple):
    """A job that an end has put, and that nobody has taken yet: what it says of the one that ended.

    One that `may_be` was not put if an earlier one with its id was there still.
    """

    outcome: str
    content: str
    result: str = ""
    may_be: bool = False


class Ends(NamedTuple):
    """What the ends of jobs with one id have put: those `left`, and of which outcomes one was `named`."""

    left: tuple[End, ...] = ()
    named: frozenset[str] = frozenset()


class Life(NamedTuple):
    """One job at an instant.

    `since_ms` is when it is due while it waits, when its lease ends while it is held, and when its retention ends while
    it is dead or finished: at the earliest, or exactly if `is_sure`. `attempts` are deliveries that have ended.
    `receipt` is that of the live delivery, or of the one that finished the job. `hidden` counts deliveries by pops
    without a response; their receipt is empty. A `snoozed` job was delivered, whatever its attempts.
    `cancelled_marks` are receipts whose holders must get "cancelled", and until when at least; the empty receipt is for
    calls without one, until the id is put again.

    Of a collection `items` are the tags of the puts, and while it `is_open` puts may append to it. `due_by_ms` is the
    latest due time that further puts may set, at the earliest, or exactly if `is_due_by_sure`. The `follow_up` waits
    until this job has ended. `succeeds` is the receipt whose finish put this job in the place of another, and `chained`
    are the name and the receipt of the last finish with puts. Until `taken_until_ms` at least no other job may have the
    id. `ends` are those of the job, and of earlier ones with its id.
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
    items: tuple[str, ...] = ()
    is_open: bool = False
    created_ms: float = 0
    is_created_sure: bool = False
    due_by_ms: float = inf
    is_due_by_sure: bool = False
    follow_up: Life | None = None
    succeeds: str = ""
    chained: tuple[str, str] = ("", "")
    taken_until_ms: float = 0
    ends: Ends = Ends()

    @property
    def content(self) -> str:
        """What a response shows of its body."""
        return text_of(self.items) if self.items else self.terms.tag

    @property
    def was_delivered(self) -> bool:
        """Whether it was handed out to somebody who is known."""
        return self.attempts > 0 or self.snoozed

    @property
    def may_collect(self) -> bool:
        """Whether a put may append to this job itself, while it waits."""
        return not self.was_delivered and self.follow_up is None and (self.is_open or not self.items)

    def ended(self, outcome: str, result: str = "") -> Life:
        """With the job that this end puts."""
        on_end = self.terms.on_end
        if not on_end:
            return self
        left, named = self.ends
        end = End(outcome, self.content, result, on_end == "named" and outcome in named)
        return self._replace(ends=Ends((*left, end), named | {outcome} if on_end == "named" else named))

    def followed(self, at_ms: float) -> Life:
        """The follow-up in the place of this job, which has ended."""
        assert self.follow_up is not None
        due_ms = max(self.follow_up.since_ms, at_ms)
        marks = frozenset((receipt, until_ms) for receipt, until_ms in self.cancelled_marks if receipt)
        return self.follow_up.due_anew(due_ms)._replace(hidden=self.hidden, cancelled_marks=marks, ends=self.ends)

    def gone(self) -> Life:
        """Finished without retention, or cancelled while nobody held it."""
        return Life(hidden=self.hidden, cancelled_marks=self.cancelled_marks, ends=self.ends)

    def finished(self, at_ms: float, result: str) -> Life:
        """Finished, and retained if the put requested it; its follow-up, if there is one."""
        return self.ended("finished", result)._finished(at_ms, result)

    def _finished(self, at_ms: float, result: str) -> Life:
        if self.follow_up is not None:
            return self.followed(at_ms)._replace(succeeds=self.receipt)
        taken_until_ms = at_ms + self.terms.unique_for_ms if self.terms.unique_for_ms else 0
        if not self.terms.retain_ms:
            return self.gone()._replace(taken_until_ms=taken_until_ms)
        until_ms = at_ms + self.terms.retain_ms
        return self._replace(
            place=Place.FINISHED, since_ms=until_ms, is_sure=False, result=result, taken_until_ms=taken_until_ms
        )

    def cancelled(self, at_ms: float) -> Life:
        """Cancelled while it was held: its holder gets "cancelled"."""
        until_ms = max(self.since_ms, at_ms) + CANCELLED_MARK_MS
        marks = self.cancelled_marks | {(self.receipt, until_ms), ("", until_ms)}
        return self.ended("cancelled").gone()._replace(cancelled_marks=marks)

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
        """Dead since `at_ms`, and gone if it is not kept; its follow-up, if there is one."""
        return self.ended("dead")._dead(at_ms)

    def _dead(self, at_ms: float) -> Life:
        if self.follow_up is not None:
            return self.followed(at_ms)
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
