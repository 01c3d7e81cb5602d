"""Counts what pops hand out."""

from __future__ import annotations

from deferd.engine import metrics
from deferd.engine.partitions import topic_of
from deferd.engine.record import JobRecord


class PopCounts:
    """Counts deliveries, and jobs that pops found to be dead, in the metrics and for what operators look at."""

    def __init__(self, labels: metrics.TopicLabels) -> None:
        self._label = labels.label
        self._counted = labels.counted
        self._popped: dict[str, int] = {}

    def count(self, topic: str, jobs: list[JobRecord], now_ms: int, expired: int, overdue: int) -> None:
        """Count the jobs that one call handed out of a partition, and those whose ttl or deadline had passed."""
        label = self._label(topic)
        counts = self._counted.of(topic)
        if expired:
            metrics.DEATHS.labels(label, "expired").inc(expired)
        if overdue:
            metrics.DEATHS.labels(label, "deadline").inc(overdue)
        if expired or overdue:
            counts.dead += expired + overdue
        if jobs:
            of_topic = topic_of(topic)
            self._popped[of_topic] = self._popped.get(of_topic, 0) + len(jobs)
            counts.popped += len(jobs)
            metrics.pops_of(label).inc(len(jobs))
            counts.add_lateness(
                metrics.ready_wait_of(label).observe_all_ms(
                    now_ms - job.due_at_ms for job in jobs if job.attempts == 1 and not job.endings.snoozes
                )
            )

    def take_popped(self) -> dict[str, int]:
        """How many jobs of each topic this process has handed out since the last call."""
        popped, self._popped = self._popped, {}
        return popped
