"""Which functions may be handlers, and their arguments."""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from deferd import Context, Worker
from deferd.contract.limits import ERROR_TEXT_MAX, POP_TOPICS_MAX
from deferd.worker.fetcher import topic_order
from deferd.worker.handlers import Handler, InvalidBody, TopicHandlers
from tests.unit.worker.handler_context import context_of


class Line(BaseModel):
    sku: str
    price: float


class Order(BaseModel):
    id: int
    lines: list[Line] = []


class StrictNotice(BaseModel):
    model_config = ConfigDict(strict=True)
    sent_at: datetime


@dataclass
class Point:
    x: int
    y: int


def result_of(function: Callable[..., Any], body: Any) -> Any:
    """The return value of the function when a worker calls it."""
    positional, named = Handler("t", function).arguments(body, context_of(body))
    return function(*positional, **named)


def test_the_first_parameter_gets_the_body_parsed_into_its_annotation() -> None:
    def takes_model(order: Order) -> Any:
        return order

    def takes_dataclass(point: Point) -> Any:
        return point

    def takes_number(number: int) -> Any:
        return number

    def takes_strict(notice: StrictNotice) -> Any:
        return notice.sent_at

    assert result_of(takes_model, {"id": 7, "lines": [{"sku": "a", "price": 1}]}) == Order(
        id=7, lines=[Line(sku="a", price=1.0)]
    )
    assert result_of(takes_dataclass, {"x": 1, "y": 2}) == Point(1, 2)
    assert result_of(takes_number, 5) == 5
    assert result_of(takes_strict, {"sent_at": "2030-01-31T09:30:00Z"}) == datetime(2030, 1, 31, 9, 30, tzinfo=UTC)


def test_without_an_annotation_or_with_any_the_body_is_not_parsed() -> None:
    def takes_any(body: Any) -> Any:
        return body

    body = {"n": [1, None]}
    assert result_of(takes_any, body) is body
    assert result_of(lambda body: body, body) is body


def test_a_handler_may_take_a_context_anywhere_or_nothing() -> None:
    def body_first(body: int, context: Context) -> Any:
        return body, context.job.id

    def context_first(context: Context, body: int) -> Any:
        return body, context.job.id

    def context_alone(context: Context) -> Any:
        return context.job.id

    def by_position(context: Context, body: int, /) -> Any:
        return body, context.job.id

    def by_name(*, body: int, context: Context) -> Any:
        return body, context.job.id

    def with_default(body: int, times: int = 2) -> Any:
        return body * times

    assert [result_of(one, 5) for one in (body_first, context_first, by_position, by_name)] == [(5, "a")] * 4
    assert result_of(context_alone, 5) == "a"
    assert result_of(with_default, 5) == 10
    assert result_of(lambda: "nothing", 5) == "nothing"


def test_methods_partials_and_callable_objects_are_handlers() -> None:
    class Closer:
        def close(self, order: Order) -> Any:
            return order.id

        async def close_async(self, order: Order) -> Any:
            return order.id

        async def __call__(self, order: Order) -> Any:
            return order.id

    def add(first: int, body: int) -> int:
        return first + body

    assert result_of(Closer().close, {"id": 7}) == 7
    assert result_of(functools.partial(add, 2), 5) == 7
    assert not Handler("t", Closer().close).is_async
    assert Handler("t", Closer().close_async).is_async
    assert Handler("t", Closer()).is_async
    assert Handler("t", functools.partial(Closer().close_async)).is_async


def test_an_invalid_body_is_reported_by_field_and_error() -> None:
    def takes_model(order: Order) -> None: ...

    with pytest.raises(InvalidBody) as unfit:
        result_of(takes_model, {"lines": [{"sku": "a", "price": "ten"}]})
    assert unfit.value.reason == (
        "the body does not fit: id: Field required; lines.0.price: Input should be a valid number, "
        "unable to parse string as a number, not 'ten'"
    )

    def takes_number(number: int) -> None: ...

    with pytest.raises(InvalidBody, match=r"^the body does not fit: Input should be a valid integer, not "):
        result_of(takes_number, [1])


def test_the_text_about_an_invalid_body_is_bounded() -> None:
    def takes_numbers(numbers: dict[str, int]) -> None: ...

    with pytest.raises(InvalidBody) as unfit:
        result_of(takes_numbers, {f"{'k' * 5000}{number}": "x" * 10_000 for number in range(100)})
    assert len(unfit.value.reason) == ERROR_TEXT_MAX


class Unknown:
    """A type that pydantic cannot validate."""


def test_functions_that_cannot_be_called_with_a_job_are_refused_when_declared() -> None:
    worker = Worker()

    def two_values(body: int, second: int) -> None: ...

    def unnamed(*bodies: int) -> None: ...

    def unparsable(body: Unknown) -> None: ...

    def unresolved(body: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821

    def yields(body: int) -> Iterator[int]:
        yield body

    async def yields_async(body: int) -> AsyncIterator[int]:
        yield body

    for function, reason in (
        (two_values, "has a parameter 'second' that gets no argument"),
        (unnamed, "takes \\*bodies: 'int'|takes \\*bodies: int, but a handler must name its parameters"),
        (unparsable, "which pydantic cannot validate"),
        (unresolved, "NameError: name 'Missing' is not defined"),
        (yields, "is a generator, but a handler must return"),
        (yields_async, "is a generator, but a handler must return"),
        ("text", "must be a function, not 'text'"),
    ):
        with pytest.raises(TypeError, match=f"'t'.*({reason})"):
            worker.handler("t")(function)  # type: ignore[type-var]
    assert worker.topics == ()


def test_a_topic_has_one_handler_and_a_worker_32_topics() -> None:
    worker = Worker()

    def nothing() -> None: ...

    assert worker.handler("t")(nothing) is nothing
    with pytest.raises(ValueError, match=r"topic 't' has a handler already: .*nothing"):
        worker.handler("t")(lambda: None)
    for number in range(POP_TOPICS_MAX - 1):
        worker.handler(f"t{number}")(nothing)
    with pytest.raises(ValueError, match="at most 32 topics: 'more' is one too many"):
        worker.handler("more")(nothing)


def test_a_forgotten_topic_and_values_out_of_range_are_refused() -> None:
    worker = Worker()
    with pytest.raises(TypeError, match="declared with its topic"):
        worker.handler(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unlike 'no topic'"):
        worker.handler("no topic")
    with pytest.raises(ValueError, match="time limit above 0 seconds, not 0"):
        worker.handler("t", time_limit=timedelta(0))(lambda: None)
    with pytest.raises(ValueError, match="concurrency must be at least 1, not 0"):
        Worker(concurrency=0)
    with pytest.raises(ValueError, match="prefetch must be at least 0, not -1"):
        Worker(prefetch=-1)
    with pytest.raises(ValueError, match="grace must be at least 0 seconds, not -1"):
        Worker(grace=-1)
    with pytest.raises(ValueError, match="unlike 'my worker'"):
        Worker(name="my worker")


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
