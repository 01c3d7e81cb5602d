"""The responses about what the service runs on, all topics at a glance, and the key of the caller."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_args

from deferd.contract.push import CircuitState
from deferd.contract.responses.response import Response, one_of


class OverviewCounts(Response, frozen=True, kw_only=True):
    """Jobs by state."""

    delayed: int
    ready: int
    reserved: int
    dead: int


class OverviewTopic(Response, frozen=True, kw_only=True):
    """A topic at a glance."""

    topic: str
    paused: bool
    paused_at: Annotated[datetime | None, "Since when it is paused."] = None
    paused_by: Annotated[str | None, "Name of the key that paused it, if it was one."] = None
    paused_reason: Annotated[str | None, "Why it is paused, if that was said."] = None
    circuit: Annotated[
        str | None,
        one_of(*get_args(CircuitState)),
        "The circuit of the target of a pushed topic with jobs; omitted for other topics.",
    ] = None
    counts: OverviewCounts
    oldest_ready_at: Annotated[
        datetime | None, "When the first job of the Ready list was due; `null` when none is ready."
    ]
    next_due_at: Annotated[datetime | None, "When the first delayed job is due; `null` when none is delayed."]
    rate: Annotated[float | None, "Jobs handed out per second in the last seconds; `null` when that is not known."]


class Overview(Response, frozen=True, kw_only=True):
    """Topics at a glance."""

    now: Annotated[datetime, "The store's clock when it was read."]
    topics: list[OverviewTopic]
    matching: Annotated[int, "How many topics match `name`, on all pages together."]
    totals: Annotated[OverviewCounts, "Jobs by state of all topics that match."]
    complete: Annotated[
        bool, "`false`: there are too many topics, or a shard of the store cannot be reached; topics are missing."
    ]

    schema_examples = (
        {
            "now": "2026-11-21T03:12:00.000Z",
            "topics": [
                {
                    "topic": "orders.close",
                    "paused": False,
                    "counts": {"delayed": 120412, "ready": 1204, "reserved": 0, "dead": 3},
                    "oldest_ready_at": "2026-11-21T03:08:00.000Z",
                    "next_due_at": "2026-11-21T03:12:16.000Z",
                    "rate": 0.0,
                }
            ],
            "matching": 1,
            "totals": {"delayed": 120412, "ready": 1204, "reserved": 0, "dead": 3},
            "complete": True,
        },
    )


class ServerProcess(Response, frozen=True, kw_only=True):
    """The process that responded."""

    pid: int
    workers: Annotated[int, "How many such processes the service has."]
    started_at: datetime
    python: Annotated[str, "Version of Python."]


class StoreFacts(Response, frozen=True, kw_only=True):
    """The store. What its server does not report is `null`, and what only one node of a cluster could say."""

    server: Annotated[str | None, "Name and version."]
    embedded: Annotated[bool, "Whether it is the service's own."]
    up_since: datetime | None
    memory_bytes: int | None
    peak_memory_bytes: int | None
    memory_limit_bytes: Annotated[int | None, "`null` also without a limit."]
    clients: Annotated[int | None, "Open connections."]
    role: str | None
    replicas: Annotated[int | None, "Connected replicas; of a cluster, of the primary with the fewest."]
    durability: Annotated[
        str,
        one_of("memory", "fsync"),
        "What a put gets that asks for no level; of a cluster, what it gets from every primary.",
    ]
    why_not_fsync: Annotated[str | None, "Why that is not `fsync`."]


class ShardFacts(Response, frozen=True, kw_only=True):
    """A shard of the store."""

    shard: int
    topics: int
    timer: Annotated[bool, "Whether a timer works there."]
    work_due_at: Annotated[datetime | None, "When the timer has work next."]


class System(Response, frozen=True, kw_only=True):
    """What the service runs on."""

    now: Annotated[datetime, "The store's clock."]
    version: Annotated[str, "Version of deferd."]
    process: ServerProcess
    store: StoreFacts
    shards: list[ShardFacts]
    unreadable_shards: Annotated[list[int], "Shards of the store that cannot be reached."]
    shard_count: int
    settings: Annotated[dict[str, Any], "The settings in effect, except for secrets and paths."]

    schema_examples = (
        {
            "now": "2026-11-21T03:12:00.000Z",
            "version": "0.2.0",
            "process": {"pid": 4711, "workers": 2, "started_at": "2026-11-20T08:00:00.000Z", "python": "3.13.1"},
            "store": {
                "server": "valkey 9.1.2",
                "embedded": True,
                "up_since": "2026-11-20T08:00:00.000Z",
                "memory_bytes": 1073741824,
                "peak_memory_bytes": 1181116006,
                "memory_limit_bytes": None,
                "clients": 9,
                "role": "master",
                "replicas": 0,
                "durability": "fsync",
                "why_not_fsync": None,
            },
            "shards": [{"shard": 0, "topics": 12, "timer": True, "work_due_at": "2026-11-21T03:12:16.000Z"}],
            "unreadable_shards": [],
            "shard_count": 1,
            "settings": {"port": 8000, "workers": 2, "shards": 1},
        },
    )


class OwnKey(Response, frozen=True, kw_only=True):
    """What the key of the request allows."""

    name: Annotated[str | None, "`null` for a service without keys."]
    scopes: list[Annotated[str, one_of("put", "pop", "cancel", "read", "admin")]]
    topics: Annotated[list[str], "Names and patterns; `*` for all."]
    requests_per_second: Annotated[float | None, "Its rate limit in each server process."]
    limits: Annotated[dict[str, int], "Its other limits, by the names of the keys file."]

    schema_examples = (
        {
            "name": "shop",
            "scopes": ["put", "read"],
            "topics": ["orders.*"],
            "requests_per_second": 100,
            "limits": {"max_jobs": 100000},
        },
    )
