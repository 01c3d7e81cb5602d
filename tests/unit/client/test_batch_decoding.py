"""The responses to batches: what the fast path reads equals what the general path reads, in every field."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import random
import sys
import threading
import tracemalloc
from typing import Any

import pytest

from deferd.client import Delivery, Job, batch_decoding, responses
from deferd.client.errors import UnexpectedAnswer
from deferd.client.requests import finish_many, pop

DELIVERY: dict[str, Any] = {
    "topic": "orders.close",
    "id": "order-1042",
    "state": "reserved",
    "body": {"order": 1042},
    "created_at": "2030-01-31T09:30:00.000Z",
    "due_at": "2030-01-31T09:30:01.500Z",
    "attempts": 3,
    "ttr": 60,
    "max_attempts": None,
    "backoff": {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0},
    "ttl": None,
    "retain": 0.5,
    "reserved_until": "2030-01-31T09:31:01.500Z",
    "reserved_by": "worker-1",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "last_error": "first line\nsecond",
    "receipt": "0000075bcd15.3",
    "attempt": 3,
}
PROPERTIES = [name for name, value in vars(Job).items() if isinstance(value, property)] + ["receipt", "attempt"]
BODIES = [
    "null",
    "{}",
    '{"a":1,"a":2}',
    "123456789012345678901234567890",
    "1e400",
    "[1.50,-0.0,1e22]",
    '"é😀"',
    r'"\\ \n \" \/"',
    r'"\u00e9"',
    r'"\ud83d\ude00"',
    "[[[]]]",
]
ODD = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"jobs":null}',
    b'{"jobs":[null]}',
    b'{"jobs":[{"id":"a"}]}',
    b'{"jobs":[]}x',
    b'{"results":[null]}',
    b'{"results":[{"id":"a","status":200,"code":5}]}',
    b'{"results":[{"topic":"t","id":"a","status":200,"durability":[]}]}',
    b'{"results":[{"topic":"t","id":"a"}]}',
    b'{"results":[{"topic":"t","id":"a","status":"x","code":null}]}',
    b'{"results":[],"other":1}',
    b'{"results":[{"topic":"t","id":"a\xff","status":200}]}',
]


def response(*jobs: dict[str, Any]) -> bytes:
    return json.dumps({"jobs": jobs}, separators=(",", ":"), ensure_ascii=False).encode()


def popped(**changes: Any) -> Delivery:
    """A delivery as it is read from the response to a pop."""
    deliveries = batch_decoding.deliveries(response({**DELIVERY, **changes}))
    assert deliveries is not None
    return deliveries[0]


def outcome(read: Any, content: bytes) -> Any:
    """What is read, or the kind of error."""
    try:
        found = read(content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return type(error)
    return [(type(one), one.fields if isinstance(one, Job) else one) for one in found]


@pytest.mark.parametrize("name", PROPERTIES)
def test_each_property_is_that_of_a_job_with_fields(name: str) -> None:
    expected = getattr(Delivery(DELIVERY), name)
    job = popped()
    for _ in range(2):
        assert getattr(job, name) == expected
        assert type(getattr(job, name)) is type(expected)
    assert job.fields == DELIVERY
    assert getattr(job, name) == expected


def test_a_missing_field_is_an_error_when_it_is_read() -> None:
    content = response({name: DELIVERY[name] for name in ("topic", "id", "state", "body", "receipt", "attempt")})
    [job] = responses.read_deliveries(content)
    for name in ("ttr", "attempts", "retain"):
        with pytest.raises(KeyError, match=name):
            getattr(job, name)
    assert job.reserved_until is None


def test_it_is_shown_like_any_delivery() -> None:
    assert repr(popped()) == repr(Delivery(DELIVERY))


@pytest.mark.parametrize("fields_first", [True, False])
def test_the_body_is_one_object(*, fields_first: bool) -> None:
    job = popped()
    if fields_first:
        assert job.fields["body"] is job.body
    body = job.body
    body["changed"] = True
    assert job.body is body is job.fields["body"]


def test_jobs_of_one_response_do_not_share_fields() -> None:
    first, second = batch_decoding.deliveries(response(DELIVERY, {**DELIVERY, "id": "b", "body": 2})) or []
    assert second.fields == {**DELIVERY, "id": "b", "body": 2}
    assert first.fields == DELIVERY


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda job: pickle.loads(pickle.dumps(job))])  # noqa: S301
def test_it_can_be_copied_and_pickled(again: Any) -> None:
    job = again(popped())
    assert (job.id, job.receipt, job.body) == ("order-1042", "0000075bcd15.3", {"order": 1042})
    assert job.fields == DELIVERY


def test_threads_that_read_fields_at_the_same_time_get_them() -> None:
    for _ in range(200):
        job = popped()
        start = threading.Barrier(3)
        seen: list[Any] = []

        def read(job: Delivery = job, start: threading.Barrier = start, seen: list[Any] = seen) -> None:
            start.wait()
            seen.append((job.fields["attempts"], job.id, job.body, job.retain))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [(3, "order-1042", {"order": 1042}, 0.5)] * 3


def test_finishing_a_delivery_sends_its_id_and_receipt_whatever_was_read_before() -> None:
    untouched, read = popped(), popped()
    assert read.fields
    bodies = {finish_many("t", [job]).body for job in (untouched, read, Delivery(DELIVERY))}
    assert bodies == {b'{"jobs":[{"id":"order-1042","receipt":"0000075bcd15.3"}]}'}


@pytest.mark.parametrize("body", BODIES)
def test_any_body_is_read_as_on_the_general_path(body: str) -> None:
    content = response({**DELIVERY, "body": 0}).replace(b'"body":0', b'"body":%b' % body.encode())
    [fast], [general] = responses.read_deliveries(content), responses.general_deliveries(content)
    assert (fast.body, fast.fields) == (general.body, general.fields)
    assert repr(fast.body) == repr(general.body)


@pytest.mark.parametrize("text", [b'"\xff"', b'"\xed\xa0\x80"', rb'"\ud800"', b'"'])
def test_a_response_that_is_no_json_is_refused_at_once(text: bytes) -> None:
    content = response({**DELIVERY, "body": 0}).replace(b'"body":0', b'"body":%b' % text)
    with pytest.raises(UnexpectedAnswer):
        pop("t").read_response(200, content)


@pytest.mark.parametrize("content", ODD)
@pytest.mark.parametrize("kind", ["deliveries", "put_results", "finish_results"])
def test_unusual_responses_are_read_or_refused_as_on_the_general_path(kind: str, content: bytes) -> None:
    read, general = getattr(responses, f"read_{kind}"), getattr(responses, f"general_{kind}")
    assert outcome(read, content) == outcome(general, content)


@pytest.mark.parametrize("seed", range(20))
def test_any_results_are_read_as_on_the_general_path(seed: int) -> None:
    chance = random.Random(seed)
    usual = 0
    for _ in range(100):
        lines = []
        for _ in range(chance.randrange(6)):
            line: dict[str, Any] = {"topic": "t", "id": chance.choice(["a", "é", "", "b\n"])}
            line["status"] = chance.choice(
                [200, 201, 409, 503] if chance.random() < 0.95 else [200.0, "200", None, True]
            )
            if chance.random() < 0.5:
                line["code"] = chance.choice(["job_exists", None, ""] if chance.random() < 0.95 else [1, [], {}])
            if chance.random() < 0.5:
                line["durability"] = chance.choice(["fsync", None] if chance.random() < 0.95 else [1, True])
            if chance.random() < 0.2:
                line["job"] = {"body": [1e300, None]}
            if chance.random() < 0.02:
                del line[chance.choice([*line])]
            lines.append(line)
        content = json.dumps({"results": lines}, ensure_ascii=chance.random() < 0.5).encode()
        usual += batch_decoding.put_results(content) is not None
        for kind in ("put_results", "finish_results"):
            read, general = getattr(responses, f"read_{kind}"), getattr(responses, f"general_{kind}")
            assert outcome(read, content) == outcome(general, content)
    assert usual > 50


@pytest.mark.parametrize("seed", range(20))
def test_any_deliveries_are_read_as_on_the_general_path(seed: int) -> None:
    chance = random.Random(seed)
    odd: list[Any] = [None, 1, True, "x", [], 2.5]
    for _ in range(50):
        jobs = []
        for number in range(chance.randrange(5)):
            job = {**DELIVERY, "id": f"a{number}", "body": json.loads(chance.choice(BODIES))}
            for name in chance.sample([*job], chance.randrange(4)):
                if name not in {"topic", "id"} and chance.random() < 0.3:
                    job[name] = chance.choice(odd)
                elif chance.random() < 0.02:
                    del job[name]
            jobs.append(dict(chance.sample([*job.items()], len(job))))
        content = json.dumps({"jobs": jobs}, ensure_ascii=chance.random() < 0.2).encode()
        assert outcome(responses.read_deliveries, content) == outcome(responses.general_deliveries, content)


def test_one_job_of_a_large_response_does_not_keep_it_in_memory() -> None:
    jobs = [{**DELIVERY, "id": f"a{number}"} for number in range(900)]
    content = json.dumps({"jobs": jobs}).encode()
    assert len(content) > 256 * 1024
    assert batch_decoding.deliveries(content) is None
    tracemalloc.start()
    held = [responses.read_deliveries(bytes(bytearray(content)))[0] for _ in range(20)]
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(held) == 20
    assert current < len(content)


def deep_in_the_stack(read: Any, content: bytes, frames: int) -> Any:
    return read(content) if frames == 0 else deep_in_the_stack(read, content, frames - 1)


@pytest.mark.parametrize("kind", ["deliveries", "put_results", "finish_results"])
def test_a_deep_response_is_read_by_a_caller_deep_in_the_stack(kind: str) -> None:
    nested = "[" * 190 + "]" * 190
    line = {"topic": "t", "id": "a", "status": 200, "job": 0}
    text = json.dumps({"jobs": [{**DELIVERY, "body": 0}], "results": [line]})
    content = text.replace('"body": 0', f'"body": {nested}').replace('"job": 0', f'"job": {nested}').encode()
    frames = sys.getrecursionlimit() - len(inspect.stack(0)) - 100
    read, general = getattr(responses, f"read_{kind}"), getattr(responses, f"general_{kind}")
    [found], [expected] = (deep_in_the_stack(one, content, frames) for one in (read, general))
    assert (found.id, getattr(found, "body", None)) == (expected.id, getattr(expected, "body", None))


def test_a_body_that_is_nested_deeper_than_the_service_accepts_now_is_read() -> None:
    nested = "[" * 400 + "]" * 400
    job = json.dumps({**DELIVERY, "body": 0}).replace('"body": 0', f'"body": {nested}')
    content = f'{{"jobs": [{job}], "next_cursor": null}}'.encode()

    [popped] = responses.read_deliveries(content)
    [listed], _ = responses.read_jobs(content)

    assert json.loads(nested) == popped.body == popped.fields["body"] == listed.body
    assert popped.receipt == DELIVERY["receipt"]


def test_a_response_that_is_nested_deeper_than_python_can_read_is_an_error() -> None:
    with pytest.raises(UnexpectedAnswer, match="nested too deeply"):
        pop("t").read_response(200, b'{"jobs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
