"""Audit and repair over HTTP, and by the client."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from deferd import AsyncClient, Client, TopicNotFound
from tests.acceptance.cli.damaged_store import BreakableService
from tests.acceptance.http_calls import NO_TLS
from tests.waiting import wait_until


def call(broken: BreakableService, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, broken.service.url + path, timeout=30, trust_env=False, verify=NO_TLS, **options)


def put_two(broken: BreakableService, topic: str) -> None:
    with Client(broken.service.url) as client:
        client.put(topic, id="a")
        client.put(topic, id="b", delay=60)


def test_a_consistent_topic_is_clean_and_its_sums_are_reported(broken: BreakableService, topic: str) -> None:
    put_two(broken, topic)
    response = call(broken, "GET", f"/topics/{topic}/audit")
    assert response.status_code == 200
    assert response.json() == {
        "topic": topic,
        "clean": True,
        "repaired": False,
        "checked": 2,
        "counts": {"delayed": 1, "ready": 1, "reserved": 0, "dead": 0, "finished": 0},
        "sums": {"put": 2, "finished": 0, "cancelled": 0, "dropped": 0, "lost": 0, "dead": 0, "live": 2},
        "timer_overdue": 0,
        "findings": [],
        "examples": [],
    }


def test_damage_is_reported_and_changed_only_by_a_repair(broken: BreakableService, topic: str) -> None:
    put_two(broken, topic)
    broken.lose_from_list(topic, "a")
    broken.lose_record(topic, "b")
    for _ in range(2):
        found = call(broken, "GET", f"/topics/{topic}/audit").json()
        assert (found["clean"], found["repaired"]) == (False, False)
        assert {one["kind"]: one["found"] for one in found["findings"]} == {
            "in_no_place": 1,
            "no_record": 1,
            "tally_off": 1,
        }
        assert all(one["meaning"] and one["repair"] for one in found["findings"])
        assert {"a", "b", topic} == {example["subject"] for example in found["examples"]}

    repaired = call(broken, "POST", f"/topics/{topic}/repair")
    assert repaired.status_code == 200
    assert repaired.json()["repaired"]
    assert repaired.json()["sums"]["lost"] == 1
    assert call(broken, "GET", f"/topics/{topic}/audit").json()["clean"]
    [job] = call(broken, "GET", f"/topics/{topic}/pop", params={"wait": 0, "count": 10}).json()["jobs"]
    assert job["id"] == "a"


def test_a_waiting_consumer_gets_the_job_that_a_repair_put_back(broken: BreakableService, topic: str) -> None:
    with Client(broken.service.url) as client:
        client.put(topic, id="a")
        broken.lose_from_list(topic, "a")
        assert client.pop(topic, wait=0) == []
        assert client.repair(topic).findings == {"in_no_place": 1}
        [job] = client.pop(topic)
        client.finish(job)


@pytest.mark.slow
def test_an_audit_ends_when_its_client_disconnects(broken: BreakableService, topic: str) -> None:
    with Client(broken.service.url) as client:
        for _ in client.put_many({"topic": topic, "delay": 60} for _ in range(30_000)):
            pass
        client.put(f"{topic}.small", delay=60)
        whole = steps_of(broken, lambda: client.audit(topic))

        def disconnect() -> None:
            with socket.create_connection(("127.0.0.1", broken.service.port)) as caller:
                before = steps(broken)
                caller.sendall(f"GET /topics/{topic}/audit HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                wait_until(lambda: steps(broken) > before, 10, "the audit has begun")
            client.audit(f"{topic}.small")  # which runs when the other has ended

        assert steps_of(broken, disconnect) < whole / 2


def steps(broken: BreakableService) -> int:
    """How many scripts the store has run so far."""
    calls: int = broken.store.command("INFO", "commandstats")["cmdstat_fcall"]["calls"]
    return calls


def steps_of(broken: BreakableService, act: Callable[[], object]) -> int:
    before = steps(broken)
    act()
    return steps(broken) - before


def test_the_audit_of_an_unknown_topic_is_404(broken: BreakableService, topic: str) -> None:
    for method, path in (("GET", "audit"), ("POST", "repair")):
        response = call(broken, method, f"/topics/{topic}/{path}")
        assert (response.status_code, response.json()["code"]) == (404, "topic_not_found")


def test_an_audit_refuses_unknown_parameters(broken: BreakableService, topic: str) -> None:
    put_two(broken, topic)
    refused = [
        call(broken, "GET", f"/topics/{topic}/audit?repair=true"),
        call(broken, "POST", f"/topics/{topic}/repair", json={"dry": True}),
        call(broken, "GET", "/audit?x=1"),
        call(broken, "GET", "/topics/a%20b/audit"),
    ]
    assert [response.json()["code"] for response in refused] == ["validation"] * 4
    assert call(broken, "GET", f"/topics/{topic}/repair").status_code == 405


def test_the_audit_of_the_store_finds_topics_missing_from_the_list(broken: BreakableService, topic: str) -> None:
    put_two(broken, topic)
    assert call(broken, "GET", "/audit").json() == {
        "clean": True,
        "repaired": False,
        "unlisted": [],
        "findings": [],
        "examples": [],
        "stray_keys": [],
        "stray_count": 0,
    }
    broken.unlist(topic)
    with Client(broken.service.url) as client:
        assert list(client.topics()) == []
        store = client.audit_store()
        assert (store.clean, store.unlisted) == (False, [topic])
        assert client.repair(topic).findings == {"unknown_topic": 1}
        assert [view.topic for view in client.topics()] == [topic]
        assert client.audit_store().clean


def test_a_store_key_of_the_wrong_type_is_renamed(broken: BreakableService, topic: str) -> None:
    put_two(broken, topic)
    broken.replace_by_text("topics")
    assert call(broken, "GET", "/topics").status_code == 500
    found = call(broken, "GET", f"/topics/{topic}/audit").json()
    assert [one["kind"] for one in found["findings"]] == ["wrong_type"]
    assert {"counts", "sums"}.isdisjoint(found)
    assert found["unchecked"]
    with Client(broken.service.url) as client:
        assert client.repair_store().findings == {"wrong_type": 1}
        assert client.repair(topic).findings == {"unknown_topic": 1}
        assert [view.topic for view in client.topics()] == [topic]


async def test_the_client_reads_an_audit(broken: BreakableService, topic: str) -> None:
    async with AsyncClient(broken.service.url) as client:
        with pytest.raises(TopicNotFound):
            await client.audit(topic)
        await client.put(topic, id="a")
        sound = await client.audit(topic)
        assert (sound.topic, sound.clean, sound.repaired, sound.checked, sound.unchecked) == (
            topic,
            True,
            False,
            1,
            None,
        )
        assert sound.counts is not None
        assert sound.counts["ready"] == 1
        assert sound.sums is not None
        assert sound.sums["live"] == 1
        broken.lose_from_list(topic, "a")
        damaged = await client.audit(topic)
        assert not damaged.clean
        [example] = damaged.examples
        assert (example.kind, example.subject) == ("in_no_place", "a")
        assert (await client.repair(topic)).repaired
        assert (await client.repair_store()).clean
