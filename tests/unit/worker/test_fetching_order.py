"""The order in which a pop names the topics."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from deferd.worker.fetcher import topic_order

TOPICS = ("a", "b", "c")


def test_strict_is_the_order_of_the_handlers_or_that_of_a_list() -> None:
    assert list(topic_order("strict", TOPICS)()) == ["a", "b", "c"]
    assert list(topic_order(["c", "b", "a"], TOPICS)()) == ["c", "b", "a"]
    assert list(topic_order(["c"], TOPICS)()) == ["c", "a", "b"]


def test_weights_decide_how_often_a_topic_comes_first() -> None:
    random.seed(1)
    draw = topic_order({"a": 3, "b": 1}, ("a", "b"))
    first = Counter(draw()[0] for _ in range(10_000))
    assert 0.73 < first["a"] / 10_000 < 0.77


def test_every_topic_is_in_every_order_and_comes_first_at_times() -> None:
    random.seed(1)
    draw = topic_order({"a": 100}, TOPICS)
    orders = [tuple(draw()) for _ in range(2000)]
    assert {frozenset(order) for order in orders} == {frozenset(TOPICS)}
    assert {order[0] for order in orders} == set(TOPICS)


@pytest.mark.parametrize(
    ("priority", "reason"),
    [
        ("lax", "not 'lax'"),
        (["a", "x"], "no handler: 'x'"),
        (["a", "a"], "names a topic twice: a, a"),
        ({"x": 1}, "no handler: 'x'"),
        ({"a": 0}, "weight of topic 'a' must be a number above 0, not 0"),
        ({"a": float("nan")}, "weight of topic 'a' must be a number above 0, not nan"),
    ],
)
def test_an_invalid_priority_is_refused(priority: Sequence[str] | Mapping[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        topic_order(priority, TOPICS)
