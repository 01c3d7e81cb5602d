"""Who consumes: over HTTP, in two processes, through the client, as a command, and with keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient, Client
from deferd.client.transport import user_agent
from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, Json, moment, ok, refusal
from tests.acceptance.service_process import ServiceProcess, running_service

PUBLISHED_S = 20.0


async def when(http: Http, is_there: Callable[[list[Json]], Any]) -> list[Json]:
    """The consumers of the test's topic, once they are as wanted: processes publish them every few seconds."""
    end_s = time.monotonic() + PUBLISHED_S
    while True:
        found = ok(await http.get("/consumers", params={"limit": "1000"}))["consumers"]
        own = [one for one in found if any(http.topic in topic for topic in one["topics"])]
        if is_there(own):
            return own
        assert time.monotonic() < end_s, own
        await asyncio.sleep(0.2)


@asynccontextmanager
async def waiting(url: str, topic: str, consumer: str | None) -> AsyncIterator[AsyncClient]:
    """A consumer that waits in a pop."""
    async with AsyncClient(url, key="") as client:
        pop = asyncio.create_task(client.pop(topic, wait=60, consumer=consumer))
        try:
            yield client
        finally:
            pop.cancel()
            await asyncio.gather(pop, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["{}", "{},other", "{}*"])
async def test_a_waiting_consumer(http: Http, shared_service: ServiceProcess, pattern: str) -> None:
    topics = pattern.format(http.topic)
    async with waiting(shared_service.url, topics, "worker-w"):
        [seen] = await when(http, lambda own: own and own[0]["waiting"])
        assert moment(seen.pop("last_seen_at")) == pytest.approx(time.time(), abs=PUBLISHED_S)
        assert set(topics.split(",")) <= set(seen.pop("topics"))
        assert seen["addresses"] == ["127.0.0.1"]
        assert user_agent() in seen["clients"]
        assert (seen["name"], seen["held"], seen["lease_ends_at"]) == ("worker-w", 0, None)


@pytest.mark.slow
async def test_a_consumer_that_holds_jobs(http: Http) -> None:
    for job_id in ("a", "b"):
        await http.put_job(job_id, ttr=300)
    [first, _] = await http.pop(count=2, consumer=f"worker-{http.topic}")
    [seen] = await when(http, lambda own: own and own[0]["held"] == 2)
    assert (seen["name"], seen["lease_ends_at"]) == (f"worker-{http.topic}", first["reserved_until"])


@pytest.mark.slow
async def test_consumers_on_the_direct_path(http: Http, shared_service: ServiceProcess) -> None:
    """Their headers come for the third time, and are not parsed."""
    with Client(shared_service.url, key="") as client:
        for _ in range(5):
            client.pop(http.topic, wait=0)
    [seen] = await when(http, bool)
    assert (seen["name"], seen["held"], seen["clients"]) == (None, None, [user_agent()])
    assert http.topic in seen["topics"]  # those without a name are one consumer of their address: also of other tests


@pytest.mark.slow
async def test_why_there_is_no_consumer(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("a")
    codes = [one["code"] for one in ok(await http.get(http.job_path("a", "why")))["reasons"]]
    assert codes == ["no_consumers", "behind"]
    ok(await http.post(http.topic_path("pause")))
    async with waiting(shared_service.url, http.topic, "w"):
        await when(http, bool)
        reasons = ok(await http.get(http.job_path("a", "why")))["reasons"]
        assert [one["code"] for one in reasons] == ["paused", "behind"]
        assert reasons[1]["rate"] == 0


@pytest.mark.slow
async def test_client_and_command(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("a", ttr=300)
    await http.pop(consumer=f"w-{http.topic}")
    await when(http, lambda own: own and own[0]["held"] and own[0]["addresses"])
    with Client(shared_service.url) as client:
        [seen] = [one for one in client.consumers(limit=1000) if one.name == f"w-{http.topic}"]
        assert (seen.held, seen.waiting, seen.topics, seen.addresses) == (1, 0, [http.topic], ["127.0.0.1"])
        assert seen.lease_ends_at is not None
        assert seen.last_seen_at is not None
        assert seen.clients
    shell = Shell(shared_service.url)
    header, *rows = shell.good("consumers", "--limit", "1000").splitlines()
    assert header.split() == ["NAME", "ADDRESS", "HELD", "LEASE", "ENDS", "WAITING", "SEEN", "TOPICS", "CLIENT"]
    assert any(f"w-{http.topic}" in row for row in rows)
    assert f"w-{http.topic}" in [one["name"] for one in shell.json("consumers", "--limit", "1000")]
    assert refusal(await http.get("/consumers", params={"limit": "0"}), "query.limit")


@pytest.mark.slow
async def test_consumers_of_all_processes(tmp_path: Path) -> None:
    with running_service("--workers", "2", data_dir=tmp_path) as service:
        service.wait_ready()
        clients = [AsyncClient(service.url, key="") for _ in range(12)]
        pops = [asyncio.create_task(one.pop("t", wait=50, consumer=f"w{at}")) for at, one in enumerate(clients)]
        end_s = time.monotonic() + PUBLISHED_S
        names: set[str | None] = set()
        while len(names) < len(clients):
            assert time.monotonic() < end_s, names
            await asyncio.sleep(0.2)
            names = {one.name for one in await clients[0].consumers()}
        for pop in pops:
            pop.cancel()
        await asyncio.gather(*pops, return_exceptions=True)
        for client in clients:
            await client.close()


@pytest.mark.slow
async def test_a_key_sees_the_consumers_of_its_topics_only(service: ServiceProcess, keys: KeysFile) -> None:
    pops = {"shop.a,bank.a": "both", "bank.a": "bank", "shop.*": "pattern", "*": "any"}
    asked = {topic for topics in pops for topic in topics.split(",")}  # jobs of other tests have further topics
    for topics, name in pops.items():
        path = f"/topics/{topics}/pop?wait=0&consumer={name}"
        assert (await call(service, "POST", path, token=keys.tokens["pop"])).status == 200

    async def seen(key: str) -> dict[str, list[str]]:
        response = await call(service, "GET", "/consumers", token=keys.tokens[key])
        assert response.status == 200
        found = {one["name"]: one["topics"] for one in response.json()["consumers"]}
        return {name: [topic for topic in found[name] if topic in asked] for name in pops.values() if name in found}

    end_s = time.monotonic() + PUBLISHED_S
    while len(await seen("read")) < 4:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.2)
    assert await seen("read") == {"both": ["bank.a", "shop.a"], "bank": ["bank.a"], "pattern": ["shop.*"], "any": ["*"]}
    assert await seen("shop") == {"both": ["shop.a"], "pattern": ["shop.*"], "any": ["*"]}
    assert (await call(service, "GET", "/consumers", token=keys.tokens["pop"])).status == 403
