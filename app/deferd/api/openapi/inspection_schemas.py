"""The schemas of the responses of `deferd.api.routes.events`, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from deferd.contract.model import JobState

EventKind = Literal[
    "put",
    "changed",
    "ready",
    "popped",
    "released",
    "snoozed",
    "returned",
    "lease_ended",
    "finished",
    "dead",
    "cancelled",
    "redriven",
    "purged",
]


class EventFollowUp(BaseModel):
    """The follow-up that a put has stored or changed."""

    due_at: datetime = Field(description="When it is due at the earliest.")


class Event(BaseModel):
    """Something that happened to a job. It has the facts of its kind; others are omitted."""

    topic: str = Field(description="The topic.")
    id: str | None = Field(None, description="The job. `purged`, which is about several jobs, has none.")
    event: EventKind = Field(description="What happened. Later versions may add kinds.")
    at: datetime = Field(description="When, by the store's clock.")
    number: int = Field(
        description="Its number in the topic, from 1. It begins again when the topic has kept no events for a while."
    )
    state: JobState | None = Field(None, description="The job's state now; omitted when it is gone.")
    due_at: datetime | None = Field(None, description="When the job is due, or was when it became ready.")
    replaced: bool | None = Field(None, description="`put`: it replaced a job with its id.")
    follow_up: EventFollowUp | None = Field(None, description="`changed`: a put has stored it while the job is held.")
    attempt: int | None = Field(None, description="The number of the attempt that began or ended.")
    attempts: int | None = Field(None, description="`snoozed`, `dead`: attempts that have ended.")
    reserved_until: datetime | None = Field(None, description="`popped`: when the lease ends.")
    consumer: str | None = Field(None, description="`popped`, `lease_ended`: the consumer, if it gave a name.")
    error: str | None = Field(
        None, description="`released`, `dead`: the first line of the error, at most 120 bytes, if there is one."
    )
    reason: str | None = Field(
        None,
        description="`dead`: as `reason` of a dead job. `lease_ended`: `lease_ended` or `time_limit`. `cancelled`: "
        "`missed`, `skipped`, `overlapped` or `withdrawn` for a run of a schedule. `purged`: `purge` or `retention`.",
    )
    was: JobState | None = Field(None, description="`cancelled`, `purged`: the state before.")
    count: int | None = Field(None, description="`purged`: how many jobs were deleted.")


class Events(BaseModel):
    """The last events."""

    events: list[Event] = Field(description="The latest first.")
    last_event_id: str = Field(description="`Last-Event-ID` of a stream that goes on behind these events.")
    complete: bool = Field(
        description="`false`: topics are missing, because more than 300 match, or a shard of the store is unreachable."
    )
