"""The engine's metrics, which the service exposes under /metrics.

Topics beyond `max_labels` are counted together as `topic="_other"`, so that the number of series stays bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Count
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain

from prometheus_client import Counter, Gauge, Histogram

from deferd.engine.partitions import topic_of

OTHER_TOPICS = "_other"
LATENESS_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
"""Ends of the buckets in seconds; what is later is in one more."""
RUN_TIME_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20),
    *(60, 120, 300, 600, 1800, 3600, 7200, 18_000, 36_000, 86_400),
)
"""The same of run times: leases last for up to a day, and longer when they are extended."""
_CALL_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2)


class FastHistogram(Histogram):
    """A histogram whose observations take half of the time."""

    def observe_s(self, seconds: float) -> None:
        """As `observe`."""
        self._sum.inc(seconds)
        self._buckets[bisect_left(self._upper_bounds, seconds)].inc(1)


class JobsHistogram(Histogram):
    """A histogram that records the durations of all jobs of a store call at once, in a tenth of the time."""

    def observe_all_ms(self, durations_ms: Iterable[int]) -> dict[int, int]:
        """Observe each value; one below 0 counts as 0. Returns how many are in each bucket, by its index."""
        return self.observe_counts_ms(chain.from_iterable(Count(durations_ms).items()))

    def observe_counts_ms(self, counts: Iterable[int]) -> dict[int, int]:
        """As `observe_all_ms`, of values each before its number of jobs."""
        total_ms = 0
        in_bucket: dict[int, int] = {}
        left = iter(counts)
        for duration_ms in left:
            jobs = next(left)
            if duration_ms > 0:
                total_ms += duration_ms * jobs
            bucket = bisect_left(self._upper_bounds, duration_ms / 1000)
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
PROMOTION_LATENESS = JobsHistogram(
    "deferd_promotion_lateness_seconds",
    "From due to ready: how late the timer was, for each promoted job.",
    ["topic"],
    buckets=LATENESS_BUCKETS,
)
READY_WAIT = JobsHistogram(
    "deferd_ready_wait_seconds",
    "From due to popped, for first deliveries: how long jobs waited for a consumer.",
    ["topic"],
    buckets=LATENESS_BUCKETS,
)
RUN_TIME = JobsHistogram(
    "deferd_run_time_seconds",
    "From popped to finished, for jobs that were finished: how long their consumers held them.",
    ["topic"],
    buckets=RUN_TIME_BUCKETS,
)
WAITING_POPS = Gauge("deferd_waiting_pops", "Pops that wait for a job now.", multiprocess_mode="livesum")
JOB_WAITS = Gauge(
    "deferd_job_waits", "Requests that wait for the end or the progress of a job now.", multiprocess_mode="livesum"
)
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
run_time_of = cache(RUN_TIME.labels)
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


MOST_TOPICS = 10_000
"""How many topics a process counts separately. Further topics count in the sum over all topics only."""


RUN_TIMES_FROM = 100
"""In the history a bucket of run times has its index plus this, beside the buckets of lateness."""
_BALANCE = RUN_TIMES_FROM - 1
"""Minus the number of run times, so that a process of the release before, which counts all of these as lateness, ranks
that as before."""


class TopicCounts:
    """What a process has counted in one topic since it last published its counts to the history.

    `lateness`: first deliveries by bucket of `LATENESS_BUCKETS`. `run_times`: finished jobs by bucket of
    `RUN_TIME_BUCKETS`.
    """

    __slots__ = ("cancelled", "dead", "finished", "lateness", "popped", "put", "released", "run_times")

    def __init__(self) -> None:
        self.put = self.popped = self.finished = self.released = self.dead = self.cancelled = 0
        self.lateness: dict[int, int] = {}
        self.run_times: dict[int, int] = {}

    def add_lateness(self, by_bucket: Mapping[int, int]) -> None:
        """Add first deliveries."""
        add_to(self.lateness, by_bucket)

    def add_run_times(self, by_bucket: Mapping[int, int]) -> None:
        """Add finished jobs."""
        add_to(self.run_times, by_bucket)

    def add(self, other: TopicCounts) -> None:
        """Add other counts of the same topic."""
        self.put += other.put
        self.popped += other.popped
        self.finished += other.finished
        self.released += other.released
        self.dead += other.dead
        self.cancelled += other.cancelled
        self.add_lateness(other.lateness)
        self.add_run_times(other.run_times)

    def numbers(self) -> list[int]:
        """As lua/publish_history.lua reads them."""
        numbers = [self.put, self.popped, self.finished, self.released, self.dead, self.cancelled]
        for pair in self.lateness.items():
            numbers += pair
        if self.run_times:
            numbers += (_BALANCE, -sum(self.run_times.values()))
            for bucket, jobs in self.run_times.items():
                numbers += (RUN_TIMES_FROM + bucket, jobs)
        return numbers


def add_to(by_bucket: dict[int, int], more: Mapping[int, int]) -> None:
    """Add numbers of jobs by bucket to others."""
    for bucket, jobs in more.items():
        by_bucket[bucket] = by_bucket.get(bucket, 0) + jobs


class CountedTopics:
    """The counts of topics that changed. In a topic whose counts are all 0, only the numbers of jobs by state have
    changed.

    `on_change` is called when a topic changes for the first time after a `take`.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda _topic: None) -> None:
        self._on_change = on_change
        self._of_topic: dict[str, TopicCounts] = {}
        self._rest: TopicCounts | None = None

    def of(self, topic: str) -> TopicCounts:
        """The counts of a topic, for the caller to add to. The topic then counts as changed."""
        counts = self._of_topic.get(topic)
        return self._new(topic) if counts is None else counts

    def _new(self, topic: str) -> TopicCounts:
        self._on_change(topic)
        if len(self._of_topic) < MOST_TOPICS:
            counts = self._of_topic[topic] = TopicCounts()
            return counts
        if self._rest is None:
            self._rest = TopicCounts()
        return self._rest

    def take(self) -> tuple[dict[str, TopicCounts], TopicCounts | None]:
        """The counts since the last call, by topic, and one sum for the topics that are not counted separately.

        They do not change any more.
        """
        taken = self._of_topic, self._rest
        self._of_topic, self._rest = {}, None
        return taken
