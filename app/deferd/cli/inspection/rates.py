"""Rates of puts and finishes, from the counters of the services under /metrics."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

_OTHER_TOPICS: Final = "_other"
_LINE: Final = re.compile(r"^deferd_(puts|finishes)_total\{([^}\n]*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'\b(\w+)="([^"]*)"')
_STORED: Final = frozenset({"created", "replaced"})


class Counts(NamedTuple):
    """The counters of one service since its start, by topic. `_other` has several topics."""

    puts: Mapping[str, float]
    finishes: Mapping[str, float]


def read_counts(exposition: str) -> Counts:
    """Parse Prometheus' text format. Puts are those that stored a job."""
    found: dict[str, dict[str, float]] = {"puts": defaultdict(float), "finishes": defaultdict(float)}
    for kind, labels_text, value in _LINE.findall(exposition):
        labels = dict(_LABEL.findall(labels_text))
        if labels.get("outcome", "created") in _STORED:
            found[kind][labels["topic"]] += float(value)
    return Counts(found["puts"], found["finishes"])


class Rates(NamedTuple):
    """Jobs per second; None if unknown."""

    put: float | None
    finish: float | None


class RateMeter:
    """Computes rates from repeated samples of the counters of one or more services."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Counts]] = {}
        self._now: dict[str, tuple[float, Counts]] = {}

    def add(self, service: str, at_s: float, counts: Counts) -> None:
        """Add a sample of a service, at a time of a monotonic clock."""
        if service in self._now:
            self._before[service] = self._now[service]
        self._now[service] = (at_s, counts)

    def forget(self, service: str) -> None:
        """Forget a service that did not respond: its next counters may be those of another process."""
        self._before.pop(service, None)
        self._now.pop(service, None)

    def rates(self, topic: str) -> Rates:
        """The rates of all services together, between their last two samples; unknown before, and after a restart."""
        return Rates(self._rate("puts", topic), self._rate("finishes", topic))

    def _rate(self, kind: str, topic: str) -> float | None:
        total = 0.0
        for service, (at_s, counts) in self._now.items():
            if service not in self._before:
                return None
            before_s, counts_before = self._before[service]
            of_topic: Mapping[str, float] = getattr(counts, kind)
            if topic not in of_topic and _OTHER_TOPICS in of_topic:
                return None
            gained = of_topic.get(topic, 0.0) - getattr(counts_before, kind).get(topic, 0.0)
            if gained < 0 or at_s <= before_s:
                return None
            total += gained / (at_s - before_s)
        return total if self._now else None
