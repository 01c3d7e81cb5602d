"""The shapes of the answers, for the OpenAPI document. Nothing is written through them: see `job_json`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from deferd.model import Delivery, Job, JobState, TopicSettings

_BATCH_STATUS = "The HTTP status that the call for this one job would have had."


class Fault(BaseModel):
    """One refused value."""

    field: str = Field(description="Where it stands: `body`, `query` or `path`, then the way to it, with dots.")
    message: str = Field(description="What is wrong with it; it names the bound.")
    value: Any = Field(None, description="The value, when it is small; a long text is cut.")
    pointer: str | None = Field(None, description="Where it stands in the request body, as a JSON Pointer fragment.")


class Problem(BaseModel):
    """An error, as RFC 9457 lays it out. Programs decide by `code`; `title` and `detail` are for people."""

    type: str = Field(description="A URN that names the kind of problem; it ends in `code`.")
    title: str = Field(description="The kind of problem in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened this time.")
    code: str = Field(description="The kind of problem in one word, stable.")
    topic: str | None = Field(None, description="The topic it is about.")
    id: str | None = Field(None, description="The job it is about.")
    errors: list[Fault] | None = Field(None, description="With `validation`: each refused value, at most 100.")
    limit_bytes: int | None = Field(None, description="With `payload_too_large`: the most bytes a body may have.")
    max_jobs: int | None = Field(None, description="With `topic_full`: the most live jobs the topic may hold.")


class PutResult(BaseModel):
    """What became of one job of a batch."""

    topic: str
    id: str
    status: Literal[200, 201, 409, 429, 503] = Field(
        description=f"{_BATCH_STATUS} 201: put. 200: kept or replaced. Else `code` says what hindered it."
    )
    code: str | None = Field(None, description="The error's code, when there is one.")


class PutResults(BaseModel):
    """One result for each job, in the order of the request."""

    results: list[PutResult]


class FinishResult(BaseModel):
    """What became of one job of a batch finish."""

    id: str
    status: Literal[200, 404, 409, 410, 503] = Field(
        description=f"{_BATCH_STATUS} 200: finished. Else `code` says what hindered it."
    )
    code: str | None = Field(None, description="The error's code, when there is one.")


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


class Redriven(BaseModel):
    """How many dead jobs are ready again."""

    redriven: int


class Removed(BaseModel):
    """How many jobs were removed."""

    removed: int


class Health(BaseModel):
    """The service is well."""

    status: Literal["ok"]
