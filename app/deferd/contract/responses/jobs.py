"""Jobs as responses have them, and the responses that consist of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType, field
from pydantic import TypeAdapter

from deferd.contract.backoff import Backoff, ExponentialBackoff, FixedBackoff, ScheduleBackoff
from deferd.contract.endings import AttemptEnd
from deferd.contract.model import DeadReason, JobState
from deferd.contract.responses.response import UNLISTED, Response, shown_as
from deferd.contract.windows import Window, WindowSpec

_BACKOFF: TypeAdapter[ExponentialBackoff | FixedBackoff | ScheduleBackoff] = TypeAdapter(Backoff)
_BODY = "JSON value from the producer."
_RECEIPT = "Fencing token of this delivery; pass it to finish, release, touch and bury."
FOLLOW_UP = "`true`: a consumer holds the job, and this put waits as its follow-up until it has ended."
_EXAMPLE: dict[str, Any] = {
    "topic": "orders.close",
    "id": "order-1042",
    "state": "delayed",
    "body": {"order": 1042},
    "created_at": "2026-11-21T06:56:58.123Z",
    "due_at": "2026-11-21T07:26:58.123Z",
    "ttr": 60,
    "attempts": 0,
    "max_attempts": None,
    "backoff": {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0},
    "ttl": None,
    "retain": 0,
}


def read_backoff(value: Any) -> ExponentialBackoff | FixedBackoff | ScheduleBackoff:
    """A backoff from its JSON object, with the defaults filled in."""
    return _BACKOFF.validate_python(value)


class BackoffTerms(Response, frozen=True, kw_only=True, gc=False):
    """A backoff of any kind, as `backoff` reads it: in a third of the memory of a dict."""

    kind: str
    base: int | float | None = None
    cap: int | float | None = None
    seconds: float | list[float] | None = None
    then: str | None = None
    jitter: int | float | UnsetType = UNSET
    """EagerJobs shows what was put, which may not have it."""


class EndedAttempt(Response, frozen=True, kw_only=True):
    """An attempt that ended without a finish."""

    grows: ClassVar = True

    attempt: Annotated[int, "Its number, from 1; a redrive begins again at 1."]
    ended_at: Annotated[datetime, "When it ended."]
    how: AttemptEnd
    by: Annotated[str | None, "Name of the consumer, if the pop gave one."] = None
    error: Annotated[str | None, "The first 500 bytes of the error message, if there was one."] = None


class FollowUpJob(Response, frozen=True, kw_only=True):
    """A put that waits until the job with its id has ended."""

    body: Annotated[Any, _BODY]
    created_at: Annotated[datetime, "When it was put."]
    due_at: Annotated[datetime, "When it is due, at the earliest."]


class Job(Response, frozen=True, kw_only=True, eq=False, gc=False):
    """A job as the service returns it. Fields without a value are omitted."""

    # No default is a new list or dict: most jobs would have them for nothing, and there are many jobs.
    grows: ClassVar = True

    topic: Annotated[str, "Topic of the job."]
    id: Annotated[str, "Id, unique within the topic."]
    state: JobState
    body: Annotated[Any, f"{_BODY[:-1]}; left out with `bodies=false`."] = UNSET
    created_at: Annotated[datetime, "When the job was put."]
    due_at: Annotated[datetime, "When the job is, or was, due."]
    attempts: Annotated[int, "Deliveries so far, including the current one."]
    ttr: Annotated[float, "Length of the lease in seconds."]
    max_attempts: Annotated[int | None, "Deliveries after which the job becomes dead. `null`: no limit."]
    backoff_terms: Annotated[BackoffTerms, shown_as(Backoff)] = field(name="backoff")
    ttl: Annotated[
        float | None, "Seconds after `due_at` within which the first delivery must happen. `null`: no limit."
    ]
    retain: Annotated[float, "Seconds for which the finished job is kept. 0: not kept."]
    reserved_until: Annotated[datetime | None, "When the lease ends unless it is extended by a touch."] = None
    reserved_by: Annotated[str | None, "Name of the consumer that holds the job, if the pop gave one."] = None
    asked_for: Annotated[
        datetime | None, "When the job would be due without its window and spread, if these have moved `due_at`."
    ] = None
    window: Annotated[Any, shown_as(WindowSpec | None), "The opening hours, if the job has any."] = None
    spread: Annotated[float, "The spread in seconds, if the job has one."] = 0.0
    traceparent: Annotated[str | None, "W3C trace context of the put, if it had one."] = None
    tags: Annotated[Sequence[str], "The tags, if the job has any."] = ()
    headers_or_none: Annotated[dict[str, str] | None, "The headers, if the job has any."] = field(
        name="headers", default=None
    )
    dead_retain: Annotated[float | None, "Seconds for which the job is kept when it is dead, if it has its own."] = None
    time_limit: Annotated[float | None, "Longest time in seconds that one attempt may run, if there is one."] = None
    deadline: Annotated[
        float | None, "Seconds after being due within which the job must be finished, if it has a deadline."
    ] = None
    deadline_at: Annotated[
        datetime | None, "When the deadline passes: `deadline` seconds after the due time before any retry."
    ] = None
    snoozes: Annotated[int, "Releases with `count: false` so far, which `attempts` does not include."] = 0
    attempts_log: Annotated[
        Sequence[EndedAttempt], "The last 10 attempts that ended without a finish, oldest first, if there were any."
    ] = ()
    unique_for: Annotated[
        float, "Seconds for which the id stays taken after the job is finished, if that was asked for."
    ] = 0.0
    due_by: Annotated[
        datetime | None, "The latest due time to which further puts can move the job, if it has a `max_wait`."
    ] = None
    items: Annotated[
        int,
        "If puts with `append` made the job: how many bodies are collected in its array. The response "
        "to such a put shows only its own in `body`.",
    ] = 0
    is_follow_up: Annotated[bool, UNLISTED] = field(name="follow_up", default=False)
    followed_by: Annotated[
        FollowUpJob | None, "When the job is read alone: its follow-up, which becomes the job when this one has ended."
    ] = None
    last_error: Annotated[str | None, "Error message of the last release or bury."] = None
    reason: Annotated[DeadReason | None, "Why the job is dead."] = None
    dead_at: Annotated[datetime | None, "When the job became dead, if known."] = None
    finished_at: Annotated[datetime | None, "When the job was finished."] = None
    result: Annotated[Any, "JSON value from the finish."] = None
    durability: Annotated[str | None, UNLISTED] = None
    body_bytes: Annotated[int | None, "With `bodies=false`: the length of the body's JSON, which is left out."] = None
    result_bytes: Annotated[int | None, "With `bodies=false`: the length of the result's JSON, if there is one."] = None

    @property
    def backoff(self) -> ExponentialBackoff | FixedBackoff | ScheduleBackoff:
        """How long the job waits after a release."""
        return read_backoff(self.backoff_terms.fields)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; empty for a job without headers."""
        return self.headers_or_none or {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, id={self.id!r}, state={self.state.value!r})"

    schema_examples: ClassVar[Sequence[dict[str, Any]]] = (
        _EXAMPLE,
        {
            **_EXAMPLE,
            "state": "dead",
            "attempts": 3,
            "max_attempts": 3,
            "backoff": {"kind": "schedule", "seconds": [120, 600, 3600], "then": "dead", "jitter": 0},
            "last_error": "the payment service responded with 502",
            "reason": "attempts_exhausted",
            "dead_at": "2026-11-21T08:39:02.415Z",
        },
        {
            **_EXAMPLE,
            "due_at": "2026-11-23T08:00:00.000Z",
            "asked_for": "2026-11-21T07:26:58.123Z",
            "window": Window.schema_examples[0],
        },
    )


