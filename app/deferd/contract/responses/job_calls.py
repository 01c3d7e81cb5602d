"""What calls on jobs return, except for the jobs themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from deferd.contract.model import JobState
from deferd.contract.responses.jobs import FOLLOW_UP, Job
from deferd.contract.responses.response import UNLISTED, ProblemCode, Response, one_of, shown_as

_STATUS = "The HTTP status that a request for this job alone would get."
_WHY_NOT = "Otherwise `code` says why not."
Code = Annotated[ProblemCode | None, "The code of the error, if any."]


class PutResult(Response, frozen=True, kw_only=True, gc=False):
    """The result for one job of a batch."""

    topic: str
    id: str
    status: Annotated[
        int,
        one_of(*(200, 201, 409, 413, 422, 429, 503)),
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
    """The result for one job of a batch."""

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
    """The result for one delivery of a batch."""

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
    """The result for one delivery of a batch."""

    status: Annotated[int, one_of(200, 404, 409, 410, 503), f"{_STATUS} 200: the job is ready again. {_WHY_NOT}"]


class ReturnResults(Response, frozen=True, kw_only=True):
    """One result for each delivery, in the order of the request."""

    results: list[ReturnResult]

    schema_examples = FinishResults.schema_examples


class CancelResult(Response, frozen=True, kw_only=True, gc=False):
    """The result for one job of a batch."""

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
