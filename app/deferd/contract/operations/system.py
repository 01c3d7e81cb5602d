"""For operators: health, metrics, what the service runs on, all topics at a glance, and the key of the caller."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from deferd.contract.operations.operation import Operation
from deferd.contract.operations.push import CircuitState
from deferd.contract.operations.response import Response, one_of
from deferd.contract.scopes import Scope


class Health(Response, frozen=True, kw_only=True):
    """The service is healthy."""

    status: Literal["ok"]

    schema_examples = ({"status": "ok"},)


class Clock(Response, frozen=True, kw_only=True):
    """The clock of a service for tests, and by how many seconds it was advanced so far.

    If it has stopped on its way at runs of schedules: the seconds and runs that are left, and the schedule with most.
    """

    now: datetime
    offset: float
    left: float = 0
    runs_left: int = 0
    busiest: str = ""


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
    oldest_ready_at: Annotated[datetime | None, "When the oldest ready job was due; `null` when none is ready."]
    next_due_at: Annotated[datetime | None, "When the first delayed job is due; `null` when none is delayed."]
    rate: Annotated[float | None, "Jobs handed out per second in the last seconds; `null` when that is not known."]
    ready_history: Annotated[
        list[int | None] | None,
        "With `ready_history`: ready jobs at the end of each 5 minutes of the last 3 hours, the earliest first; in the "
        "last ones, which are not over, lately. `null` before anything is known. Omitted without a history.",
    ] = None


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


class StoreProcess(Response, frozen=True, kw_only=True):
    """A server process that uses the store, of this service or of another one."""

    host: Annotated[str, "Name of its machine or container."]
    pid: int
    version: Annotated[str, "Its version of deferd."]
    newest_format: Annotated[int, "The newest format of a store that it knows."]
    started_at: Annotated[datetime, "By the clock of its machine."]
    seen_at: Annotated[datetime, "When it last said that it is there: every 5 s, every 20 s in an embedded store."]


class Shelf(Response, frozen=True, kw_only=True):
    """The shelf: delayed jobs that are due late, in files instead of the store's memory. With a `fault` only that."""

    fault: Annotated[str | None, "Why jobs cannot be read or moved; omitted while they can."] = None
    jobs: Annotated[int | None, "Jobs on the shelf; omitted when that is not known."] = None
    disk_bytes: Annotated[int | None, "The size of its files, without the log of the last changes."] = None
    moved_out: Annotated[int | None, "Jobs that went to the shelf since its process was started."] = None
    moved_in: Annotated[int | None, "Jobs that were loaded into the store since then."] = None
    moved_out_per_second: Annotated[float | None, "Jobs that went there per second, in the last 10 s."] = None
    moved_in_per_second: Annotated[float | None, "Jobs that were loaded per second, in the last 10 s."] = None
    loads_ahead: Annotated[float | None, "How many seconds before they are due jobs are loaded."] = None
    jobs_behind: Annotated[int | None, "Jobs that are due within half of that, and are not loaded."] = None
    behind: Annotated[float | None, "For how many seconds the first of them has been; 0 without."] = None


_PROCESS = {
    "host": "deferd-7c9f-x2x4",
    "pid": 4711,
    "version": "0.2.0",
    "newest_format": 1,
    "started_at": "2026-11-20T08:00:00.000Z",
    "seen_at": "2026-11-21T03:11:58.000Z",
}


class Upgrade(Response, frozen=True, kw_only=True):
    """The format of the store, and who uses it."""

    store_format: int
    processes: list[StoreProcess]

    schema_examples = ({"store_format": 1, "processes": [_PROCESS]},)


class System(Response, frozen=True, kw_only=True):
    """What the service runs on."""

    now: Annotated[datetime, "The store's clock."]
    version: Annotated[str, "Version of deferd."]
    process: ServerProcess
    store: StoreFacts
    shelf: Annotated[Shelf | None, "The shelf; omitted by a service without one."] = None
    shards: list[ShardFacts]
    unreadable_shards: Annotated[list[int], "Shards of the store that cannot be reached."]
    shard_count: int
    store_format: Annotated[int, "The format of what the store holds; a release knows two of them."]
    processes: Annotated[list[StoreProcess], "The server processes of all services that use the store."]
    settings: Annotated[dict[str, Any], "The settings in effect, except for secrets and paths."]

    schema_name = "SystemFacts"  # a class System would hide java.lang.System in a generated client
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
            "shelf": {
                "jobs": 4120000,
                "disk_bytes": 734003200,
                "moved_out": 4500000,
                "moved_in": 380000,
                "moved_out_per_second": 210.5,
                "moved_in_per_second": 35.0,
                "loads_ahead": 3600.0,
                "jobs_behind": 0,
                "behind": 0.0,
            },
            "shards": [{"shard": 0, "topics": 12, "timer": True, "work_due_at": "2026-11-21T03:12:16.000Z"}],
            "unreadable_shards": [],
            "shard_count": 1,
            "store_format": 1,
            "processes": [_PROCESS],
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


