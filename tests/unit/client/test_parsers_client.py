"""Arbitrary responses are parsed by the contract or raise a DeferdError; arbitrary jobs are encoded or refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from deferd import Context
from deferd.client import job_requests, topics
from deferd.client.consuming import finish_many, pop
from deferd.client.request_body import JobRef, as_json, instant
from deferd.client.requests import ApiRequest, ready
from deferd.contract.errors import DeferdError, InvalidInput
from deferd.contract.model import DeadReason, JobState
from deferd.contract.operations.response import Response
from deferd.contract.operations.topics import TopicView
from deferd.worker.handlers import Handler, InvalidBody
from tests.deliveries import delivery_of
from tests.drawn_input import contents, drawn, json_values, objects_with, outcome, plain_texts, texts
from tests.kept_requests import request_of

REQUESTS: dict[str, ApiRequest[Any]] = {
    "put": job_requests.put({"topic": "t", "id": "a"}),
    "put_many": job_requests.put_many([{"topic": "t"}]),
    "look": request_of(lambda client: client.get("t", "a")),
    "change": request_of(lambda client: client.change("t", "a", ttr=5)),
    "cancel": job_requests.cancel("t", "a"),
    "cancel_many": request_of(lambda client: client.cancel_many("t", ["a"])),
    "pop": pop("t"),
    "finish": job_requests.finish(JobRef("t", "a")),
    "release": request_of(lambda client: client.release(JobRef("t", "a"))),
    "touch": request_of(lambda client: client.touch(JobRef("t", "a"))),
    "bury": request_of(lambda client: client.bury(JobRef("t", "a"))),
    "finish_many": finish_many("t", [JobRef("t", "a")]),
    "check_many": request_of(lambda client: client.check_many("t", [JobRef("t", "a", "1.1")])),
    "return_many": request_of(lambda client: client.return_many("t", [JobRef("t", "a", "1.1")])),
    "topics": request_of(lambda client: client.topics()),
    "topic": request_of(lambda client: client.topic("t")),
    "set_topic": request_of(lambda client: client.set_topic("t", {})),
    "pause": request_of(lambda client: client.pause("t")),
    "jobs": topics.jobs("t"),
    "redrive": request_of(lambda client: client.redrive("t")),
    "purge": request_of(lambda client: client.purge("t")),
    "ready": ready(),
    "metrics": request_of(lambda client: client.metrics()),
}

# Unexpected values in a response, including those that Python accepts as JSON and JSON does not.
odd = st.one_of(json_values, st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e308, 10**400, "9" * 30]))
instants = st.sampled_from(["2030-01-31T09:30:00.000Z", "0001-01-01T00:00:00+23:59", "soon", ""])
states = st.sampled_from([*map(str, JobState), "cancelled", "lost"])
job_fields: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.just("t"),
    "id": st.just("a"),
    "state": states,
    "body": json_values,
    "created_at": instants,
    "due_at": instants,
    "ttr": st.just(60),
    "attempts": st.just(1),
    "max_attempts": st.none(),
    "backoff": st.just({"kind": "fixed", "seconds": 1, "jitter": 0}),
    "ttl": st.none(),
    "retain": st.just(0),
    "reserved_until": instants,
    "receipt": st.just("000000000001.1"),
    "attempt": st.just(1),
    "reason": st.sampled_from([*map(str, DeadReason), "boredom"]),
}
jobs = objects_with(job_fields, odd)
topic_views = objects_with(
    {
        "topic": st.just("t"),
        "paused": st.booleans(),
        "counts": st.dictionaries(states, st.integers(0, 5), max_size=3),
        "settings": objects_with({"ttr": st.just(3), "max_jobs": st.just(5)}, odd),
        "next_due_at": instants,
    },
    odd,
)
results = st.lists(
    objects_with({"topic": st.just("t"), "id": st.just("a"), "status": st.just(201)}, odd) | odd, max_size=2
)
near_responses = st.one_of(
    jobs,
    topic_views,
    objects_with(
        {
            "jobs": st.lists(jobs | odd, max_size=2),
            "topics": st.lists(topic_views | odd, max_size=2),
            "results": results,
            "next_cursor": st.none() | plain_texts,
            "unavailable": st.lists(plain_texts | odd, max_size=2),
            "unreadable_shards": st.lists(st.integers(0, 5) | odd, max_size=2),
            "redriven": st.integers(0, 5),
            "removed": st.integers(0, 5),
            "was": states,
            **job_fields,
        },
        odd,
    ),
)
problems = objects_with(
    {
        "code": st.sampled_from(
            ["validation", "payload_too_large", "job_exists", "topic_full", "job_not_found", "new_one"]
        ),
        "detail": plain_texts,
        "topic": st.just("t"),
        "id": st.just("a"),
        "max_jobs": st.just(5),
        "limit_bytes": st.integers(0, 2**20),
        "errors": st.lists(
            objects_with({"field": st.sampled_from(["body.jobs.3.ttr", "", "..", "²"]), "message": plain_texts}, odd)
            | odd,
            max_size=2,
        ),
    },
    odd,
)
bodies = st.one_of(contents, (near_responses | problems | odd).map(lambda value: json.dumps(value).encode()))
retry_afters = st.none() | texts | st.sampled_from(["3", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 5000, "9" * 400, "٣"])


@pytest.mark.parametrize("name", REQUESTS)
@drawn(60)
@given(
    status=st.sampled_from([200, 200, 200, 201, 204, 301, 404, 409, 422, 429, 500, 503]),
    content=bodies,
    wait=retry_afters,
)
def test_a_response_is_read_or_is_a_deferd_error(name: str, status: int, content: bytes, wait: str | None) -> None:
    result, error = outcome(lambda: REQUESTS[name].read_response(status, content, wait), DeferdError)
    if error is not None:
        assert str(error)
        assert 0 <= (getattr(error, "retry_after_s", None) or 0) <= 10**9
    for view in views_in(result):
        assert isinstance(view.fields, dict)
        assert repr(view)


def views_in(result: Any) -> Iterator[Response | TopicView]:
    match result:
        case Response() | TopicView():
            yield result
        case list() | tuple():
            for one in result:
                yield from views_in(one)


moments = st.datetimes() | st.sampled_from(
    [datetime.fromisoformat(text) for text in ("0001-01-01", "9999-12-31T23:59")]
)
zones = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@drawn(200)
@given(at=st.builds(lambda moment, zone: moment.replace(tzinfo=zone), moments, zones))
def test_an_instant_is_written_in_utc_or_refused(at: datetime) -> None:
    try:
        written = instant("run_at", at)
    except InvalidInput:
        assert at.utcoffset() is None or not 1 < at.year < 9999
        return
    assert abs(datetime.fromisoformat(written) - at) < timedelta(milliseconds=1)
    assert written.endswith("+00:00")


puts = objects_with(
    {
        "topic": st.just("t"),
        "id": st.just("a"),
        "body": odd,
        "delay": st.timedeltas() | st.integers(),
        "run_at": st.datetimes(),
    },
    st.one_of(odd, st.binary(max_size=5), st.builds(object), st.datetimes(), st.text(max_size=5)),
)


def change_to(job: dict[str, Any]) -> ApiRequest[Any]:
    changed = {name: job[name] for name in ("body", "delay", "run_at") if name in job}
    return request_of(lambda client: client.change("t", "a", **changed))


@drawn(300)
@given(job=puts)
def test_a_job_is_written_as_json_or_refused(job: dict[str, Any]) -> None:
    for make in (
        job_requests.put,
        lambda it: job_requests.put_many([it]),
        change_to,
        as_json,
    ):
        try:
            made = make(job)
        except InvalidInput:
            continue
        if isinstance(made, ApiRequest):
            assert made.body is not None
            from_json(made.body)


# How a worker parses a body


class Line(BaseModel):
    sku: str
    price: Decimal


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: int
    lines: list[Line] = []
    paid_at: datetime | None = None


@dataclass
class Point:
    x: int
    y: float


def of_model(order: Order) -> None: ...
def of_dataclass(point: Point) -> None: ...
def of_dict(fields: dict[str, int]) -> None: ...
def of_whole_number(number: int) -> None: ...
def of_number(number: float) -> None: ...
def of_instant(at: datetime) -> None: ...
def of_span(span: timedelta) -> None: ...
def of_bytes(raw: bytes) -> None: ...
def of_union(either: UUID | list[str] | None) -> None: ...
def of_anything(body) -> None: ...  # type: ignore[no-untyped-def]


HANDLERS: list[Callable[..., None]] = [
    *(
        of_model,
        of_dataclass,
        of_dict,
        of_whole_number,
        of_number,
        of_instant,
        of_span,
        of_bytes,
        of_union,
        of_anything,
    ),
]
fitting = st.one_of(
    objects_with(
        {"id": st.integers(), "lines": st.lists(objects_with({"sku": st.just("s"), "price": odd}, odd), max_size=2)},
        odd,
    ),
    objects_with({"x": st.integers(), "y": st.integers()}, odd),
    st.dictionaries(plain_texts, st.integers(), max_size=3),
    st.integers(),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    odd,
)


async def no_touch(_context: Context) -> None:
    raise AssertionError("nobody touches here")


@pytest.mark.parametrize("function", HANDLERS, ids=lambda function: function.__name__)
@drawn(80)
@given(body=fitting)
def test_a_body_is_parsed_into_the_argument_or_does_not_fit(function: Callable[..., None], body: Any) -> None:
    sent = from_json(json.dumps(body))  # as the client reads it
    loop = asyncio.new_event_loop()
    loop.close()
    context = Context(delivery_of(body=sent), no_touch, loop)
    arguments, refused = outcome(lambda: Handler("t", function).arguments(sent, context), InvalidBody)
    if arguments is not None:
        function(*arguments[0], **arguments[1])
    else:
        assert str(refused).startswith("the body does not fit: ")
        str(refused).encode()
