"""Jobs: put, get, change and cancel them, pop them, and report how their deliveries ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field
from pydantic import TypeAdapter

from deferd.contract.backoff import Backoff, ExponentialBackoff, FixedBackoff, ScheduleBackoff
from deferd.contract.ends import OUTCOMES, OnEnd
from deferd.contract.model import AttemptEnd, DeadReason, JobState
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import UNLISTED, ProblemCode, Response, one_of, shown_as
from deferd.contract.scopes import Scope
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
    reserved_since: Annotated[
        datetime | None, "When the job is read while a consumer holds it: when it was handed out, if known."
    ] = None
    reserved_by: Annotated[str | None, "Name of the consumer that holds the job, if the pop gave one."] = None
    asked_for: Annotated[
        datetime | None, "When the job would be due without its window and spread, if these have moved `due_at`."
    ] = None
    window: Annotated[Any, shown_as(WindowSpec | None), "The opening hours, if the job has any."] = None
    spread: Annotated[float, "The spread in seconds, if the job has one."] = 0.0
    on_end: Annotated[dict[str, Any] | None, shown_as(OnEnd), "The job that its end puts, if there is one."] = None
    traceparent: Annotated[str | None, "W3C trace context of the put, if it had one."] = None
    tags: Annotated[Sequence[str], "The tags, if the job has any."] = ()
    headers_or_none: Annotated[dict[str, str] | None, "The headers, if the job has any."] = field(
        name="headers", default=None
    )
    group: Annotated[str | None, "The group, if the job has one."] = None
    priority: Annotated[int, "The priority, if it is not 0."] = 0
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
    batch: Annotated[str | None, "The batch that the job is part of, if it is."] = None
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
    progress: Annotated[Any, "The last progress that a touch of its consumer reported, in any of its attempts."] = None
    progress_at: Annotated[datetime | None, "When that was reported."] = None
    last_error: Annotated[str | None, "Error message of the last release or bury."] = None
    reason: Annotated[DeadReason | None, "Why the job is dead."] = None
    dead_at: Annotated[datetime | None, "When the job became dead, if known."] = None
    finished_at: Annotated[datetime | None, "When the job was finished."] = None
    finished_by: Annotated[str | None, "Name of the consumer that finished the job, if the pop gave one."] = None
    result: Annotated[Any, "JSON value from the finish."] = None
    outcome: Annotated[
        str | None,
        one_of(*OUTCOMES),
        "With `wait`: how the job has ended. If it is not kept, all else is as it was last seen.",
    ] = None
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
    matching: Annotated[
        int | None,
        "How many jobs match on all pages together, where that is known without looking at each: for delayed jobs with "
        "`due_after` and `due_before` alone.",
    ] = None

    schema_examples = ({"jobs": [_EXAMPLE], "next_cursor": None},)


_STATUS = "The HTTP status that a request for this job alone would get."
_WHY_NOT = "Otherwise `code` says why not."
Code = Annotated[ProblemCode | None, "The code of the error, if any."]


class PutResult(Response, frozen=True, kw_only=True, gc=False):
    """The result for one job of many."""

    topic: str
    id: str
    status: Annotated[
        int,
        one_of(*(200, 201, 404, 409, 413, 422, 429, 503)),
        f"{_STATUS} 201: put. 200: kept, replaced or appended. {_WHY_NOT}",
    ]
    code: Code = None
    durability: Annotated[
        str | None, "With 200 and 201: the level that the job has reached. With 409: the level of the existing job."
    ] = None
    state: Annotated[
        JobState | None,
        "The state of the job that was there, when it was kept or is in the way. A dead or finished "
        "job never runs: put with `conflict_with` `live` to take its place.",
    ] = None
    until: Annotated[
        datetime | None, "With `job_exists` of a dead or finished job: when its retention, or its `unique_for`, ends."
    ] = None
    is_follow_up: Annotated[bool, FOLLOW_UP] = field(name="follow_up", default=False)
    job: Annotated[
        Job | None,
        "With `with_jobs` and status 200 or 201: the stored job. Left out for jobs that existed "
        "already beyond 1 MiB of them.",
    ] = None
    detail: Annotated[str | None, UNLISTED] = None
    """Only clients set it. 413 `payload_too_large`: it names the limit that the job alone exceeds. 503 `no_answer`: a
    response was lost, and the job that had the id is gone, so it is unknown whether this one was put."""


class PutResults(Response, frozen=True, kw_only=True):
    """One result for each job, in the order of the request."""

    results: list[PutResult]

    schema_examples = (
        {
            "results": [
                {"topic": "orders.close", "id": "order-1042", "status": 201, "durability": "fsync"},
                {
                    "topic": "orders.close",
                    "id": "order-1043",
                    "status": 409,
                    "code": "job_exists",
                    "durability": "fsync",
                    "state": "delayed",
                },
            ]
        },
    )


class FinishResult(Response, frozen=True, kw_only=True, gc=False):
    """The result for one job of many."""

    id: str
    status: Annotated[int, one_of(200, 404, 409, 410, 503), f"{_STATUS} 200: finished. {_WHY_NOT}"]
    code: Code = None


class FinishResults(Response, frozen=True, kw_only=True):
    """One result for each job, in the order of the request."""

    results: list[FinishResult]

    schema_examples = (
        {
            "results": [
                {"id": "order-1042", "status": 200},
                {"id": "order-1043", "status": 409, "code": "receipt_stale"},
            ]
        },
    )


class CheckResult(FinishResult, frozen=True, kw_only=True, gc=False):
    """The result for one delivery of many."""

    status: Annotated[int, one_of(200, 404, 409, 410, 503), f"{_STATUS} 200: the consumer holds the job. {_WHY_NOT}"]


class CheckResults(Response, frozen=True, kw_only=True):
    """One result for each delivery, in the order of the request."""

    results: list[CheckResult]

    schema_examples = (
        {
            "results": [
                {"id": "order-1042", "status": 200},
                {"id": "order-1043", "status": 410, "code": "job_cancelled"},
            ]
        },
    )


class ReturnResult(FinishResult, frozen=True, kw_only=True, gc=False):
    """The result for one delivery of many."""

    status: Annotated[int, one_of(200, 404, 409, 410, 503), f"{_STATUS} 200: the job is ready again. {_WHY_NOT}"]


class ReturnResults(Response, frozen=True, kw_only=True):
    """One result for each delivery, in the order of the request."""

    results: list[ReturnResult]

    schema_examples = FinishResults.schema_examples


class CancelResult(Response, frozen=True, kw_only=True, gc=False):
    """The result for one job of many."""

    id: str
    status: Annotated[int, one_of(200, 404, 409, 503), f"{_STATUS} 200: cancelled. {_WHY_NOT}"]
    code: Code = None
    was: Annotated[JobState | None, "With 200: the state it was in."] = None


class CancelResults(Response, frozen=True, kw_only=True):
    """One result for each job, in the order of the request."""

    results: list[CancelResult]

    schema_examples = (
        {
            "results": [
                {"id": "order-1042", "status": 200, "was": "delayed"},
                {"id": "order-1043", "status": 409, "code": "job_reserved"},
            ]
        },
    )


class Finished(Response, frozen=True, kw_only=True):
    """The job is finished."""

    topic: str
    id: str
    state: Literal["finished"]
    put: Annotated[
        list[PutResult] | None,
        "The results of the jobs that were put; missing without any, or when they were put before.",
    ] = None

    schema_examples = ({"topic": "orders.close", "id": "order-1042", "state": "finished"},)


class Cancelled(Response, frozen=True, kw_only=True):
    """The job is cancelled."""

    topic: str
    id: str
    state: Literal["cancelled"]
    was: Annotated[JobState, "The state it was in."]
    durability: Annotated[
        str | None,
        Meta(description="The level that the cancel has reached, if the request asked for one.", examples=["fsync"]),
    ] = None

    schema_examples = ({"topic": "orders.close", "id": "order-1042", "state": "cancelled", "was": "delayed"},)


class Released(Response, frozen=True, kw_only=True):
    """The job was released: it is delayed until `due_at`, or dead because it has no attempts left."""

    state: Annotated[JobState, shown_as(Literal["delayed", "dead"])]
    due_at: Annotated[datetime | None, "When it is due again; only with `delayed`."] = None
    attempts: Annotated[int, "Deliveries so far."]

    schema_examples = (
        {"state": "delayed", "due_at": "2026-11-21T07:27:00.123Z", "attempts": 1},
        {"state": "dead", "attempts": 3},
    )


class Touched(Response, frozen=True, kw_only=True):
    """The lease was extended."""

    reserved_until: Annotated[datetime, "The new end of the lease."]

    schema_examples = ({"reserved_until": "2026-11-21T07:29:58.130Z"},)


class Buried(Response, frozen=True, kw_only=True):
    """The job is dead."""

    state: Literal["dead"]

    schema_examples = ({"state": "dead"},)


PUT_JOB = Operation(
    "put_job",
    "POST",
    "/jobs",
    tag="jobs",
    scope=Scope.PUT,
    summary="Put a job",
    description=(
        "Stores one job. It becomes ready at its due time, `delay` seconds from now or at `run_at`, and is handed "
        "out from then on. Give `delay` or `run_at`, not both; without either the job is ready at once. The topic's "
        "settings supply `ttr`, `max_attempts`, `backoff`, `ttl`, `retain`, `window`, `spread` and `durability` "
        "where the job omits them. After a 201 or 200 the job is stored as durably as `durability` in the response "
        "says. After a 503 it may or may not be stored; repeating the request with the same id is safe. A durability "
        "level that the store cannot provide is refused with 422 `durability_unavailable`. A job without a "
        "`traceparent` takes the value of the `traceparent` header, if that is valid. A `window` moves the due time "
        "to the next opening, a `spread` moves it by a part that depends on the id: `asked_for` is then the due time "
        "without them."
    ),
    response=StoredJob,
    response_description="The job was put.",
    errors=(
        *("job_exists", "job_reserved", "durability_unavailable", "topic_full"),
        *("batch_not_found", "batch_sealed", "different_shard"),
    ),
    status=201,
    repeatable=False,
    command="DEFERD.PUT",
    done="put a job",
)
PUT_JOBS = Operation(
    "put_jobs",
    "POST",
    "/jobs/batch",
    tag="jobs",
    scope=Scope.PUT,
    summary="Put many jobs",
    description=(
        "Puts up to 1000 jobs. All are validated first: if one is invalid, the response is 422 with its index in the "
        "path of the field, and nothing is stored. Then each job is stored or refused on its own. The response has "
        "one result per job, in the order of the request. The jobs may have different levels of `durability`."
    ),
    response=PutResults,
    response_description="The result for each job.",
    errors=("durability_unavailable",),
    repeatable=False,
)
GET_JOB = Operation(
    "get_job",
    "GET",
    "/jobs/{topic}/{id}",
    tag="jobs",
    scope=Scope.READ,
    summary="Get a job",
    description=(
        "Returns the job in its current state; with `bodies=false` without its body and its result.\n\nWith `wait` it "
        "responds when the job has ended, with `outcome`, or after so many seconds, without. A finished job has its "
        "`result` only if it is kept: give it a `retain`. Nothing is left of a job that was cancelled, or finished "
        "without `retain`: the response has it as it was last seen, without a body longer than 16 KiB. If it has ended "
        "before the call began, or if the message of its end was lost, the status is 404. A redrive, or the undo of a "
        "cancel, brings a job back, which then may end again. A put that replaces the job is no end: the call waits "
        "for the new one. When the service stops, it responds at once with the job as it is.\n\nWith "
        "`until=progress` it responds also when a touch reports a `progress`."
    ),
    response=Job,
    response_description="The job.",
    errors=("job_not_found",),
    command="DEFERD.GET",
)
CHANGE_JOB = Operation(
    "change_job",
    "PATCH",
    "/jobs/{topic}/{id}",
    tag="jobs",
    scope=Scope.PUT,
    summary="Reschedule or change a job",
    description=(
        "Changes a delayed or ready job; its id stays the same. Omitted fields keep their values. Give `delay` or "
        "`run_at`, not both; a ready job with a later due time becomes delayed again. A new due time is moved by the "
        "job's `window` and `spread`; new ones of these move a delayed job from the time that was asked for. A dead "
        "or finished job gets 404 `job_not_found`."
    ),
    response=Job,
    response_description="The changed job.",
    errors=("job_not_found", "job_reserved"),
    repeatable=False,
    command="DEFERD.CHANGE",
    done="changed job",
)
CANCEL_JOB = Operation(
    "cancel_job",
    "DELETE",
    "/jobs/{topic}/{id}",
    tag="jobs",
    scope=Scope.CANCEL,
    summary="Cancel a job",
    description=(
        "Cancels a job in any state; it is never handed out afterwards. `was` in the response is the state it "
        "was in: `reserved` means that a consumer already had it. With `durability` the cancel has reached that level "
        "before its response, and so has what a 404 or 409 says. After a 503 the job may or may not be cancelled; "
        "repeating the request is safe."
    ),
    response=Cancelled,
    response_description="The job was cancelled.",
    errors=("job_not_found", "job_reserved", "durability_unavailable"),
    command="DEFERD.CANCEL",
    done="cancelled job",
)
CANCEL_JOBS = Operation(
    "cancel_jobs",
    "POST",
    "/topics/{topic}/cancel",
    tag="jobs",
    scope=Scope.CANCEL,
    summary="Cancel many jobs",
    description="Cancels up to 1000 jobs of one topic. Each has its own result, in the order of the request.",
    response=CancelResults,
    response_description="The result for each job.",
    done="cancelled jobs",
)

_POP_SUMMARY = "Pop ready jobs"

_POP_RESPONSE = "The jobs, each under a lease; an empty list after `wait` seconds without a job. Never cached."

_POP_DESCRIPTION = """
Waits until a job of one of the topics is ready, and returns up to `count` ready jobs. Each comes with a lease of `ttr`
seconds and a `receipt`. Finish, release or bury the job, or touch it to extend the lease; when the lease ends, the job
becomes ready again.

