"""For operators: what happened in a topic, and in all topics together, over the last two days."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import field

from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response
from deferd.contract.scopes import Scope

_AT_END = "at the end of each bucket; `null` when that is not known"


class HistoryBuckets(Response, frozen=True, kw_only=True):
    """Columns of equal length, with a value for each bucket, the earliest first."""

    at: Annotated[list[int], "When each begins, in seconds since 1970-01-01T00:00:00Z."]
    put: Annotated[list[int], "Jobs put: new ones, also by schedules, and those that replaced another."]
    popped: Annotated[list[int], "Deliveries handed out to consumers."]
    finished: Annotated[list[int], "Jobs finished."]
    released: Annotated[list[int], "Attempts that failed: deliveries released, without snoozes, or whose lease ended."]
    dead: Annotated[list[int], "Jobs that became dead, for any reason."]
    cancelled: Annotated[list[int], "Jobs cancelled, one by one or many at once; not those purged."]
    lateness_p50: Annotated[
        list[float | None],
        "The median of how many seconds after their due time jobs were first handed out; `null` when none was. This is "
        "an estimate from the buckets of the metric `deferd_ready_wait_seconds`; more than an hour counts as an hour.",
    ]
    lateness_p99: Annotated[list[float | None], "The same of the 99th percentile."]
    run_time_p50: Annotated[
        list[float | None],
        "The median of how many seconds consumers held the jobs that they finished, from handed out to finished; "
        "`null` when none was. This is an estimate from the buckets of the metric `deferd_run_time_seconds`; more than "
        "a day counts as a day.",
    ]
    run_time_p99: Annotated[list[float | None], "The same of the 99th percentile."]
    delayed: Annotated[list[int | None], f"Delayed jobs {_AT_END}."]
    ready: Annotated[list[int | None], f"Ready jobs {_AT_END}."]
    reserved: Annotated[list[int | None], f"Reserved jobs {_AT_END}."]
    dead_jobs: Annotated[list[int | None], f"Dead jobs {_AT_END}."]


class HistoryQuantiles(Response, frozen=True, kw_only=True):
    """Estimates of durations over all buckets together, in seconds; `null` without any."""

    lateness_p50: Annotated[float | None, "The median of how long after their due time jobs were first handed out."]
    lateness_p99: Annotated[float | None, "The 99th percentile of the same."]
    run_time_p50: Annotated[float | None, "The median of how long consumers held the jobs that they finished."]
    run_time_p99: Annotated[float | None, "The 99th percentile of the same."]


_Bucket = Annotated[int, "Length of a bucket in seconds: 10 or 300."]
_BeginsAt = Annotated[datetime, "When the first bucket begins, by the store's clock."]
_Whole = Annotated[HistoryQuantiles, "Lateness and run times over the whole period."]
_EndsAt = Annotated[datetime, "When the last bucket of 10 seconds ended. The last bucket of 5 minutes may be shorter."]
_EXAMPLE = {
    "bucket": 10,
    "from": "2026-11-21T07:00:00.000Z",
    "to": "2026-11-21T07:00:30.000Z",
    "whole": {"lateness_p50": 0.004, "lateness_p99": 0.0471, "run_time_p50": 0.81, "run_time_p99": 4.5},
}
_EXAMPLE_COLUMNS = {
    "at": [1795244400, 1795244410, 1795244420],
    "put": [120, 0, 118],
    "popped": [97, 103, 0],
    "finished": [95, 104, 1],
    "released": [2, 0, 0],
    "dead": [0, 1, 0],
    "cancelled": [11, 0, 3],
    "lateness_p50": [0.0041, 0.0039, None],
    "lateness_p99": [0.0482, 0.0391, None],
    "run_time_p50": [0.8, 0.82, 1.2],
    "run_time_p99": [4.6, 4.1, 1.2],
    "delayed": [14203, 14203, 14318],
    "ready": [0, 0, 0],
    "reserved": [4, 2, 1],
    "dead_jobs": [312, 313, 313],
}


class History(Response, frozen=True, kw_only=True):
    """What happened in a topic, or in all topics together.

    Each property is a column with a value for each bucket of time, the earliest first.
    """

    if TYPE_CHECKING:  # fields of the two below, which write them in the order of their JSON
        bucket: int
        begins_at: datetime
        ends_at: datetime
        whole: HistoryQuantiles
        buckets: HistoryBuckets

    @property
    def topic(self) -> str | None:
        """The topic; None: all together."""
        return None

    @property
    def at(self) -> list[datetime]:
        """When each bucket begins."""
        return [datetime.fromtimestamp(at_s, UTC) for at_s in self.buckets.at]

    @property
    def put(self) -> list[int]:
        """Jobs put."""
        return self.buckets.put

    @property
    def popped(self) -> list[int]:
        """Deliveries handed out."""
        return self.buckets.popped

    @property
    def finished(self) -> list[int]:
        """Jobs finished."""
        return self.buckets.finished

    @property
    def released(self) -> list[int]:
        """Attempts that failed: deliveries released, without snoozes, or whose lease ended."""
        return self.buckets.released

    @property
    def dead(self) -> list[int]:
        """Jobs that became dead."""
        return self.buckets.dead

    @property
    def cancelled(self) -> list[int]:
        """Jobs cancelled."""
        return self.buckets.cancelled

    @property
    def lateness_p50(self) -> list[float | None]:
        """Median of the seconds from due to popped, of first deliveries; None in buckets without any."""
        return self.buckets.lateness_p50

    @property
    def lateness_p99(self) -> list[float | None]:
        """The 99th percentile of the same."""
        return self.buckets.lateness_p99

    @property
    def run_time_p50(self) -> list[float | None]:
        """Median of the seconds from popped to finished, of jobs that were finished; None in buckets without any."""
        return self.buckets.run_time_p50

    @property
    def run_time_p99(self) -> list[float | None]:
        """The 99th percentile of the same."""
        return self.buckets.run_time_p99

    def column(self, name: str) -> list[int]:
        """A column by its name in the JSON object, such as `ready`: ready jobs at the end of each bucket, or None."""
        return list(getattr(self.buckets, name))


class TopicHistory(History, frozen=True, kw_only=True):
    """What happened in a topic."""

    topic: str
    bucket: _Bucket
    begins_at: _BeginsAt = field(name="from")
    ends_at: _EndsAt = field(name="to")
    whole: _Whole
    buckets: HistoryBuckets

    schema_examples = ({"topic": "orders.close", **_EXAMPLE, "buckets": _EXAMPLE_COLUMNS},)


class HistoryOfAll(History, frozen=True, kw_only=True):
    """What happened in all topics together. Numbers of jobs are `null`."""

    schema_name = "History"

    bucket: _Bucket
    begins_at: _BeginsAt = field(name="from")
    ends_at: _EndsAt = field(name="to")
    whole: _Whole
    buckets: HistoryBuckets
    complete: Annotated[bool, "`false`: some topics are missing, or a shard of the store cannot be reached."]
    unreadable_shards: Annotated[list[int], "Shards of the store that cannot be reached; their topics are missing."]

    schema_examples = (
        {
            **_EXAMPLE,
            "buckets": {
                **_EXAMPLE_COLUMNS,
                **dict.fromkeys(("delayed", "ready", "reserved", "dead_jobs"), [None] * 3),
            },
            "complete": True,
            "unreadable_shards": [],
        },
    )


GET_HISTORY = Operation(
    "get_history",
    "GET",
    "/topics/{topic}/history",
    tag="inspection",
    scope=Scope.READ,
    summary="Show the history of a topic",
    description=(
        "Returns what happened in the topic: for each bucket of time how many jobs were put, handed out, finished "
        "and so on by all processes of the service, how late first deliveries were, for how long finished jobs were "
        "held, and the jobs in each state at its end. Processes publish their counts every 10 seconds; a process that "
        "is killed loses the counts of its last 10 seconds. A topic keeps its history for two days after its last "
        "change, also when it is forgotten by then. At most 1000 topics in each shard have a history: new ones get "
        "none while all of these changed within 10 minutes."
    ),
    response=TopicHistory,
    response_description="The buckets.",
    errors=("topic_not_found",),
)
GET_HISTORY_OF_ALL = Operation(
    "get_history_of_all",
    "GET",
    "/history",
    tag="inspection",
    scope=Scope.READ,
    summary="Show the history of all topics",
    description=(
        "Returns what happened in all topics together, as the history of a topic does; topics that have no history "
        "of their own are included. For a key that is for some topics these are summed up, at most the 100 that "
        "changed last; `complete` says whether these are all."
    ),
    response=HistoryOfAll,
    response_description="The buckets.",
)
