"""The schemas of the responses, for the OpenAPI document only. `serialization` writes the responses without them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from deferd.api.openapi.job_schemas import Delivery, Job
from deferd.api.problem_details import BY_CODE
from deferd.contract.model import JobState

ProblemCode = Annotated[
    str,
    Field(
        description="The kind of error, for programs to decide by. Codes never change.",
        json_schema_extra={"enum": sorted(BY_CODE), "x-name": "ProblemCode"},
    ),
]
_BATCH_STATUS = "The HTTP status that a request for this job alone would get."


class FieldError(BaseModel):
    """One invalid value."""

    field: str = Field(
        description="Its location: `body`, `query` or `path`, then the names below it, separated by dots."
    )
    message: str = Field(description="What is wrong, with the bound that the value breaks.")
    value: Any = Field(None, description="The value if it is small; a long string is cut.")
    pointer: str | None = Field(None, description="Its location in the request body, as a JSON Pointer fragment.")


class Problem(BaseModel):
    """An error (RFC 9457). Programs should decide by `code`; `title` and `detail` are for people."""

    type: str = Field(description="A URN of the kind of error; it ends in `code`.")
    title: str = Field(description="The kind of error in words.")
    status: int = Field(ge=400, le=599, description="The HTTP status.")
    detail: str = Field(description="What went wrong in this request.")
    code: ProblemCode
    topic: str | None = Field(None, description="The topic concerned.")
    id: str | None = Field(None, description="The job concerned.")
    calendar: str | None = Field(None, description="With `calendar_not_found`: the calendar concerned.")
    task: str | None = Field(None, description="With `task_not_found`: the task concerned.")
    errors: list[FieldError] | None = Field(None, description="With `validation`: the invalid values, at most 100.")
    limit_bytes: int | None = Field(None, description="With `payload_too_large`: the maximum size of a body.")
    max_jobs: int | None = Field(None, description="With `topic_full`: the maximum number of live jobs in the topic.")
    durability: str | None = Field(
        None,
        description="With `durability_unavailable`: the requested level. With `job_exists` and `job_reserved` of a "
        "put: the level that the existing job has reached.",
    )
    available: list[str] | None = Field(None, description="With `durability_unavailable`: the available levels.")
    state: JobState | None = Field(None, description="With `job_exists`: the state of the job that has the id.")
    until: datetime | None = Field(
        None,
        description="With `job_exists` of a dead or finished job: when its retention, or its `unique_for`, ends.",
    )


class StoredJob(Job):
    """A job as its put returns it."""

    body: Any = Field(description="JSON value from the producer.")
    durability: str = Field(
        description="The level that the job has reached: `memory`, in the memory of the store; `fsync`, on its disk; "
        "`replicated:N`, also in the memory of N replicas.",
        examples=["fsync"],
    )
    follow_up: bool | None = Field(
        None, description="`true`: a consumer holds the job, and this put waits as its follow-up until it has ended."
    )


class PutResult(BaseModel):
    """The result for one job of a batch."""

    topic: str
    id: str
    status: Literal[200, 201, 409, 413, 422, 429, 503] = Field(
        description=f"{_BATCH_STATUS} 201: put. 200: kept, replaced or appended. Otherwise `code` says why not."
    )
    code: ProblemCode | None = Field(None, description="The code of the error, if any.")
    durability: str | None = Field(
        None, description="With 200 and 201: the level that the job has reached. With 409: that of the existing job."
    )
    state: JobState | None = Field(
        None,
        description="The state of the job that was there, when it was kept or is in the way. A dead or finished job "
        "never runs: put with `conflict_with` `live` to take its place.",
    )
    until: datetime | None = Field(
        None,
        description="With `job_exists` of a dead or finished job: when its retention, or its `unique_for`, ends.",
    )

    follow_up: bool | None = Field(
        None, description="`true`: a consumer holds the job, and this put waits as its follow-up until it has ended."
    )
    job: Job | None = Field(
        None,
        description="With `with_jobs` and status 200 or 201: the stored job. Left out for jobs that existed already "
        "beyond 1 MiB of them.",
    )


class PutResults(BaseModel):
    """One result for each job, in the order of the request."""

    results: list[PutResult]


class FinishResult(BaseModel):
    """The result for one job of a batch."""

    id: str
    status: Literal[200, 404, 409, 410, 503] = Field(
        description=f"{_BATCH_STATUS} 200: finished. Otherwise `code` says why not."
    )
    code: ProblemCode | None = Field(None, description="The code of the error, if any.")


class FinishResults(BaseModel):
    """One result for each job, in the order of the request."""

    results: list[FinishResult]


class CheckResult(BaseModel):
    """The result for one delivery of a batch."""

    id: str
    status: Literal[200, 404, 409, 410, 503] = Field(
        description=f"{_BATCH_STATUS} 200: the consumer holds the job. Otherwise `code` says why not."
    )
    code: ProblemCode | None = Field(None, description="The code of the error, if any.")


class CheckResults(BaseModel):
    """One result for each delivery, in the order of the request."""

    results: list[CheckResult]


class ReturnResult(BaseModel):
    """The result for one delivery of a batch."""

    id: str
    status: Literal[200, 404, 409, 410, 503] = Field(
        description=f"{_BATCH_STATUS} 200: the job is ready again. Otherwise `code` says why not."
    )
    code: ProblemCode | None = Field(None, description="The code of the error, if any.")


class ReturnResults(BaseModel):
    """One result for each delivery, in the order of the request."""

    results: list[ReturnResult]


class CancelResult(BaseModel):
    """The result for one job of a batch."""

    id: str
    status: Literal[200, 404, 409, 503] = Field(
        description=f"{_BATCH_STATUS} 200: cancelled. Otherwise `code` says why not."
    )
    was: JobState | None = Field(None, description="With 200: the state it was in.")
    code: ProblemCode | None = Field(None, description="The code of the error, if any.")


class CancelResults(BaseModel):
    """One result for each job, in the order of the request."""

    results: list[CancelResult]


class Finished(BaseModel):
    """The job is finished."""

    topic: str
    id: str
    state: Literal["finished"]
    put: list[PutResult] | None = Field(
        None, description="The results of the jobs that were put; missing without any, or when they were put before."
    )


class Cancelled(BaseModel):
    """The job is cancelled."""

    topic: str
    id: str
    state: Literal["cancelled"]
    was: JobState = Field(description="The state it was in.")
    durability: str | None = Field(
        None, description="The level that the cancel has reached, if the request asked for one.", examples=["fsync"]
    )


class Released(BaseModel):
    """The job was released: it is delayed until `due_at`, or dead because it has no attempts left."""

    state: Literal["delayed", "dead"]
    due_at: datetime | None = Field(None, description="When it is due again; only with `delayed`.")
    attempts: int = Field(description="Deliveries so far.")


class Touched(BaseModel):
    """The lease was extended."""

    reserved_until: datetime = Field(description="The new end of the lease.")


class Buried(BaseModel):
    """The job is dead."""

    state: Literal["dead"]


class Deliveries(BaseModel):
    """The popped jobs, each under a lease; empty when none was ready in time."""

    jobs: list[Delivery]


class JobPage(BaseModel):
    """One page of a topic's jobs."""

    jobs: list[Job]
    next_cursor: str | None = Field(description="The `cursor` of the next page; `null` on the last page.")
    looked_at: int | None = Field(None, description="With a filter: how many jobs were searched for this page.")
