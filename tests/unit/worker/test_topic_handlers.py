"""Which handler is for a topic, and where patterns come in the order of a pop."""

from __future__ import annotations

import random

import pytest

from deferd import Worker
from deferd.contract.limits import POP_TOPICS_MAX
from deferd.worker.handlers import Handler
from deferd.worker.topic_handlers import TopicHandlers
from deferd.worker.topic_priority import topic_order


def handlers_of(*topics: str) -> TopicHandlers:
    handlers = TopicHandlers()
    for topic in topics:
        handlers.add(Handler(topic, lambda: None))
    return handlers


def test_a_topics_own_handler_precedes_patterns_and_the_first_pattern_counts() -> None:
    handlers = handlers_of("orders.eu.*", "orders.*", "orders.eu.close", "*")
    expected = {
        "orders.eu.close": "orders.eu.close",
        "orders.eu.open": "orders.eu.*",
        "orders.us": "orders.*",
        "users": "*",
    }
    assert {topic: handlers[topic].topic for topic in expected} == expected
    assert list(handlers) == ["orders.eu.*", "orders.*", "orders.eu.close", "*"]


def test_a_topic_without_a_handler_has_none() -> None:
    handlers = handlers_of("orders.*", "users")
    assert "order" not in handlers
    with pytest.raises(KeyError, match="order"):
        handlers["order"]
    handlers.add(Handler("ord*", lambda: None))
    assert handlers["order"].topic == "ord*"


def test_a_pattern_is_declared_once_and_counts_as_a_topic() -> None:
    worker = Worker()
    worker.handler("orders.*")(lambda: None)
    worker.handler("orders.close")(lambda: None)
    with pytest.raises(ValueError, match=r"topic 'orders\.\*' has a handler already"):
        worker.handler("orders.*")(lambda: None)
    for number in range(POP_TOPICS_MAX - 2):
        worker.handler(f"{number}.*")(lambda: None)
    with pytest.raises(ValueError, match=r"at most 32 topics: 'more\.\*' is one too many"):
        worker.handler("more.*")(lambda: None)


@pytest.mark.parametrize("pattern", ["-*", ".*", "a b*", "ä*", "*" * 129, "a,*"])
def test_a_pattern_has_the_form_of_a_topic(pattern: str) -> None:
    with pytest.raises(ValueError, match="a pattern may also have"):
        Worker().handler(pattern)


def test_patterns_come_last_in_every_order() -> None:
    random.seed(1)
    topics = ("a.*", "b", "*", "c")
    assert list(topic_order("strict", topics)()) == ["b", "c", "a.*", "*"]
    assert list(topic_order(["c"], topics)()) == ["c", "b", "a.*", "*"]
    draw = topic_order({"b": 3}, topics)
    drawn = {tuple(draw()) for _ in range(50)}
    assert drawn == {("b", "c", "a.*", "*"), ("c", "b", "a.*", "*")}


@pytest.mark.parametrize("priority", [["a.*", "b"], {"a.*": 3}])
def test_a_priority_cannot_name_a_pattern(priority: list[str] | dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"the priority names patterns, .*: 'a\.\*'"):
        topic_order(priority, ("a.*", "b"))
