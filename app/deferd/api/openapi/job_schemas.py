"""A job as responses show it, described for the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from deferd.contract.backoff import Backoff
from deferd.contract.endings import AttemptEnd
from deferd.contract.model import DeadReason, JobState
from deferd.contract.windows import WindowSpec


class EndedAttempt(BaseModel):
    """An attempt that ended without a finish."""

    model_config = ConfigDict(extra="allow", frozen=True)

    attempt: int = Field(description="Its number, from 1; a redrive begins again at 1.")
    ended_at: datetime = Field(description="When it ended.")
    how: AttemptEnd
    by: str | None = Field(default=None, description="Name of the consumer, if the pop gave one.")
    error: str | None = Field(default=None, description="The first 500 bytes of the error message, if there was one.")


class FollowUpJob(BaseModel):
    """A put that waits until the job with its id has ended."""

    body: Any = Field(description="JSON value from the producer.")
    created_at: datetime = Field(description="When it was put.")
    due_at: datetime = Field(description="When it is due, at the earliest.")


class Job(BaseModel):
    """A job as the service returns it. Fields without a value are omitted."""

    model_config = ConfigDict(extra="allow", frozen=True)

    topic: str = Field(description="Topic of the job.")
    id: str = Field(description="Id, unique within the topic.")
    state: JobState
    body: Any = Field(default=None, description="JSON value from the producer; left out with `bodies=false`.")
    created_at: datetime = Field(description="When the job was put.")
    due_at: datetime = Field(description="When the job is, or was, due.")
    asked_for: datetime | None = Field(
        default=None,
        description="When the job would be due without its window and spread, if these have moved `due_at`.",
    )
    window: WindowSpec | None = Field(default=None, description="The opening hours, if the job has any.")
    spread: float | None = Field(default=None, description="The spread in seconds, if the job has one.")
    ttr: float = Field(description="Length of the lease in seconds.")
    attempts: int = Field(description="Deliveries so far, including the current one.")
    max_attempts: int | None = Field(description="Deliveries after which the job becomes dead. `null`: no limit.")
    backoff: Backoff
    ttl: float | None = Field(
        description="Seconds after `due_at` within which the first delivery must happen. `null`: no limit."
    )
    retain: float = Field(description="Seconds for which the finished job is kept. 0: not kept.")
    dead_retain: float | None = Field(
        default=None, description="Seconds for which the job is kept when it is dead, if it has its own."
    )
    time_limit: float | None = Field(
        default=None, description="Longest time in seconds that one attempt may run, if there is one."
    )
    deadline: float | None = Field(
        default=None, description="Seconds after being due within which the job must be finished, if it has a deadline."
    )
    deadline_at: datetime | None = Field(
        default=None, description="When the deadline passes: `deadline` seconds after the due time before any retry."
    )
    snoozes: int | None = Field(
        default=None, description="Releases with `count: false` so far, which `attempts` does not include."
    )
    attempts_log: list[EndedAttempt] | None = Field(
        default=None, description="The last 10 attempts that ended without a finish, oldest first, if there were any."
    )
    last_error: str | None = Field(default=None, description="Error message of the last release or bury.")
    reason: DeadReason | None = Field(default=None, description="Why the job is dead.")
    dead_at: datetime | None = Field(default=None, description="When the job became dead, as far as it is known.")
    reserved_until: datetime | None = Field(
        default=None, description="When the lease ends unless it is extended by a touch."
    )
    reserved_by: str | None = Field(
        default=None, description="Name of the consumer that holds the job, if the pop gave one."
    )
    finished_at: datetime | None = Field(default=None, description="When the job was finished.")
    traceparent: str | None = Field(default=None, description="W3C trace context of the put, if it had one.")
    tags: list[str] | None = Field(default=None, description="The tags, if the job has any.")
    headers: dict[str, str] | None = Field(default=None, description="The headers, if the job has any.")
    unique_for: float | None = Field(
        default=None,
        description="Seconds for which the id stays taken after the job is finished, if that was asked for.",
    )
    due_by: datetime | None = Field(
        default=None, description="The latest due time to which further puts can move the job, if it has a `max_wait`."
    )
    items: int | None = Field(
        default=None,
        description="If puts with `append` made the job: how many bodies are collected in its array. The response to "
        "such a put shows only its own in `body`.",
    )
    followed_by: FollowUpJob | None = Field(
        default=None,
        description="When the job is read alone: its follow-up, which becomes the job when this one has ended.",
    )
    result: Any = Field(default=None, description="JSON value from the finish.")
    body_bytes: int | None = Field(
        default=None, description="With `bodies=false`: the length of the body's JSON, which is left out."
    )
    result_bytes: int | None = Field(
        default=None, description="With `bodies=false`: the length of the result's JSON, if there is one."
    )


class Delivery(Job):
    """A job that was delivered to a consumer."""

    body: Any = Field(description="JSON value from the producer.")
    receipt: str = Field(description="Fencing token of this delivery; pass it to finish, release, touch and bury.")
    attempt: int = Field(description="Number of this delivery, from 1.")
    reserved_until: datetime = Field(description="When the lease ends unless it is extended by a touch.")
