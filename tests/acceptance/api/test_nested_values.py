"""How deeply a body or a result may be nested: the same for each call that takes one, and all that return it can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from deferd import Client, InvalidInput
from deferd.contract import limits
from tests.acceptance.cli.command_line import Shell
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