CHECK_HEALTH = Operation(
    "check_health",
    "GET",
    "/healthz",
    tag="operations",
    scope=None,
    summary="Check that the process is alive",
    description="Responds as long as the process can respond at all. It does not check the store.",
    response=Health,
    response_description="The process is alive.",
    needs_store=False,
)
CHECK_READINESS = Operation(
    "check_readiness",
    "GET",
    "/readyz",
    tag="operations",
    scope=None,
    summary="Check that the service is ready",
    description=(
        "Checks that the store responds. For load balancers: send requests only while this returns 200. The detail "
        "of the 503 says why, such as `Connection refused` or `No space left on device`, and while the store loads "
        "its data after a start how far it is."
    ),
    response=Health,
    response_description="The service is ready.",
)
GET_METRICS: Operation[Response] = Operation(
    "get_metrics",
    "GET",
    "/metrics",
    tag="operations",
    scope=Scope.READ,
    summary="Get metrics for Prometheus",
    description=(
        "The metrics of all server processes, and the current state of the store. While the store is down "
        "this still responds, with `deferd_store_up 0`. The key must match all topics."
    ),
    response_description="Metrics in Prometheus' text format.",
    needs_store=False,
)

GET_OVERVIEW = Operation(
    "get_overview",
    "GET",
    "/overview",
    tag="inspection",
    scope=Scope.READ,
    summary="Get all topics at a glance",
    description=(
        "Lists topics in any order: jobs by state, the oldest ready job, what is due next, and jobs handed out per "
        "second. What was read is kept for up to 5 seconds and shared with `GET /now`; `GET /topics` reads each "
        "topic at once, with its settings. With `ready_history` each topic has how many jobs were ready in the last 3 "
        "hours, which is kept for up to 30 seconds."
    ),
    response=Overview,
    response_description="The topics.",
)
GET_SYSTEM = Operation(
    "get_system",
    "GET",
    "/system",
    tag="inspection",
    scope=Scope.READ,
    summary="Get what the service runs on",
    description=(
        "Returns the versions, the store with its memory, durability and replicas, the shelf if there is one, the "
        "timer of each shard, and the settings except for secrets and paths. The key must match all topics."
    ),
    response=System,
    response_description="The system.",
)
UPGRADE_STORE = Operation(
    "upgrade_store",
    "POST",
    "/system/upgrade",
    tag="inspection",
    scope=Scope.ADMIN,
    summary="Give the store the newest format at once",
    description=(
        "After an upgrade the services do this by themselves, half a minute after the last process of the earlier "
        "release has ended, or a minute later if it was killed. This does it at once: processes that do not know the "
        "new format refuse all calls from then on. It changes nothing if the store has the newest format that the "
        "service knows, and fails if another service that uses the store knows a newer one. The key must match all "
        "topics."
    ),
    response=Upgrade,
    response_description="The format that the store has now.",
    errors=("not_yet_available",),
    done="upgraded the store",
)
GET_KEY = Operation(
    "get_key",
    "GET",
    "/key",
    tag="inspection",
    scope=Scope.READ,
    summary="Get what the key of the request allows",
    description=(
        "Returns the name, scopes, topics and limits of the key that the request was made with; a service "
        "without keys allows everything."
    ),
    response=OwnKey,
    response_description="The key.",
)

READ_CLOCK = Operation(
    "read_clock",
    "GET",
    "/testing/clock",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Read the clock",
    description="The time of the clock, and the seconds by which it was advanced so far.",
    response=Clock,
)
MOVE_CLOCK = Operation(
    "move_clock",
    "POST",
    "/testing/clock",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Advance the clock, and promote what becomes due",
    description="The time of the clock, and the seconds by which it was advanced so far.",
    response=Clock,
    repeatable=False,
    done="moved the clock",
)
FORGET_PAST = Operation(
    "forget_past",
    "DELETE",
    "/testing/past",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Forget the activity, the tasks that have ended, and what rates have counted",
    description="For tests that begin with an empty service. Returns the clock.",
    response=Clock,
)
