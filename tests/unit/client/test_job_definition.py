"""Job definitions: what their puts send and refuse, and which handlers they accept."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from deferd import AsyncClient, Client, Context, FixedBackoff, InvalidInput, Worker, job
from deferd.client.put_options import PutOptions, put_fields
from deferd.worker.handlers import Handler, InvalidBody
from tests.deliveries import delivery_of
from tests.unit.worker.handler_context import context_of

NO_SERVICE = "http://127.0.0.1:9"


class Document(BaseModel):
    number: int


class Order(Document):
    placed_at: datetime | None = None


class Aliased(BaseModel):
    order_number: int = Field(alias="orderNumber")


class OneWay(BaseModel):
    number: int = Field(serialization_alias="no")


class Trial(TypedDict):
    days: int


@dataclass
class Point:
    x: int


def _wrong_order() -> Order:
    order = Order(number=1)
    order.__dict__["number"] = "one"  # as a program without type checks may
    return order


class Unknown:
    """A type that pydantic cannot validate."""


def test_a_put_has_the_topic_the_body_as_json_and_the_defaults() -> None:
    close = job("orders.close", Order, delay=timedelta(minutes=30), max_attempts=5, backoff=FixedBackoff(seconds=3))

    fields = close.fields(Order(number=1, placed_at=datetime(2030, 1, 1, tzinfo=UTC)), id="order-1")

    assert fields == {
        "topic": "orders.close",
        "body": {"number": 1, "placed_at": "2030-01-01T00:00:00Z"},
        "delay": 1800.0,
        "max_attempts": 5,
        "backoff": {"kind": "fixed", "seconds": 3.0, "jitter": 0.0},
        "id": "order-1",
    }


def test_a_put_is_a_json_object_for_programs_that_put_later() -> None:
    close = job("orders.close", Order, delay=timedelta(minutes=30), tags=["shop"])
    order = Order(number=1, placed_at=datetime(2030, 1, 1, tzinfo=UTC))

    put = json.loads(close.to_json(order, id="order-1", delay=timedelta(hours=1), backoff=FixedBackoff(seconds=5)))

    assert put == {
        "topic": "orders.close",
        "body": {"number": 1, "placed_at": "2030-01-01T00:00:00Z"},
        "tags": ["shop"],
        "id": "order-1",
        "delay": 3600,
        "backoff": {"kind": "fixed", "seconds": 5, "jitter": 0},
    }
    first, second = (json.loads(close.to_json(order)) for _ in range(2))
    assert (first["on_conflict"], first["id"] == second["id"]) == ("keep", False)
    with pytest.raises(InvalidInput, match="tags"):
        close.to_json(order, tags=["two words,"] * 100)


def test_the_options_of_a_put_override_the_defaults() -> None:
    close = job("t", int, delay=10, max_attempts=5, ttl=60, ttr=7, on_conflict="keep")
    at = datetime(2030, 1, 1, tzinfo=UTC)

    fields = close.fields(1, delay=0, max_attempts=None, ttr=None, on_conflict="reject")

    assert fields == {
        "topic": "t", "body": 1, "delay": 0, "max_attempts": None, "ttl": 60, "ttr": 7, "on_conflict": "reject"
    }  # fmt: skip
    scheduled = close.fields(1, run_at=at)
    assert scheduled["run_at"] == at
    assert "delay" not in scheduled, "an instant replaces the default delay"


def test_changing_the_fields_of_one_put_leaves_the_defaults_as_they_are() -> None:
    close = job("t", int, backoff=FixedBackoff(seconds=3))

    close.fields(1)["backoff"]["seconds"] = 99

    assert close.fields(1)["backoff"]["seconds"] == 3


@pytest.mark.parametrize(
    ("body_type", "body", "as_json"),
    [
        (Trial, {"days": 30}, {"days": 30}),
        (Point, Point(1), {"x": 1}),
        (list[int], [1, 2], [1, 2]),
        (int | None, None, None),
        (Aliased, Aliased(orderNumber=7), {"orderNumber": 7}),
        (Any, {"any": [1, None]}, {"any": [1, None]}),
    ],
)
def test_a_body_is_read_as_it_was_put(body_type: Any, body: Any, as_json: Any) -> None:
    definition = job("t", body_type)

    assert definition.fields(body)["body"] == as_json
    assert definition.read(delivery_of(body=as_json)) == body


@pytest.mark.parametrize(
    ("body_type", "body", "reason"),
    [
        (Order, {"number": "one"}, r"^body\.number: Input should be a valid integer"),
        (Order, None, "^body: Input should be a valid dictionary or instance of Order"),
        (Order, _wrong_order(), r"^body\.number: Input should be a valid integer"),
        (object, object(), "^body: cannot be written as JSON: Unable to serialize unknown type"),
        (OneWay, OneWay(number=1), r"^body\.number: Field required"),
        (float, float("nan"), "^body: is nan, which JSON cannot represent"),
        (dict[str, Any], {"a": [float("inf")]}, r"^body\.a\.0: is inf, which JSON cannot represent"),
        (Any, float("-inf"), "^body: is -inf, which JSON cannot represent"),
    ],
)
def test_a_body_that_the_consumer_could_not_parse_is_refused_before_it_is_sent(
    body_type: Any, body: Any, reason: str
) -> None:
    definition = job("t", body_type)

    with Client(NO_SERVICE, retry_for=0) as client, pytest.raises(InvalidInput, match=reason):
        definition.bind(client).put(body)
    with pytest.raises(InvalidInput, match=reason):
        asyncio.run(definition.bind(AsyncClient(NO_SERVICE, retry_for=0)).put(body))


def test_a_body_of_another_program_is_validated_when_it_is_read() -> None:
    with pytest.raises(InvalidInput, match=r"^body\.number: Field required") as refused:
        job("t", Order).read(delivery_of(body={"no": 1}))
    assert refused.value.field_errors[0].path == ("body", "number")


def test_an_invalid_definition_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"topic: .*pattern"):
        job("no topic", Order)
    with pytest.raises(InvalidInput, match=r"ttr: .*greater than or equal to 0.1"):
        job("t", Order, ttr=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'id': the options are ttr"):
        job("t", Order, id="a")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"the body of job 't' is .*Unknown.*cannot validate"):
        job("t", Unknown)


def test_an_unknown_option_of_a_put_is_a_type_error() -> None:
    unknown: dict[str, Any] = {"dely": 5}
    refusal = r"unexpected keyword argument 'dely': the options are ttr, .*, id,"
    with Client(NO_SERVICE, retry_for=0) as client:
        with pytest.raises(TypeError, match=refusal):
            client.put("t", **unknown)
        with pytest.raises(TypeError, match=refusal):
            job("t", Order).bind(client).put(Order(number=1), **unknown)


def test_every_option_of_a_put_is_sent() -> None:
    options: PutOptions = {
        "id": "a", "delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC), "ttr": 2, "max_attempts": None,
        "backoff": {"kind": "fixed"}, "ttl": None, "retain": 3, "on_conflict": "keep", "traceparent": "x",
        "durability": "fsync", "tags": ["x"], "headers": {"x": "y"}, "dead_retain": 4, "time_limit": 5, "deadline": 6,
        "conflict_with": "live", "if_reserved": "after", "max_wait": 5, "max_items": 7, "unique_for": 6,
        "window": "office", "spread": 8, "on_end": {"topic": "ended"}, "group": "g", "priority": 9, "batch": "b",
    }  # fmt: skip
    assert options.keys() == PutOptions.__annotations__.keys()
    assert put_fields("t", 1, options) == {"topic": "t", "body": 1, **options}
    left_out = dict.fromkeys(PutOptions.__annotations__)
    assert put_fields("t", 1, left_out) == {
        "topic": "t", "body": 1, "max_attempts": None, "ttl": None, "time_limit": None, "deadline": None,
        "window": None, "spread": None, "on_end": None,
    }  # fmt: skip


# Handlers


def result_of(function: Any, body: Any) -> Any:
    positional, named = Handler(job("t", Order), function).arguments(body, context_of(body))
    return function(*positional, **named)


def test_a_handler_of_a_definition_gets_the_body_as_its_type() -> None:
    def takes_order(order: Order) -> Any:
        return order

    def takes_base(document: Document, context: Context) -> Any:
        return document

    def takes_any(order: Any) -> Any:
        return order

    def takes_object(order: object) -> Any:
        return order

    for function in (takes_order, takes_base, takes_any, takes_object, lambda order: order):
        assert result_of(function, {"number": 1}) == Order(number=1)
    with pytest.raises(InvalidBody, match=r"^the body does not fit: number: Field required"):
        result_of(takes_any, {})


def test_a_handler_that_takes_another_type_than_the_definition_is_refused() -> None:
    worker = Worker()
    close = job("orders.close", Order)

    def takes_number(number: int) -> None: ...
    def takes_dict(body: dict[str, Any]) -> None: ...
    def takes_another(trial: Trial) -> None: ...

    for function in (takes_number, takes_dict, takes_another):
        with pytest.raises(
            TypeError,
            match=rf"{function.__name__}, for topic 'orders\.close', takes .*, but .* defined as Order",
        ):
            worker.handler(close)(function)
    assert not worker.topics

    @worker.handler(close, time_limit=5)
    def takes_nothing() -> None: ...

    assert [*worker.topics] == ["orders.close"]
    with pytest.raises(ValueError, match=r"topic 'orders.close' has a handler already"):
        worker.handler("orders.close")(takes_nothing)
