"""The shapes of the answers, for the OpenAPI document. Nothing is written through them: see `job_json`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from deferd.api.problem_details import BY_CODE
from deferd.contract.model import Delivery, Job, JobState, TopicSettings
from deferd.engine.consistency.findings import DamageKind

ProblemCode = Annotated[
    str,
    Field(
        description="The kind of error, by which programs decide. It never changes.",
        json_schema_extra={"enum": sorted(BY_CODE), "x-name": "ProblemCode"},
    ),
]
_BATCH_STATUS = "The HTTP status that the call for this one job would have had."


class FieldError(BaseModel):
    """One refused value."""

    field: str = Field(description="Where it stands: `body`, `query` or `path`, then the way to it, with dots.")
    message: str = Field(description="What is wrong with it; it names the bound.")
    value: Any = Field(None, description="The value, when it is small; a long text is cut.")
    pointer: str | None = Field(None, description="Where it stands in the request body, as a JSON Pointer fragment.")


class Problem(BaseModel):
    """An error, as RFC 9457 lays it out. Programs decide by `code`; `title` and `detail` are for people."""

    type: str = Field(description="A URN that names the kind of problem; it ends in `code`.")
    title: str = Field(description="The kind of problem in words.")
    status: int = Field(ge=400, le=599, description="The HTTP status.")
    detail: str = Field(description="What happened this time.")
    code: ProblemCode
    topic: str | None = Field(None, description="The topic it is about.")
    id: str | None = Field(None, description="The job it is about.")
    errors: list[FieldError] | None = Field(None, description="With `validation`: each refused value, at most 100.")
    limit_bytes: int | None = Field(None, description="With `payload_too_large`: the most bytes a body may have.")
    max_jobs: int | None = Field(None, description="With `topic_full`: the most live jobs the topic may hold.")
    durability: str | None = Field(
        None,
        description="With `durability_unavailable`: the level that was asked for. With `job_exists` and `job_reserved` "
        "of a put: the level that the job has reached which stands in its way.",
    )
    available: list[str] | None = Field(None, description="With `durability_unavailable`: the levels there are.")


class StoredJob(Job):
    """A job as the put of it is answered."""

    durability: str = Field(
        description="What the job has reached: `memory` of the store; `fsync`, its disk; or `replicated:N`, the memory "
        "of N replicas as well.",
        examples=["fsync"],
    )


class PutResult(BaseModel):
    """What became of one job of a batch."""

    topic: str
    id: str
    status: Literal[200, 201, 409, 422, 429, 503] = Field(
        description=f"{_BATCH_STATUS} 201: put. 200: kept or replaced. Else `code` says what hindered it."
    )
    code: ProblemCode | None = Field(None, description="The error's code, when there is one.")
    durability: str | None = Field(
        None, description="With 200 and 201: what the job has reached. With 409: the same of the job that was there."
    )


class PutResults(BaseModel):
    """One result for each job, in the order of the request."""

    results: list[PutResult]


class FinishResult(BaseModel):
    """What became of one job of a batch finish."""

    id: str
    status: Literal[200, 404, 409, 410, 503] = Field(
        description=f"{_BATCH_STATUS} 200: finished. Else `code` says what hindered it."
    )
    code: ProblemCode | None = Field(None, description="The error's code, when there is one.")


class FinishResults(BaseModel):
    """One result for each job, in the order of the request."""

    results: list[FinishResult]


class Finished(BaseModel):
    """The job is finished."""

    topic: str
    id: str
    state: Literal["finished"]


class Cancelled(BaseModel):
    """The job is cancelled."""

    topic: str
    id: str
    state: Literal["cancelled"]
    was: JobState = Field(description="The state it was in.")


class Released(BaseModel):
    """The job was given back: it waits for `due_at`, or it is dead because it has no attempt left."""

    state: Literal["delayed", "dead"]
    due_at: datetime | None = Field(None, description="When it is due again; only with `delayed`.")
    attempts: int = Field(description="Deliveries so far.")


class Touched(BaseModel):
    """The lease was extended."""

    reserved_until: datetime = Field(description="When the lease ends now.")


class Buried(BaseModel):
    """The job is dead."""

    state: Literal["dead"]


class Deliveries(BaseModel):
    """The jobs that were popped, each under a lease; none when nothing was ready in time."""

    jobs: list[Delivery]


class JobPage(BaseModel):
    """One page of a topic's jobs."""

    jobs: list[Job]
    next_cursor: str | None = Field(description="Ask again with this for the next page; `null`: this is the last.")


