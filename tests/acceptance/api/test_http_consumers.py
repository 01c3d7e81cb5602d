"""Who consumes: over HTTP, in two processes, through the client, as a command, and with keys."""

from __future__ import annotations

import asyncio
import contextlib
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
async def test_consumers_that_wait_that_hold_jobs_and_that_have_no_name(
    http: Http, shared_service: ServiceProcess
) -> None:
    topic, holder = http.topic, f"holder-{http.topic}"
    for job_id in ("a", "b"):
        await http.put_job(job_id, ttr=300)
    [first, _] = await http.pop(count=2, consumer=holder)
    asked = {"one": topic, "two": f"{topic},other", "pattern": f"{topic}*"}
    with Client(shared_service.url, key="") as client:
        for _ in range(5):  # those after the second are on the direct path, where headers are not parsed
            client.pop(topic, wait=0)
    async with contextlib.AsyncExitStack() as waits:
        for name, topics in asked.items():
            await waits.enter_async_context(waiting(shared_service.url, topics, f"{name}-{topic}"))

        def are_there(own: list[Json]) -> bool:
            has_holder = any(one["held"] == 2 and one["addresses"] for one in own)
            return len(own) == len(asked) + 2 and has_holder and sum(one["waiting"] for one in own) == len(asked)

        seen = {one["name"]: one for one in await when(http, are_there)}
    for name, topics in asked.items():
        one = seen[f"{name}-{topic}"]
        assert moment(one["last_seen_at"]) == pytest.approx(time.time(), abs=PUBLISHED_S)
        assert set(topics.split(",")) <= set(one["topics"])
        assert (one["waiting"], one["addresses"]) == (1, ["127.0.0.1"])
        assert user_agent() in one["clients"]
        assert (one["held"], one["lease_ends_at"]) == (0, None)
    assert (seen[holder]["held"], seen[holder]["lease_ends_at"]) == (2, first["reserved_until"])
    unnamed = seen[None]
    assert (unnamed["held"], unnamed["clients"]) == (None, [user_agent()])
    assert topic in unnamed["topics"]  # those without a name are one consumer of their address: also of other tests
    look_by_client_and_command(shared_service, topic, holder)
    assert refusal(await http.get("/consumers", params={"limit": "0"}), "query.limit")


def look_by_client_and_command(service: ServiceProcess, topic: str, holder: str) -> None:
    with Client(service.url) as client:
        [seen] = [one for one in client.consumers(limit=1000) if one.name == holder]
        assert (seen.held, seen.waiting, seen.topics, seen.addresses) == (2, 0, [topic], ["127.0.0.1"])
        assert seen.lease_ends_at is not None
        assert seen.last_seen_at is not None
        assert seen.clients
    shell = Shell(service.url)
    header, *rows = shell.good("consumers", "--limit", "1000").splitlines()
    assert header.split() == ["NAME", "ADDRESS", "HELD", "LEASE", "ENDS", "WAITING", "SEEN", "TOPICS", "CLIENT"]
    assert any(holder in row for row in rows)
    assert holder in [one["name"] for one in shell.json("consumers", "--limit", "1000")]


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