class StoredJob(Job, frozen=True, kw_only=True, eq=False, gc=False):
    """A job as its put returns it."""

    body: Annotated[Any, _BODY]
    is_follow_up: Annotated[bool, FOLLOW_UP] = field(name="follow_up", default=False)
    durability: Annotated[
        str,
        Meta(
            description="The level that the job has reached: `memory`, in the memory of the store; `fsync`, on its "
            "disk; `replicated:N`, also in the memory of N replicas.",
            examples=["fsync"],
        ),
    ]

    schema_examples = ({**_EXAMPLE, "durability": "fsync"},)


class Delivery(Job, frozen=True, kw_only=True, eq=False, gc=False):
    """A job that was delivered to a consumer."""

    body: Annotated[Any, _BODY]
    reserved_until: Annotated[datetime, "When the lease ends unless it is extended by a touch."]
    receipt: Annotated[str, _RECEIPT]
    attempt: Annotated[int, "Number of this delivery, from 1."]

    schema_examples = (
        {
            **_EXAMPLE,
            "state": "reserved",
            "attempts": 1,
            "reserved_until": "2026-11-21T07:27:58.130Z",
            "reserved_by": "worker-1",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "receipt": "0f3a9c21b7d4.1",
            "attempt": 1,
        },
    )


class Deliveries(Response, frozen=True, kw_only=True):
    """The popped jobs, each under a lease; empty when none was ready in time."""

    jobs: list[Delivery]

    schema_examples = ({"jobs": [*Delivery.schema_examples]},)


class JobPage(Response, frozen=True, kw_only=True):
    """One page of a topic's jobs."""

    jobs: list[Job]
    next_cursor: Annotated[str | None, "The `cursor` of the next page; `null` on the last page."]
    looked_at: Annotated[int | None, "With a filter: how many jobs were searched for this page."] = None

    schema_examples = ({"jobs": [_EXAMPLE], "next_cursor": None},)
