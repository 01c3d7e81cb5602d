"""The schemas of the responses of `deferd.api.routes.system`, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from deferd.contract.push import CircuitState


class OverviewCounts(BaseModel):
    """Jobs by state."""

    delayed: int
    ready: int
    reserved: int
    dead: int


class OverviewTopic(BaseModel):
    """A topic at a glance."""

    topic: str
    paused: bool
    paused_at: datetime | None = Field(None, description="Since when it is paused, if that is known.")
    paused_by: str | None = Field(None, description="Name of the key that paused it, if it was one.")
    paused_reason: str | None = Field(None, description="Why it is paused, if that was said.")
    circuit: CircuitState | None = Field(
        None, description="The circuit of the target of a pushed topic with jobs; omitted for other topics."
    )
    counts: OverviewCounts
    oldest_ready_at: datetime | None = Field(
        description="When the first job of the Ready list was due; `null` when none is ready."
    )
    next_due_at: datetime | None = Field(description="When the first delayed job is due; `null` when none is delayed.")
    rate: float | None = Field(
        description="Jobs handed out per second in the last seconds; `null` when that is not known."
    )


class Overview(BaseModel):
    """Topics at a glance."""

    now: datetime = Field(description="The store's clock when it was read.")
    topics: list[OverviewTopic]
    matching: int = Field(description="How many topics match `name`; those of this page are some of them.")
    totals: OverviewCounts = Field(description="Jobs by state of all topics that match.")
    complete: bool = Field(
        description="`false`: there are too many topics, or a shard of the store cannot be reached; topics are missing."
    )


class ServerProcess(BaseModel):
    """The process that responded."""

    pid: int
    workers: int = Field(description="How many such processes the service has.")
    started_at: datetime
    python: str = Field(description="Version of Python.")


class StoreFacts(BaseModel):
    """The store. What its server does not report is `null`, and what only one node of a cluster could say."""

    server: str | None = Field(description="Name and version.")
    embedded: bool = Field(description="Whether it is the service's own.")
    up_since: datetime | None
    memory_bytes: int | None
    peak_memory_bytes: int | None
    memory_limit_bytes: int | None = Field(description="`null` also without a limit.")
    clients: int | None = Field(description="Open connections.")
    role: str | None
    replicas: int | None = Field(description="Connected replicas; of a cluster, of the primary with the fewest.")
    durability: Literal["memory", "fsync"] = Field(
        description="What a put gets that asks for no level; of a cluster, what it gets from every primary."
    )
    why_not_fsync: str | None = Field(description="Why that is not `fsync`.")


class ShardFacts(BaseModel):
    """A shard of the store."""

    shard: int
    topics: int
    timer: bool = Field(description="Whether a timer works there.")
    work_due_at: datetime | None = Field(description="When the timer has work next.")


class System(BaseModel):
    """What the service runs on."""

    now: datetime = Field(description="The store's clock.")
    version: str = Field(description="Version of deferd.")
    process: ServerProcess
    store: StoreFacts
    shards: list[ShardFacts]
    unreadable_shards: list[int] = Field(description="Shards of the store that cannot be reached.")
    shard_count: int
    settings: dict[str, Any] = Field(description="The settings in effect, except for secrets and paths.")


class OwnKey(BaseModel):
    """What the key of the request allows."""

    name: str | None = Field(description="`null` for a service without keys.")
    scopes: list[Literal["put", "pop", "cancel", "read", "admin"]]
    topics: list[str] = Field(description="Names and patterns; `*` for all.")
    requests_per_second: float | None = Field(description="Its rate limit in each server process.")
    limits: dict[str, int] = Field(description="Its other limits, by the names of the keys file.")
