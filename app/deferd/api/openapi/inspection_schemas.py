"""The schemas of the responses of `deferd.api.routes.inspection`, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from deferd.contract.endings import AttemptEnd
from deferd.contract.model import DeadReason, JobState
from deferd.contract.windows import WindowSpec

ReasonCode = Literal[
    "not_due",
    "backoff",
    "window",
    "paused",
    "no_consumers",
    "behind",
    "leased",
    "dead",
    "finished",
    "cancelled",
    "unknown_job",
]


class WhyReason(BaseModel):
    """One reason why a job has not run. It has the facts of its `code`; others are omitted."""

    code: ReasonCode = Field(description="The kind of reason, for programs. Later versions may add kinds.")
    text: str = Field(description="The reason as a sentence, for people.")
    due_at: datetime | None = Field(None, description="`not_due`, `backoff`: when the job is due.")
    due_in: float | None = Field(
        None,
        description="`not_due`, `backoff`: seconds until then; negative when the timer is about to move it.",
    )
    asked_for: datetime | None = Field(None, description="`window`: when it would be due without window and spread.")
    moved: float | None = Field(None, description="`window`: by how many seconds they moved it.")
    window: WindowSpec | None = Field(None, description="`window`: its opening hours, if it has some.")
    spread: float | None = Field(None, description="`window`: its spread in seconds, if it has one.")
    snoozes: int | None = Field(None, description="`not_due`, `backoff`: how often it was snoozed, if it was.")
    attempt: int | None = Field(
        None, description="`backoff`, `dead`: number of the last attempt. `leased`: number of the one under way."
    )
    max_attempts: int | None = Field(None, description="`backoff`: attempts after which it is dead, if limited.")
    ended_at: datetime | None = Field(None, description="`backoff`: when the last attempt ended.")
    how: AttemptEnd | None = Field(None, description="`backoff`: how the last attempt ended.")
    error: str | None = Field(None, description="`backoff`, `dead`: the last error message, if there is one.")
    since: datetime | None = Field(
        None,
        description="`paused`: since when, omitted for pauses by version 0.1. `no_consumers`: when the last consumer "
        "of the topic was seen, omitted when that is not known.",
    )
    why: str | None = Field(None, description="`paused`: why, if that was said when it was paused.")
    by: str | None = Field(
        None,
        description="`paused`: name of the key that paused the topic, if it was one. `leased`: name of the consumer, "
        "if it gave one. `backoff`: the consumer of the last attempt, if it gave a name.",
    )
    jobs_ahead: int | None = Field(None, description="`behind`: ready jobs of the topic that are handed out before it.")
    ready: int | None = Field(None, description="`behind`: ready jobs of the topic.")
    oldest_age: float | None = Field(
        None, description="`behind`: seconds since the first job of the Ready list was due."
    )
    rate: float | None = Field(
        None,
        description="`behind`: jobs of the topic handed out per second, by all processes in the last seconds; omitted "
        "when that is not known.",
    )
    estimated_wait: float | None = Field(
        None, description="`behind`: seconds until it is handed out at this rate; omitted without a rate above 0."
    )
    reserved_until: datetime | None = Field(None, description="`leased`: when the lease ends.")
    lease_left: float | None = Field(None, description="`leased`: seconds until then.")
    touches: int | None = Field(None, description="`leased`: how often the lease was extended.")
    follow_up: bool | None = Field(None, description="`leased`: `true` when a put waits until the job has ended.")
    reason: DeadReason | None = Field(None, description="`dead`: why.")
    dead_at: datetime | None = Field(None, description="`dead`: when it became so, as far as it is known.")
    finished_at: datetime | None = Field(None, description="`finished`: when.")
    kept_until: datetime | None = Field(
        None,
        description="`dead`, `finished`: when its record is removed, or its id is free again. `cancelled`: until when "
        "this is remembered.",
    )
    nearest: list[str] | None = Field(
        None, description="`unknown_job`: up to 5 ids of the topic that are like this one, the most alike first."
    )
    compared: int | None = Field(None, description="`unknown_job`: ids that were compared, at most 2000.")
    jobs: int | None = Field(None, description="`unknown_job`: jobs in the topic.")


class Explanation(BaseModel):
    """Why a job has not run."""

    topic: str
    id: str
    state: JobState | None = Field(description="Its state; `null` when there is no such job.")
    reasons: list[WhyReason] = Field(description="What holds it back now comes first.")


class DeadGroup(BaseModel):
    """Dead jobs of one topic with the same reason and error."""

    topic: str
    reason: str = Field(description="Why they are dead, a `DeadReason`; `unknown` if their records do not say.")
    error: str | None = Field(
        description="The first line of their errors, with `*` for what varies, at most 200 characters; `null` without."
    )
    count: int = Field(description="How many of the jobs that were read.")
    first_at: datetime | None = Field(description="When the first of them died; `null` if that is not known.")
    last_at: datetime | None = Field(description="When the last of them died; `null` if that is not known.")
    samples: list[str] = Field(description="Ids of up to 3 of them.")


class DeadErrors(BaseModel):
    """Dead jobs by error."""

    groups: list[DeadGroup] = Field(description="The largest first.")
    left_out: int = Field(description="How many smaller groups `limit` left out.")
    dead: int = Field(description="Dead jobs of the selected topics, whenever they died.")
    looked_at: int = Field(description="How many of these were read.")
    complete: bool = Field(description="Whether all of them were read; else the counts are those of the jobs read.")
    unreadable_shards: list[int] = Field(
        description="Shards of the store that cannot be reached; the jobs of their topics are missing."
    )


class DueCounts(BaseModel):
    """Delayed jobs by when they are due."""

    delayed: int = Field(description="All delayed jobs: `before`, `after` and `counts` together.")
    before: int = Field(description="Due before the first bucket.")
    after: int = Field(description="Due after the last bucket.")
    counts: list[int] = Field(description="Due in each bucket.")
    handled: float | None = Field(
        description="How many jobs consumers finished in the length of a bucket, on the mean of the last hour; `null` "
        "when that is not known, as for a selection of more than 200 topics."
    )
    scheduled: list[int] = Field(
        description="Runs of schedules in each bucket that are not put yet, so they are no delayed jobs: those after "
        "the next run of each schedule."
    )


class TopicForecast(DueCounts):
    """Delayed jobs of one topic by when they are due."""

    topic: str


class Forecast(DueCounts):
    """Delayed jobs of the selected topics together by when they are due."""

    now: datetime = Field(description="The store's clock when the jobs were counted.")
    from_: datetime = Field(alias="from", description="When the first bucket begins.")
    to: datetime = Field(description="When the last bucket ends.")
    bucket: float = Field(description="Length of a bucket in seconds.")
    topics: list[TopicForecast] = Field(description="The topics with the most jobs due in the buckets come first.")
    left_out: int = Field(description="How many topics with delayed jobs are not shown.")
    complete: bool = Field(
        description="`false`: there are too many topics or runs of schedules, and some are missing from the sums."
    )
    unreadable_shards: list[int] = Field(
        description="Shards of the store that cannot be reached; their topics are missing."
    )


class Consumer(BaseModel):
    """One consumer."""

    name: str | None = Field(description="The `consumer` of its pops; `null` for those that give none.")
    addresses: list[str] = Field(description="Where its pops came from; empty when it only holds jobs.")
    clients: list[str] = Field(description="The User-Agent of its pops, such as `deferd-python/0.2.0`.")
    topics: list[str] = Field(description="Topics and patterns of its pops, and topics of the jobs that it holds.")
    parked: int = Field(description="Its pops that wait for a job now.")
    last_seen_at: datetime | None = Field(
        description="When its last pop was under way; `null` when that is more than a minute ago and it holds jobs."
    )
    held: int | None = Field(description="Jobs that it holds; `null` without a name: that is not known.")
    lease_ends_at: datetime | None = Field(description="When the first of their leases ends; `null` without any.")


class Consumers(BaseModel):
    """Who consumes."""

    consumers: list[Consumer] = Field(description="Those that hold most jobs first.")
    left_out: int = Field(description="How many `limit` left out.")
    nameless_held: int = Field(description="Jobs held by consumers that gave no name.")
    complete: bool = Field(
        description="`false`: consumers or held jobs are missing, because there are too many (1000 held jobs of a "
        "topic, 200 topics with held jobs, 500 consumers of a process), or a shard of the store cannot be reached."
    )
