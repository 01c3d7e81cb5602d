"""The order of the topics in a pop: the first with a ready job is served first."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from deferd.contract.topic_patterns import is_pattern

Priority = Literal["strict"] | Sequence[str] | Mapping[str, float]
TopicOrder = Callable[[], Sequence[str]]


def topic_order(priority: Priority, topics: Sequence[str]) -> TopicOrder:
    """A function that returns the order of the topics for each pop.

    `strict`: always that of `topics`. A sequence: the topics that it names first, in its order. A mapping of weights:
    drawn at random for each pop, so that a topic of weight 3 precedes one of weight 1 three times in four; the default
    weight is 1. Patterns come last: the service serves the topics that match after all that are named.

    Raises:
        ValueError: a named topic is not in `topics`, is a pattern or is named twice, or a weight is not above 0.
    """
    patterns = tuple(topic for topic in topics if is_pattern(topic))
    if patterns:
        order = topic_order(priority, [topic for topic in topics if not is_pattern(topic)])
        return lambda: (*order(), *patterns)
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
    patterns = [topic for topic in named if is_pattern(topic)]
    if patterns:
        text = "the priority names patterns, whose topics always take turns after all others: "
        raise ValueError(text + ", ".join(map(repr, patterns)))
    unknown = [topic for topic in named if topic not in topics]
    if unknown:
        raise ValueError(f"the priority names topics that have no handler: {', '.join(map(repr, unknown))}")


def _weighted(weights: Sequence[tuple[str, float]]) -> TopicOrder:
    def draw() -> Sequence[str]:
        # Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006: each topic draws an exponentially
        # distributed time with its weight as the rate, and the topics are sorted by it.
        arrivals = [(random.expovariate(weight), topic) for topic, weight in weights]
        return [topic for _, topic in sorted(arrivals)]

    return draw
