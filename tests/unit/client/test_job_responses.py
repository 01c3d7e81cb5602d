"""Responses with jobs and the results of batches, as the client reads them."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import UNSET

from deferd.client import Delivery, EndedAttempt
from deferd.client.consuming import finish_many, pop
from deferd.client.errors import UnexpectedAnswer
from deferd.client.job_requests import put_many
from deferd.client.requests import reader_of
from deferd.client.topics import jobs
from deferd.contract.backoff import ExponentialBackoff
from deferd.contract.model import AttemptEnd, JobState
from deferd.contract.operations.bulk import BulkResult
from tests.deliveries import FIELDS, delivery_of

read_deliveries, read_jobs = pop("t").read, jobs("t").read
READ: dict[str, Callable[[bytes], list[Any]]] = {
    "deliveries": read_deliveries,
    "put_results": put_many([]).read,
    "finish_results": finish_many("t", []).read,
}
DELIVERY: dict[str, Any] = FIELDS | {
    "body": {"order": 1042},
    "retain": 0.5,
    "reserved_by": "worker-1",
    "spread": 5,
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tags": ["order-1042"],
    "headers": {"tenant": "7"},
    "group": "customer-7",
    "priority": 2,
    "snoozes": 2,
    "attempts_log": [
        {"attempt": 1, "ended_at": "2030-01-31T09:30:02.000Z", "how": "released", "by": "worker-1"},
        {"attempt": 2, "ended_at": "2030-01-31T09:30:03.000Z", "how": "lease_ended"},
    ],
    "last_error": "first line\nsecond",
}
BODIES = [
    "null",
    "{}",
    '{"a":1,"a":2}',
    "123456789012345678901234567890",
    "1e400",
    "[1.50,-0.0,1e22,2.0]",
    '"é😀"',
    r'"\\ \n \" \/"',
    r'"\u00e9"',
    r'"\ud83d\ude00"',
    "[[[]]]",
]
NO_DELIVERIES = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"jobs":null}',
    b'{"jobs":[null]}',
    b'{"jobs":[{"id":"a"}]}',
    b'{"jobs":[]}x',
]
NO_PUT_RESULTS = [
    b'{"results":[null]}',
    b'{"results":[{"topic":"t","id":"a","status":200,"code":5}]}',
    b'{"results":[{"topic":"t","id":"a","status":200,"durability":[]}]}',
    b'{"results":[{"topic":"t","id":"a","status":200,"state":5}]}',
    b'{"results":[{"topic":"t","id":"a"}]}',
    b'{"results":[{"topic":"t","id":"a","status":"x","code":null}]}',
    b'{"results":[{"topic":"t","id":"a\xff","status":200}]}',
]


def response(*jobs: dict[str, Any]) -> bytes:
    return json.dumps({"jobs": jobs}, separators=(",", ":"), ensure_ascii=False).encode()


def with_body(text: bytes) -> bytes:
    return response({**DELIVERY, "body": 0}).replace(b'"body":0', b'"body":%b' % text)


def popped(**changes: Any) -> Delivery:
    """A delivery as it is read from the response to a pop."""
    return read_deliveries(response({**DELIVERY, **changes}))[0]


def test_the_fields_are_those_of_the_response() -> None:
    assert popped().fields == DELIVERY


def test_values_have_the_types_of_python() -> None:
    job = popped()
    assert job.state is JobState.RESERVED
    assert job.due_at == datetime(2030, 1, 31, 9, 30, 1, 500_000, UTC)
    assert job.backoff == ExponentialBackoff()
    assert (type(job.ttr), job.ttr, job.spread) == (float, 60, 5)
    first, second = job.attempts_log
    assert isinstance(first, EndedAttempt)
    assert (first.how, first.by, second.how, second.by) == (AttemptEnd.RELEASED, "worker-1", AttemptEnd.LEASE, None)


def test_what_a_job_does_not_have_has_a_value_too() -> None:
    job = delivery_of()
    assert (job.spread, job.snoozes, job.unique_for, job.items, job.is_follow_up) == (0, 0, 0, 0, False)
    assert (job.tags, job.headers, job.attempts_log, job.group, job.priority) == ((), {}, (), None, 0)
    assert {None} == {job.max_attempts, job.ttl, job.deadline_at, job.reason, job.result, job.durability, job.window}


def test_fields_of_later_services_are_ignored() -> None:
    assert popped(later=[1]).fields == DELIVERY


@pytest.mark.parametrize("again", [lambda job: job, copy.deepcopy, lambda job: pickle.loads(pickle.dumps(job))])  # noqa: S301
def test_values_of_later_services_are_read(again: Any) -> None:
    ended = [{"attempt": 1, "ended_at": "2030-01-31T09:30:02.000Z", "how": "evicted"}]
    fields = DELIVERY | {"state": "parked", "reason": "banned", "attempts_log": ended}
    [sent, usual] = read_deliveries(response(fields, DELIVERY))
    job = again(sent)
    assert (job.state, job.reason, job.attempts_log[0].how) == ("parked", "banned", "evicted")
    assert isinstance(job.state, JobState)
    assert job.fields == fields
    assert usual.state is JobState.RESERVED
    with pytest.raises(ValueError, match="parked"):
        JobState("parked")


def test_states_of_later_services_are_read_in_all_results() -> None:
    [put] = put_many([]).read(b'{"results":[{"topic":"t","id":"a","status":200,"state":"parked"}]}')
    assert put.state == "parked"
    counted = reader_of(BulkResult)(b'{"matched":3,"done":3,"was":{"parked":2,"ready":1},"complete":true}')
    assert counted.was[JobState.READY] == 1
    assert counted.fields["was"] == {"parked": 2, "ready": 1}


def test_it_is_shown_without_its_body() -> None:
    assert repr(popped()) == "Delivery(topic='t', id='a', state='reserved')"


def test_the_body_is_one_object() -> None:
    job = popped()
    job.body["changed"] = True
    assert job.fields["body"] is job.body


def test_a_list_without_bodies_is_read() -> None:
    fields = {name: value for name, value in FIELDS.items() if name not in {"body", "receipt", "attempt"}}
    content = json.dumps({"jobs": [{**fields, "body_bytes": 4}], "next_cursor": None})
    [job], cursor = read_jobs(content.encode())
    assert (job.body, job.body_bytes, cursor) == (UNSET, 4, None)
    assert "body" not in job.fields


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda job: pickle.loads(pickle.dumps(job))])  # noqa: S301
def test_it_can_be_copied_and_pickled(again: Any) -> None:
    assert again(popped()).fields == DELIVERY


def test_finishing_a_delivery_sends_its_id_and_receipt() -> None:
    assert finish_many("t", [popped()]).body == b'{"jobs":[{"id":"a","receipt":"0000075bcd15.1"}]}'


@pytest.mark.parametrize("body", BODIES)
def test_any_body_is_read(body: str) -> None:
    [job] = read_deliveries(with_body(body.encode()))
    assert repr(job.body) == repr(json.loads(body)) == repr(job.fields["body"])
    assert job.fields == DELIVERY | {"body": job.body}


@pytest.mark.parametrize("text", [b'"\xff"', b'"\xed\xa0\x80"', rb'"\ud800"', b'"'])
def test_a_response_that_is_no_json_is_refused_at_once(text: bytes) -> None:
    with pytest.raises(UnexpectedAnswer):
        pop("t").read_response(200, with_body(text))


@pytest.mark.parametrize(
    ("kind", "content"),
    [("deliveries", content) for content in NO_DELIVERIES]
    + [("put_results", content) for content in [*NO_DELIVERIES, *NO_PUT_RESULTS]]
    + [("finish_results", content) for content in [*NO_DELIVERIES, *NO_PUT_RESULTS[:2], *NO_PUT_RESULTS[4:]]],
)
def test_what_is_no_response_of_a_service_is_a_value_error(kind: str, content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of several parsers)
        READ[kind](content)


def test_one_job_of_a_large_response_does_not_keep_it_in_memory() -> None:
    content = response(*({**DELIVERY, "id": f"a{number}"} for number in range(900)))
    assert len(content) > 256 * 1024
    tracemalloc.start()
    held = [read_deliveries(bytes(bytearray(content)))[0] for _ in range(4)]
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(held) == 4
    assert current < len(content)


def deep_in_the_stack(read: Any, content: bytes, frames: int) -> Any:
    return read(content) if frames == 0 else deep_in_the_stack(read, content, frames - 1)


@pytest.mark.parametrize("kind", ["deliveries", "put_results", "finish_results"])
def test_a_deep_response_is_read_by_a_caller_deep_in_the_stack(kind: str) -> None:
    nested = "[" * 190 + "]" * 190
    job = {**DELIVERY, "body": 0}
    line = {"topic": "t", "id": "a", "status": 200, "job": job}
    text = json.dumps({"jobs": [job], "results": [line]})
    content = text.replace('"body": 0', f'"body": {nested}').encode()
    frames = sys.getrecursionlimit() - len(inspect.stack(0)) - 100
    read = READ[kind]
    [found] = deep_in_the_stack(read, content, frames)
    assert found.id == "a"
    if kind != "finish_results":
        assert (found if kind == "deliveries" else found.job).body == json.loads(nested)


def test_a_body_that_is_nested_deeper_than_the_service_accepts_now_is_read() -> None:
    nested = "[" * 400 + "]" * 400
    job = json.dumps({**DELIVERY, "body": 0}).replace('"body": 0', f'"body": {nested}')
    content = f'{{"jobs": [{job}], "next_cursor": null}}'.encode()

    [popped] = read_deliveries(content)
    [listed], _ = read_jobs(content)

    assert json.loads(nested) == popped.body == popped.fields["body"] == listed.body
    assert popped.receipt == DELIVERY["receipt"]


def test_a_response_that_is_nested_deeper_than_python_can_read_is_an_error() -> None:
    with pytest.raises(UnexpectedAnswer, match="nested too deeply"):
        pop("t").read_response(200, b'{"jobs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
