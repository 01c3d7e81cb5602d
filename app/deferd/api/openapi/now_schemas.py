"""The schemas of the response of `deferd.api.routes.now`, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

AlertCode = Literal[
    "shard_unavailable",
    "timer",
    "durability",
    "no_consumer",
    "late",
    "behind",
    "topic_full",
    "dying",
    "paused",
    "schedules_missed",
    "overload",
]


class Alert(BaseModel):
    """One thing that needs a person. It has the facts of its `code`; others, and unknown ones, are omitted."""

    severity: Literal["critical", "warning"]
    code: AlertCode = Field(description="The kind of alert, for programs. Later versions may add kinds.")
    topic: str | None = Field(None, description="The topic; omitted when it concerns the store.")
    text: str = Field(description="The alert as a sentence, for people.")
    ready: int | None = Field(None, description="`no_consumer`, `behind`, `paused`: ready jobs.")
    oldest_age: float | None = Field(
        None, description="`no_consumer`, `behind`: seconds since the first job of the Ready list was due."
    )
    last_consumer_at: datetime | None = Field(None, description="`no_consumer`: when the last consumer was seen.")
    rate: float | None = Field(None, description="`behind`: jobs handed out per second in the last seconds.")
    estimated_wait: float | None = Field(
        None, description="`behind`: seconds until the last ready job is handed out at this rate."
    )
    reserved: int | None = Field(None, description="`behind`: jobs that consumers hold.")
    dead: int | None = Field(None, description="`dying`: jobs that died within the last hour.")
    top_error: str | None = Field(None, description="`dying`: the most frequent error, as `GET /dead` groups them.")
    top_reason: str | None = Field(None, description="`dying`: why the jobs with that error are dead.")
    top_dead: int | None = Field(None, description="`dying`: how many jobs died with that error.")
    exact: bool | None = Field(
        None, description="`dying`: `false` when there are too many dead jobs to read all: the numbers are estimates."
    )
    since: datetime | None = Field(None, description="`paused`: since when, if that is known.")
    by: str | None = Field(None, description="`paused`: name of the key that paused it, if it was one.")
    overdue: float | None = Field(None, description="`late`, `timer`: for how many seconds the first work is overdue.")
    jobs: int | None = Field(None, description="`late`: delayed jobs that are due. `topic_full`: live jobs.")
    max_jobs: int | None = Field(None, description="`topic_full`: the topic's limit.")
    durability: str | None = Field(None, description="`durability`: the level that the topic asks for.")
    available: str | None = Field(None, description="`durability`: the level that the store gives.")
    why: str | None = Field(
        None, description="`durability`: why it gives no more. `paused`: why, if that was said when it was paused."
    )
    shard: int | None = Field(None, description="`timer`: the shard.")
    running: bool | None = Field(None, description="`timer`: whether a timer works there at all.")
    shards: list[int] | None = Field(None, description="`shard_unavailable`: shards that cannot be reached.")
    schedule: str | None = Field(None, description="`schedules_missed`: name of the schedule.")
    missed: int | None = Field(None, description="`schedules_missed`: its missed runs, in all.")
    last_missed_at: datetime | None = Field(None, description="`schedules_missed`: when a run was last missed.")
    due: int | None = Field(
        None, description="`paused`: delayed jobs that are due. `overload`: jobs due in the next hour."
    )
    handled: int | None = Field(None, description="`overload`: jobs that consumers handle in an hour.")


class Now(BaseModel):
    """What needs a person now."""

    now: datetime = Field(description="The store's clock when it was read.")
    alerts: list[Alert] = Field(description="The most urgent first; empty when all is quiet.")
    left_out: int = Field(description="How many less urgent alerts `limit` left out.")
    next_due_at: datetime | None = Field(description="When the next delayed job is due; `null` when none is.")
    next_due_jobs: int = Field(description="Delayed jobs that are due in the same second as that one.")
    topics_looked_at: int = Field(description="Topics that were read.")
    complete: bool = Field(
        description="`false`: there are too many topics, or a shard of the store cannot be reached; alerts may be "
        "missing."
    )
