"""In which order a pop names the topics: the first that has a job ready is served first."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

Priority = Literal["strict"] | Sequence[str] | Mapping[str, float]
Order = Callable[[], Sequence[str]]


def order_of(priority: Priority, topics: Sequence[str]) -> Order:
    """What gives the topics' order for each pop.

    `strict`: always as in `topics`. A sequence: those it names first, in its order. A mapping of weights: drawn anew
    for each pop, so that a topic of weight 3 comes before one of weight 1 three times in four; topics without a weight
    have 1.

    Raises:
        ValueError: a topic is named that is not in `topics`, or twice, or a weight is not above 0.
    """
    if isinstance(priority, Mapping):
        _check_known(priority, topics)
        for topic, weight in priority.items():
            if not 0 < weight < float("inf"):
                raise ValueError(f"the weight of topic {topic!r} must be a number above 0, not {weight!r}")
        return _weighted([(topic, float(priority.get(topic, 1))) for topic in topics])
    if isinstance(priority, str):
        if priority != "strict":
            raise ValueError(f"the priority is 'strict', a list of topics or a mapping of weights, not {priority!r}")
        fixed = tuple(topics)
    else:
        _check_known(priority, topics)
        if len(set(priority)) < len(priority):
            raise ValueError(f"the priority names a topic twice: {', '.join(priority)}")
        fixed = (*priority, *(topic for topic in topics if topic not in priority))
    return lambda: fixed


def _check_known(named: Mapping[str, float] | Sequence[str], topics: Sequence[str]) -> None:
    unknown = [topic for topic in named if topic not in topics]
    if unknown:
        raise ValueError(f"the priority names topics that have no handler: {', '.join(map(repr, unknown))}")


def _weighted(weights: Sequence[tuple[str, float]]) -> Order:
    def draw() -> Sequence[str]:
        # Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006: who arrives first in a race where
        # each takes an exponentially distributed time, of a rate that is its weight.
        arrivals = [(random.expovariate(weight), topic) for topic, weight in weights]
        return [topic for _, topic in sorted(arrivals)]

    return draw
