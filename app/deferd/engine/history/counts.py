"""What a process has counted for each topic since it last published its counts."""

from __future__ import annotations

from collections.abc import Callable

MOST_TOPICS = 10_000
"""How many topics a process counts separately. Further topics count in the sum over all topics only."""


class TopicCounts:
    """What happened in one topic. `lateness`: first deliveries by bucket of `metrics.LATENESS_BUCKETS`."""

    __slots__ = ("cancelled", "dead", "finished", "lateness", "popped", "put", "released")

    def __init__(self) -> None:
        self.put = self.popped = self.finished = self.released = self.dead = self.cancelled = 0
        self.lateness: dict[int, int] = {}

    def add_lateness(self, by_bucket: dict[int, int]) -> None:
        """Add first deliveries; the caller gives the object away."""
        if not self.lateness:
            self.lateness = by_bucket
            return
        for bucket, jobs in by_bucket.items():
            self.lateness[bucket] = self.lateness.get(bucket, 0) + jobs

    def add(self, other: TopicCounts) -> None:
        """Add other counts of the same topic."""
        self.put += other.put
        self.popped += other.popped
        self.finished += other.finished
        self.released += other.released
        self.dead += other.dead
        self.cancelled += other.cancelled
        self.add_lateness(dict(other.lateness))

    def numbers(self) -> list[int]:
        """As lua/publish_history.lua reads them."""
        numbers = [self.put, self.popped, self.finished, self.released, self.dead, self.cancelled]
        for pair in self.lateness.items():
            numbers += pair
        return numbers


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
