"""One job of the model in job_model.py, and its deliveries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deferd.contract.model import DeadReason, JobState

DEAD_RETENTION_S = 100

Policy = dict[str, Any]
"""ttr, max_attempts, backoff, ttl, retain, dead_retain, time_limit, deadline, on_end, tags, group, priority and
unique_for of puts.
"""
Flow = tuple[int, str]
"""A priority, and a group, '' for none."""
PLAIN: Flow = (0, "")
SERVICE_DEFAULTS: Policy = {
    "ttr": 60,
    "max_attempts": None,
    "backoff": {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0},
    "ttl": None,
    "retain": 0,
    "dead_retain": DEAD_RETENTION_S,
    "time_limit": None,
    "deadline": None,
    "on_end": None,
    "tags": [],
    "group": None,
    "priority": 0,
    "unique_for": None,
}
SOME_TEXT = "some text"
"""Stands for any `last_error` that the service writes."""


class ReadyPosition(NamedTuple):
    """A position in the Ready list, after all of an earlier turn. Within a turn, jobs that became ready for the same
    reason are ordered by key; the order of others is not specified.
    """

    turn: int
    reason: str
    key: int

    def is_before(self, other: ReadyPosition) -> bool:
        if self.turn != other.turn:
            return self.turn < other.turn
        return self.reason == other.reason and self.key < other.key


NO_POSITION = ReadyPosition(0, "", 0)


class End(NamedTuple):
    """The job that an end puts: its id, None for a new one, and its body."""

    id: str | None
    body: dict[str, Any]


@dataclass(eq=False)
class Delivery:
    """One delivery of a job, which a receipt names. `receipt` is the store's, kept for the test."""

    job_id: str
    number: int
    request_id: str | None
    since_s: int = 0
    receipt: Any = None


ANY_DELIVERY = Delivery("", 0, None)
"""Stands for a call without a receipt."""
NO_DELIVERY = Delivery("", -1, None)
"""Stands for a receipt that was never issued."""


@dataclass(eq=False)
class ModelJob:
    """One job. `ended` counts the deliveries that have ended; `live` is the one under way.

    `first_due_s` is the due time from which the deadline counts, if a retry has moved that, and `due_by_s` the latest
    one that further puts may set. `version` grows with every change of the job. The test sets `exact_ms` whenever the
    store reports it: the due time of a delayed job, or the end of the lease or retention of others, to the millisecond.
    Of a collection `body` is the list of its items, to which puts may append while it `is_open`.
    """

    id: str
    body: Any
    policy: Policy
    due_s: int
    first_due_s: int | None = None
    state: JobState = JobState.DELAYED
    ended: int = 0
    snoozes: int = 0
    log: list[tuple[int, int, str, str, str]] = field(default_factory=list)
    live: Delivery | None = None
    consumer: str | None = None
    lease_end_s: int = 0
    latest_lease_end_s: int | None = None
    retention_end_s: int = 0
    position: ReadyPosition = NO_POSITION
    last_error: str | None = None
    reason: DeadReason | None = None
    finished_by: Delivery | None = None
    took_place_of: Delivery | None = None
    """The delivery whose finish put this job in the place of the one that it finished."""
    finished_at_s: int | None = None
    result: Any = None
    version: int = 0
    exact_ms: int = 0
    created_s: int = 0
    due_by_s: int | None = None
    is_collection: bool = False
    is_open: bool = False
    follow_up: ModelJob | None = None

    @property
    def group(self) -> str:
        return self.policy["group"] or ""

    @property
    def priority(self) -> int:
        return int(self.policy["priority"])

    @property
    def flow(self) -> Flow:
        return self.priority, self.group

    @property
    def items(self) -> int:
        return len(self.body) if self.is_collection else 0

    @property
    def was_delivered(self) -> bool:
        return self.ended > 0 or self.snoozes > 0

    @property
    def may_collect(self) -> bool:
        """Whether a put may append to this job itself."""
        if self.state not in (JobState.DELAYED, JobState.READY) or self.follow_up is not None:
            return False
        return self.is_open or not (self.was_delivered or self.is_collection)

    def was_finished_by(self, delivery: Delivery) -> bool:
        """Whether a finish of the delivery repeats one: it finished this job, or the one in whose place this is."""
        is_over = self.state is JobState.FINISHED and self.finished_by is delivery
        return is_over or self.took_place_of is delivery

    @property
    def attempts(self) -> int:
        return self.ended + (self.live is not None)

    @property
    def deadline_s(self) -> int | None:
        if self.policy["deadline"] is None:
            return None
        return int((self.due_s if self.first_due_s is None else self.first_due_s) + self.policy["deadline"])

    @property
    def end_of_waiting(self) -> tuple[int, DeadReason] | None:
        """When the job becomes dead if it goes on waiting, and why."""
        if self.state not in (JobState.DELAYED, JobState.READY):
            return None
        ends = []
        if self.policy["ttl"] is not None and self.ended == 0 and self.snoozes == 0:
            ends.append((self.due_s + self.policy["ttl"], 0, DeadReason.EXPIRED))
        if self.deadline_s is not None:
            ends.append((self.deadline_s, 1, DeadReason.DEADLINE))
        if not ends:
            return None
        at_s, _, reason = min(ends)
        return at_s, reason

    @property
    def watched_s(self) -> int | None:
        """What the expiry set holds."""
        if self.state is JobState.RESERVED:
            return self.latest_lease_end_s
        return None if self.end_of_waiting is None else self.end_of_waiting[0]


def backoff_s(backoff: dict[str, Any], attempts: int) -> int | None:
    """The wait after so many attempts; None: the schedule has ended."""
    if backoff["kind"] == "exponential":
        return int(min(backoff["cap"], backoff["base"] ** attempts))
    if backoff["kind"] == "fixed":
        return int(backoff["seconds"])
    waits = backoff["seconds"]
    if attempts > len(waits) and backoff["then"] == "dead":
        return None
    return int(waits[min(attempts, len(waits)) - 1])
