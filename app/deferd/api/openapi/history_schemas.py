"""The schemas of the responses of `deferd.api.routes.history`, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

_AT_END = "at the end of each bucket; `null` when that is not known"


class HistoryBuckets(BaseModel):
    """Columns of equal length, with a value for each bucket, the earliest first."""

    at: list[int] = Field(description="When each begins, in seconds since 1970-01-01T00:00:00Z.")
    put: list[int] = Field(description="Jobs put: new ones, also by schedules, and those that replaced another.")
    popped: list[int] = Field(description="Deliveries handed out to consumers.")
    finished: list[int] = Field(description="Jobs finished.")
    released: list[int] = Field(description="Deliveries released for another attempt, without snoozes.")
    dead: list[int] = Field(description="Jobs that became dead, for any reason.")
    cancelled: list[int] = Field(description="Jobs cancelled, one by one or many at once; not those purged.")
    lateness_p50: list[float | None] = Field(
        description="The median of how many seconds after their due time jobs were first handed out; `null` when none "
        "was. This is an estimate from the buckets of the metric `deferd_ready_wait_seconds`; more than an hour counts "
        "as an hour."
    )
    lateness_p99: list[float | None] = Field(description="The same of the 99th percentile.")
    delayed: list[int | None] = Field(description=f"Delayed jobs {_AT_END}.")
    ready: list[int | None] = Field(description=f"Ready jobs {_AT_END}.")
    reserved: list[int | None] = Field(description=f"Reserved jobs {_AT_END}.")
    dead_jobs: list[int | None] = Field(description=f"Dead jobs {_AT_END}.")


class _Buckets(BaseModel):
    bucket: int = Field(description="Length of a bucket in seconds: 10 or 300.")
    from_: datetime = Field(alias="from", description="When the first bucket begins, by the store's clock.")
    to: datetime = Field(
        description="When the last bucket of 10 seconds ended. The last bucket of 5 minutes may be shorter."
    )
    buckets: HistoryBuckets


class TopicHistory(_Buckets):
    """What happened in a topic."""

    topic: str


class History(_Buckets):
    """What happened in all topics together. Numbers of jobs are `null`."""

    complete: bool = Field(description="`false`: some topics are missing, or a shard of the store cannot be reached.")
    unreadable_shards: list[int] = Field(
        description="Shards of the store that cannot be reached; their topics are missing."
    )
