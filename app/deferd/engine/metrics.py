"""The engine's metrics, which the service exposes under /metrics.

Topics beyond `max_labels` are counted together as `topic="_other"`, so that the number of series stays bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Count
from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import Counter, Gauge, Histogram

from deferd.engine.history.counts import CountedTopics
from deferd.engine.partitions import topic_of

OTHER_TOPICS = "_other"
LATENESS_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
"""Ends of the buckets in seconds; what is later is in one more."""
_CALL_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2)


class FastHistogram(Histogram):
    """A histogram whose observations take half of the time."""

    def observe_s(self, seconds: float) -> None:
        """As `observe`."""
        self._sum.inc(seconds)
        self._buckets[bisect_left(self._upper_bounds, seconds)].inc(1)


class LatenessHistogram(Histogram):
    """A histogram that records the lateness of all jobs of a store call at once, in a tenth of the time."""

    def observe_all_ms(self, lateness_ms: Iterable[int]) -> dict[int, int]:
        """Observe each value; one below 0 counts as 0. Returns how many are in each bucket, by its index."""
        total_ms = 0
        in_bucket: dict[int, int] = {}
        for late_ms, jobs in Count(lateness_ms).items():
            if late_ms > 0:
                total_ms += late_ms * jobs
            bucket = bisect_left(self._upper_bounds, late_ms / 1000)
            in_bucket[bucket] = in_bucket.get(bucket, 0) + jobs
        self._sum.inc(total_ms / 1000)
        for bucket, jobs in in_bucket.items():
            self._buckets[bucket].inc(jobs)
        return in_bucket


PUTS = Counter("deferd_puts", "Jobs put, by outcome.", ["topic", "outcome"])
POPS = Counter("deferd_pops", "Deliveries handed to consumers.", ["topic"])
FINISHES = Counter("deferd_finishes", "Jobs finished.", ["topic"])
RELEASES = Counter("deferd_releases", "Deliveries released by consumers for another attempt.", ["topic"])
SNOOZES = Counter("deferd_snoozes", "Deliveries released by consumers without counting as an attempt.", ["topic"])
CANCELS = Counter("deferd_cancels", "Jobs cancelled, by the state they were in.", ["topic", "was"])
RESCHEDULES = Counter("deferd_reschedules", "Jobs moved to another due time by calls on many jobs.", ["topic"])
RETURNS = Counter("deferd_returns", "Deliveries that nobody worked on, returned to the head of the queue.", ["topic"])
REDELIVERIES = Counter("deferd_redeliveries", "Jobs made ready again because their lease ended.", ["topic"])
DEATHS = Counter("deferd_deaths", "Jobs moved to dead, by reason.", ["topic", "reason"])
SCHEDULE_RUNS = Counter(
    "deferd_schedule_runs",
    "Runs of schedules that were due, by outcome: run, skipped, replaced (it runs in place of the one before), missed.",
    ["topic", "outcome"],
)
REDRIVES = Counter("deferd_redrives", "Dead jobs made ready again.", ["topic"])
RETENTION_ENDS = Counter("deferd_retention_ends", "Dead and finished records whose retention ended.", ["topic"])
PROMOTION_LATENESS = LatenessHistogram(
    "deferd_promotion_lateness_seconds",
    "From due to ready: how late the timer was, for each promoted job.",
    ["topic"],
    buckets=LATENESS_BUCKETS,
)
READY_WAIT = LatenessHistogram(
    "deferd_ready_wait_seconds",
    "From due to popped, for first deliveries: how long jobs waited for a consumer.",
    ["topic"],
    buckets=LATENESS_BUCKETS,
)
WAITING_POPS = Gauge("deferd_waiting_pops", "Pops that wait for a job now.", multiprocess_mode="livesum")
TIMER_TURNS = Counter("deferd_timer_turns", "Turns of the timer, by whether this process held the lock.", ["held"])
TIMER_TURN_SECONDS = Histogram(
    "deferd_timer_turn_seconds", "Duration of turns of the timer that had work to do.", buckets=_CALL_BUCKETS
)
STORE_CALLS = FastHistogram(
    "deferd_store_call_seconds", "Calls of the store, by script or command.", ["script"], buckets=_CALL_BUCKETS
)
STORE_ERRORS = Counter("deferd_store_errors", "Calls of the store that failed, by script or command.", ["script"])


# The children of metrics that every store call of a usual shape counts: to look them up takes longer than to count.
# TopicLabels bounds how many topics they have.
puts_of = cache(PUTS.labels)
pops_of = cache(POPS.labels)
finishes_of = cache(FINISHES.labels)
ready_wait_of = cache(READY_WAIT.labels)
store_calls_of = cache(STORE_CALLS.labels)


class TopicLabels:
    """Gives each topic its metric label: its name for the first `max_labels` topics seen, `_other` for the rest.

    `counted` are the counts for the history, which has no such limit; `on_change` is theirs.
    """

    def __init__(self, max_labels: int, on_change: Callable[[str], None] = lambda _topic: None) -> None:
        self.counted = CountedTopics(on_change)
        self._max_labels = max_labels
        self._known: set[str] = set()

    def label(self, topic: str) -> str:
        """The label for `topic`, or the topic of that partition."""
        if topic in self._known:
            return topic
        topic = topic_of(topic)
        if topic in self._known:
            return topic
        if len(self._known) < self._max_labels:
            self._known.add(topic)
            return topic
        return OTHER_TOPICS
