"""The schemas of the responses, for the OpenAPI document only. `serialization` writes the responses without them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from deferd.api.openapi.push_schemas import PushTarget
from deferd.api.problem_details import BY_CODE
from deferd.contract.bulk_model import SampleJob
from deferd.contract.model import JobState, TopicSettings
from deferd.engine.consistency.findings import FindingKind

ProblemCode = Annotated[
    str,
    Field(
        description="The kind of error, for programs to decide by. Codes never change.",
        json_schema_extra={"enum": sorted(BY_CODE), "x-name": "ProblemCode"},
    ),
]


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


class Counts(BaseModel):
    """The number of jobs in each state."""

    delayed: int
    ready: int
    reserved: int
    dead: int
    finished: int


class Topic(BaseModel):
    """A topic in its current state."""

    topic: str
    paused: bool = Field(description="Whether the topic is paused: it hands out no jobs.")
    paused_at: datetime | None = Field(
        None, description="Since when it is paused; omitted when that is not known, as for pauses by version 0.1."
    )
    paused_by: str | None = Field(None, description="Name of the key that paused it, if it was one.")
    paused_reason: str | None = Field(None, description="Why it is paused, if that was said.")
    counts: Counts
    follow_ups: int | None = Field(
        None, description="How many puts wait until the job with their id has ended; omitted when there are none."
    )
    collections: int | None = Field(
        None, description="To how many jobs and follow-ups appends add items; omitted when there are none."
    )
    oldest_ready_age: float | None = Field(
        description="Seconds since the first job of the Ready list was due; `null` when none is ready."
    )
    oldest_ready_at: datetime | None = Field(
        description="When the first job of the Ready list was due, which does not change while it waits; `null` when "
        "none is ready."
    )
    next_due_at: datetime | None = Field(description="When the next delayed job is due; `null` when none is delayed.")
    settings: TopicSettings
    push: PushTarget | None = Field(None, description="The target of a pushed topic; omitted for other topics.")


class TopicPage(BaseModel):
    """One page of topics, ordered by name."""

    topics: list[Topic]
    next_cursor: str | None = Field(description="The `cursor` of the next page; `null` on the last page.")
    unavailable: list[str] = Field(
        description="Topics omitted because their shard of the store cannot be reached, as far as this process knows "
        "them."
    )
    unreadable_shards: list[int] = Field(
        description="The shards that cannot be reached; empty when the list is complete. They may hold topics that "
        "`unavailable` does not list."
    )


class _Preview(BaseModel):
    matched: int | None = Field(None, description="Only of a dry run: how many jobs it would be, 0 of others.")
    complete: bool | None = Field(
        None, description="Only of a dry run: `false` when the `limit` was reached and there may be more."
    )
    cutoff: datetime | None = Field(
        None, description="Only of a dry run: only jobs that were there, or dead, by then were counted."
    )
    samples: list[SampleJob] | None = Field(None, description="Only of a dry run: up to ten of the jobs.")


class Redriven(_Preview):
    """The number of dead jobs that are ready again."""

    redriven: int


class Removed(_Preview):
    """The number of removed jobs."""

    removed: int


class FindingSummary(BaseModel):
    """All findings of one kind: what an audit found, or a repair found and repaired."""

    kind: FindingKind
    found: int = Field(description="The number of findings of this kind.")
    meaning: str = Field(description="What it means, for people.")
    repair: str = Field(description="What a repair does about it, for people.")


class FindingExample(BaseModel):
    """One finding."""

    kind: FindingKind
    subject: str = Field(description="The id of a job, the name of a topic, or a key of the store.")
    detail: str = Field(description="What was found, for people.")


class Sums(BaseModel):
    """The outcomes of all jobs that were ever put; `put` is the sum of the others."""

    put: int
    finished: int
    cancelled: int = Field(description="By a cancel, a purge, or a put that replaced them.")
    dropped: int = Field(description="Dead until their retention ended.")
    lost: int = Field(description="Found missing by a repair.")
    dead: int = Field(description="Dead now, including expired jobs.")
    live: int = Field(description="Delayed, ready or reserved now.")


class Audit(BaseModel):
    """What an audit of a topic found, or a repair repaired; `counts` and `sums` are those after it."""

    topic: str
    clean: bool = Field(description="Whether everything was checked and nothing was found.")
    repaired: bool = Field(description="Whether what was found has been repaired.")
    checked: int = Field(description="The number of jobs checked.")
    counts: Counts | None = Field(None, description="Omitted when they could not be read.")
    sums: Sums | None = Field(None, description="Omitted when they could not be read.")
    timer_overdue: float = Field(
        description="How many seconds the timer is late. This is not a finding, but check that a service is running."
    )
    unchecked: str | None = Field(None, description="What could not be checked, and why.")
    findings: list[FindingSummary]
    examples: list[FindingExample] = Field(description="Examples of the findings, at most 100.")


class StoreAudit(BaseModel):
    """What an audit of the whole store found, or a repair repaired."""

    clean: bool = Field(description="Whether nothing was found and no topic is unlisted.")
    repaired: bool = Field(description="Whether what was found has been repaired.")
    unlisted: list[str] = Field(
        description="Topics that have data but are missing from the list of topics, or make it fail. Audit each."
    )
    findings: list[FindingSummary]
    examples: list[FindingExample] = Field(description="Examples of the findings, at most 100.")
    stray_keys: list[str] = Field(
        description="Keys under deferd's prefix that belong to no topic, at most 100. They are harmless."
    )
    stray_count: int = Field(description="The number of such keys.")


class Health(BaseModel):
    """The service is healthy."""

    status: Literal["ok"]
