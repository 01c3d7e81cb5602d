"""Bodies and results at their bounds: how deeply they may be nested, and how large they may be, in each call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from deferd import Client, InvalidInput
from deferd.contract import limits
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, ok
from tests.acceptance.resp_calls import redis_client
from tests.acceptance.service_process import ServiceProcess


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


DEEPEST = nested(limits.VALUE_DEPTH_MAX)
TOO_DEEP = nested(limits.VALUE_DEPTH_MAX + 1)


@pytest.fixture
def client(resp_service: ServiceProcess) -> Iterator[Client]:
    with Client(resp_service.url) as client:
        yield client


@pytest.fixture
def resp(resp_service: ServiceProcess) -> Iterator[redis.Redis]:
    with redis_client(resp_service) as client:
        yield client


def put_in_each_way(client: Client, resp: redis.Redis, topic: str, body: Any) -> Iterator[Any]:
    """A call for each way to store a body; the fast path of the service takes some of them."""
    yield lambda: client.put(topic, body)
    yield lambda: client.put(topic, body, backoff={"kind": "fixed", "seconds": 1})
    yield lambda: client.put(topic, body, id="a", on_conflict="append")
    yield lambda: client.put_batch([{"topic": topic, "body": body}, {"topic": topic}])
    yield lambda: client.put_batch([{"topic": topic, "body": body, "deadline": 9}, {"topic": topic}])
    yield lambda: client.change(topic, client.put(topic).id, body=body)
    yield lambda: client.finish(reserved(client, topic), put=[{"topic": topic, "body": body}])
    yield lambda: resp.execute_command("DEFERD.PUT", topic, "*", json.dumps(body), "JSON")


def reserved(client: Client, topic: str) -> Any:
    client.put(f"{topic}.other", retain=60)
    [job] = client.pop(f"{topic}.other", wait=0)
    return job


def test_what_one_call_accepts_all_accept_and_all_return(
    client: Client, resp: redis.Redis, resp_service: ServiceProcess, topic: str
) -> None:
    calls = list(put_in_each_way(client, resp, topic, DEEPEST))
    for call in calls:
        call()

    listed = [job.body for job in client.jobs(topic)]
    assert len(calls) == sum(body in (DEEPEST, [DEEPEST]) for body in listed)
    popped = client.pop(topic, count=len(listed) - 1, wait=0)
    assert listed[:-1] == [job.body for job in popped]
    assert listed[:-1] == [job.fields["body"] for job in popped]
    [last] = Shell(resp_service.url).json("pop", topic)
    assert listed[-1] == last["body"]
    job = reserved(client, topic)
    client.finish(job, DEEPEST)
    assert client.get(job.topic, job.id).result == DEEPEST
    client.put_schedule(topic, topic, every=60, paused=True, job={"body": DEEPEST})
    [schedule] = client.schedules(prefix=topic)
    assert schedule.fields["job"]["body"] == DEEPEST
    client.delete_schedule(topic)


def test_what_one_call_refuses_all_refuse(client: Client, resp: redis.Redis, topic: str) -> None:
    text = f"is nested deeper than {limits.VALUE_DEPTH_MAX} levels"
    for call in put_in_each_way(client, resp, topic, TOO_DEEP):
        with pytest.raises((InvalidInput, redis.ResponseError), match=text):
            call()
    for result in (TOO_DEEP, {"n": TOO_DEEP}):
        with pytest.raises(InvalidInput, match=text):
            client.finish(reserved(client, topic), result)
    with pytest.raises(InvalidInput, match=text):
        client.put_schedule(topic, topic, every=60, job={"body": TOO_DEEP})
    assert [None] == [job.body for job in client.jobs(topic)]  # the one that was not changed


# Large ones

LISTS = f"[{'[],' * 60_000}0]"
VALUE = json.loads(LISTS)


async def send(http: Http, method: str, path: str, text: str) -> httpx.Response:
    return await http.client.request(method, path, content=text % {"lists": LISTS, "topic": http.topic})


async def sent(http: Http, method: str, path: str, text: str) -> Any:
    response = await send(http, method, path, text)
    assert response.is_success, response.text[:500]
    return response.json()


async def test_each_operation_with_a_value_stores_it(http: Http) -> None:
    job, topic = f"/jobs/{http.topic}/a", f"/topics/{http.topic}"
    put = await sent(http, "POST", "/jobs", '{"topic":"%(topic)s","id":"a","body":%(lists)s,"retain":60,"tags":["x"]}')
    assert put["body"] == VALUE
    assert (await sent(http, "PATCH", job, '{"body":{"k": %(lists)s}}'))["body"] == {"k": VALUE}
    await sent(http, "POST", "/jobs", '{"topic":"%(topic)s","id":"a","body":%(lists)s,"on_conflict":"append"}')
    [popped] = ok(await http.client.get(f"{topic}/pop", params={"wait": 0}))["jobs"]
    assert popped["body"] == [{"k": VALUE}, VALUE]
    puts = '{"result":[%(lists)s],"put":[{"topic":"%(topic)s","id":"b","retain":60,"body":%(lists)s}]}'
    await sent(http, "POST", f"{job}/finish", puts)
    assert ok(await http.client.get(job))["result"] == [VALUE]
    [popped] = ok(await http.client.get(f"{topic}/pop", params={"wait": 0}))["jobs"]
    assert popped["body"] == VALUE
    await sent(http, "POST", f"{topic}/finish", '{"jobs":[{"id":"b","result":%(lists)s}]}')
    assert ok(await http.client.get(f"/jobs/{http.topic}/b"))["result"] == VALUE
    batch = '{"jobs":[{"topic":"%(topic)s","id":"c","body":%(lists)s},{"topic":"%(topic)s","id":"d","body": {"x": 1}}]}'
    await sent(http, "POST", "/jobs/batch", batch)
    jobs = ok(await http.client.get(f"{topic}/pop", params={"wait": 0, "count": 2}))["jobs"]
    assert {one["id"]: one["body"] for one in jobs} == {"c": VALUE, "d": {"x": 1}}


async def test_a_schedule_stores_the_value_of_its_job(http: Http) -> None:
    path = f"/schedules/{http.topic}"
    await sent(http, "PUT", path, '{"topic":"%(topic)s","every":3600,"job":{"ttr":9,"body":%(lists)s}}')
    assert ok(await http.client.get(path))["job"] == {"ttr": 9, "body": VALUE}
    assert (await sent(http, "POST", f"{path}/run", ""))["body"] == VALUE
    await http.client.delete(path)


async def test_an_error_does_not_quote_it(http: Http) -> None:
    for method, path, field in (
        ("POST", "/jobs", "result"),
        ("POST", f"/jobs/{http.topic}/a/release", "body"),
        ("PUT", f"/topics/{http.topic}", "body"),
    ):
        response = await send(http, method, path, f'{{"{field}":%(lists)s,"ttr":9,"topic":"%(topic)s"}}')
        assert response.status_code == 422
        errors = {error["field"]: error for error in response.json()["errors"]}
        assert errors[f"body.{field}"].keys() == {"field", "message", "pointer"}