class Counts(BaseModel):
    """How many jobs are in each state."""

    delayed: int
    ready: int
    reserved: int
    dead: int
    finished: int


class Topic(BaseModel):
    """A topic as it stands."""

    topic: str
    paused: bool = Field(description="Whether handing out is stopped.")
    counts: Counts
    oldest_ready_age: float | None = Field(
        description="Seconds since the job that is first in the Ready list was due; `null`: none is ready."
    )
    next_due_at: datetime | None = Field(description="When the next delayed job is due; `null`: none is delayed.")
    settings: TopicSettings


class TopicPage(BaseModel):
    """One page of topics, in the order of their names."""

    topics: list[Topic]
    next_cursor: str | None = Field(description="Ask again with this for the next page; `null`: this is the last.")
    unavailable: list[str] = Field(
        description="Topics left out because the shard of the store that holds them cannot be reached, as far as this "
        "process knows them."
    )
    unreadable_shards: list[int] = Field(
        description="The numbers of those shards; empty when the list is whole. They may hold topics that "
        "`unavailable` does not name."
    )


class Redriven(BaseModel):
    """How many dead jobs are ready again."""

    redriven: int


class Removed(BaseModel):
    """How many jobs were removed."""

    removed: int


class Damage(BaseModel):
    """One kind of damage that an audit found, or that a repair found and mended."""

    kind: DamageKind
    found: int = Field(description="How often.")
    meaning: str = Field(description="What it means, for people.")
    repair: str = Field(description="What a repair does about it, for people.")


class DamageExample(BaseModel):
    """One damage."""

    kind: DamageKind
    subject: str = Field(description="The job's id; of the topic as a whole its name; or a key of the store.")
    detail: str = Field(description="What was seen, for people.")


class Sums(BaseModel):
    """What became of all jobs that were ever put: `put` is the sum of the others."""

    put: int
    finished: int
    cancelled: int = Field(description="By a cancel, a purge, or a put in their place.")
    dropped: int = Field(description="Dead until their retention ended.")
    lost: int = Field(description="Missing when a repair looked.")
    dead: int = Field(description="Dead now, expired ones among them.")
    live: int = Field(description="Delayed, ready or reserved now.")


class Audit(BaseModel):
    """What an audit of a topic found, or what a repair mended; `counts` and `sums` are as they are after it."""

    topic: str
    clean: bool = Field(description="Whether everything was checked and nothing was found.")
    repaired: bool = Field(description="Whether what was found has been mended.")
    checked: int = Field(description="How many jobs were looked at.")
    counts: Counts | None = Field(None, description="Left out when they could not be read.")
    sums: Sums | None = Field(None, description="Left out when they could not be read.")
    timer_overdue: float = Field(
        description="For how many seconds the timer's first work has waited: no damage, but see that a service runs."
    )
    unchecked: str | None = Field(None, description="What could not be checked, and why.")
    damage: list[Damage]
    examples: list[DamageExample] = Field(description="Of the damage; at most 100.")


class StoreAudit(BaseModel):
    """What is wrong in the store beyond single topics."""

    clean: bool = Field(description="Whether nothing was found and no topic is unlisted.")
    repaired: bool = Field(description="Whether what was found has been mended.")
    unlisted: list[str] = Field(
        description="Topics that hold something and that a list of topics does not show, or fails over: audit each."
    )
    damage: list[Damage]
    examples: list[DamageExample] = Field(description="Of the damage; at most 100.")
    stray_keys: list[str] = Field(
        description="Keys under deferd's prefix that are of no topic: no damage. At most 100."
    )
    stray_count: int = Field(description="How many of them there are.")


class Health(BaseModel):
    """The service is well."""

    status: Literal["ok"]