After `wait` seconds without a job the response is an empty list. Several topics have strict priority: a job of a later
topic is handed out only when no earlier topic has one ready. A paused topic hands out no jobs. When the client
disconnects while it waits, no job is lost or held up; jobs of a repeated `request_id` come back when their leases end.

A pattern such as `orders.*` stands for all topics that match and that the key may pop, also those that come into being
while the pop waits; `*` stands for all topics. Topics named in full come first. Those that match a pattern have no
order among each other: they take turns, so that a busy one does not starve the others, and `count` is shared among
those that have jobs. A pop is of at most 1000 topics: with more, the status is 422 and the error says how many match.
"""

POP_JOBS_BY_GET = Operation(
    "pop_jobs_by_get",
    "GET",
    "/topics/{topic}/pop",
    tag="consumers",
    scope=Scope.POP,
    summary=_POP_SUMMARY,
    description=(
        _POP_DESCRIPTION
        + "\nThis GET has an effect and is never cached. Programs should use POST on the same path: an "
        "HTTP library may repeat a GET when its response is lost."
    ),
    response=Deliveries,
    response_description=_POP_RESPONSE,
    errors=("topic_pushed",),
    repeatable=False,
)
POP_JOBS = Operation(
    "pop_jobs",
    "POST",
    "/topics/{topic}/pop",
    tag="consumers",
    scope=Scope.POP,
    summary=_POP_SUMMARY,
    description=(_POP_DESCRIPTION + "\nGET on the same path does the same."),
    response=Deliveries,
    response_description=_POP_RESPONSE,
    errors=("topic_pushed",),
    repeatable=False,
    command="DEFERD.POP",
)

_ENDED = (
    " Without a `receipt` this applies to the current delivery, whichever that is. 409 `receipt_stale`: the delivery "
    "has ended, and another consumer may hold the job. 410 `job_cancelled`: the job was cancelled; stop working on it."
)

FINISH_JOB = Operation(
    "finish_job",
    "POST",
    "/jobs/{topic}/{id}/finish",
    tag="consumers",
    scope=Scope.POP,
    summary="Finish a job",
    description=(
        "The job is done. A job with `retain` is kept that long with its `result`; any other is removed. With `put` "
        "up to 10 other jobs are put in the same step: all of it is done, or nothing. A key needs the scope `put` "
        "for their topics." + _ENDED
    ),
    response=Finished,
    response_description="The job was finished.",
    errors=(
        "job_not_found",
        "receipt_stale",
        "job_exists",
        "job_reserved",
        "job_cancelled",
        "durability_unavailable",
        "different_shard",
        "batch_not_found",
        "batch_sealed",
        "topic_full",
    ),
    repeatable=False,
    command="DEFERD.FINISH",
)
RELEASE_JOB = Operation(
    "release_job",
    "POST",
    "/jobs/{topic}/{id}/release",
    tag="consumers",
    scope=Scope.POP,
    summary="Release a job",
    description=(
        "Ends the delivery without success. The job becomes ready again after `delay` seconds, by default after its "
        "backoff; without attempts left it is dead. With `count: false` the delivery is no attempt: it is one of the "
        "job's `snoozes`, which no `max_attempts` limits." + _ENDED
    ),
    response=Released,
    response_description="The new state of the job.",
    errors=("job_not_found", "receipt_stale", "job_cancelled"),
    repeatable=False,
    command="DEFERD.RELEASE",
)
TOUCH_JOB = Operation(
    "touch_job",
    "POST",
    "/jobs/{topic}/{id}/touch",
    tag="consumers",
    scope=Scope.POP,
    summary="Extend a lease",
    description=(
        "The lease ends `ttr` seconds from now, by default the `ttr` of the job. A `progress` is kept with the job, "
        "for all who look at it or wait for it; a few reports a second are plenty." + _ENDED
    ),
    response=Touched,
    response_description="The lease was extended.",
    errors=("job_not_found", "receipt_stale", "job_cancelled"),
    repeatable=False,
    command="DEFERD.TOUCH",
)
BURY_JOB = Operation(
    "bury_job",
    "POST",
    "/jobs/{topic}/{id}/bury",
    tag="consumers",
    scope=Scope.POP,
    summary="Bury a job",
    description=("The job is dead: it is not handed out again unless it is redriven." + _ENDED),
    response=Buried,
    response_description="The job was buried.",
    errors=("job_not_found", "receipt_stale", "job_cancelled"),
    repeatable=False,
    command="DEFERD.BURY",
)
FINISH_JOBS = Operation(
    "finish_jobs",
    "POST",
    "/topics/{topic}/finish",
    tag="consumers",
    scope=Scope.POP,
    summary="Finish many jobs",
    description=(
        "Finishes up to 1000 jobs of one topic. Each has its own result, in the order of the request. Only "
        "the finish of a single job takes a `put`."
    ),
    response=FinishResults,
    response_description="The result for each job.",
    repeatable=False,
)
CHECK_JOBS = Operation(
    "check_jobs",
    "POST",
    "/topics/{topic}/check",
    tag="consumers",
    scope=Scope.POP,
    summary="Check many deliveries",
    description=(
        "Tells which of up to 1000 deliveries of one topic are over, and why: 410 `job_cancelled`, or 404 or 409 "
        "when nobody holds the job. It changes nothing, extends no lease, and costs the store little, so a consumer "
        "can call it each second for all jobs that it holds. A delivery whose lease has ended and whose job another "
        "consumer has by now counts as held: a touch tells."
    ),
    response=CheckResults,
    response_description="The result for each delivery, in the order of the request.",
)
RETURN_JOBS = Operation(
    "return_jobs",
    "POST",
    "/topics/{topic}/return",
    tag="consumers",
    scope=Scope.POP,
    summary="Return jobs to the queue",
    description=(
        "Returns up to 1000 jobs of one topic to the head of the queue, in their order: they are ready at once, and "
        "their receipts are void. No attempt is counted. With its receipt, a job is as if it had not been popped: for "
        "jobs that a consumer popped and will not begin. Without a receipt, the job is taken from the consumer that "
        "holds it, such as one that hangs: that consumer gets 409 `receipt_stale` at its next request for the job, "
        "and if it is still at work, the job may run twice. Such a return counts as one of the job's `snoozes`."
    ),
    response=ReturnResults,
    response_description="The result for each job, in the order of the request.",
    repeatable=False,
    done="returned jobs",
)
