"""Packets between service and store are held up for longer than the store's time-out, and come later.

Every call that got 503 meanwhile was given up: it does nothing behind the calls that were made in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS, ok
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.faults.tcp_proxy import tcp_proxy
from tests.integration.store.store_servers import ClusterSet, SentinelSet, StoreServer
from tests.private_network import in_private_network, packets_held_up
from tests.waiting import wait_until

STORE_TIMEOUT_S = 0.5
HELD_UP_S = 1.0
"""Then the kernel sends again what it has sent at 0.6 s for the last time at 1.4 s, behind the calls that follow."""
SHOWS_WITHIN_S = 10.0
SHARDS = 8
pytestmark = [
    pytest.mark.slow(seconds=8),
    pytest.mark.usefixtures("private_network"),
]


class Form(NamedTuple):
    """A store: its URL, the ports at which packets are held up, and its servers. `is_reset`: nothing comes late."""

    url: str
    ports: list[int]
    servers: list[StoreServer]
    is_reset: bool = True


@contextlib.contextmanager
def single(folder: Path) -> Iterator[Form]:
    with StoreServer(folder / "store") as server:
        yield Form(server.mark_used(SHARDS).url, [server.port], [server])


@contextlib.contextmanager
def behind_a_relay(folder: Path) -> Iterator[Form]:
    """The relay does not reset its connections: what it has taken is on its way, whatever the service does."""
    with single(folder) as form, tcp_proxy("127.0.0.1", form.ports[0]) as relay:
        yield form._replace(url=f"redis://127.0.0.1:{relay.port}", is_reset=False)


@contextlib.contextmanager
def sentinel(folder: Path) -> Iterator[Form]:
    with SentinelSet(folder / "store", down_after_ms=60_000) as stores:
        stores.master.mark_used(SHARDS)
        yield Form(stores.url, [stores.master.port], [stores.master])


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Form]:
    with ClusterSet(folder / "store", node_timeout_ms=60_000) as nodes:
        yield Form(nodes.mark_used(SHARDS).url, [node.port for node in nodes.nodes], nodes.nodes)


async def when_back(call: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """The first response to a call that is not 503: the service may still be connecting to the key's node."""
    end_s = time.monotonic() + SHOWS_WITHIN_S
    while (response := await call()).status_code == 503 and time.monotonic() < end_s:
        pass
    return response


def refusals(form: Form) -> int:
    """How many calls came too late."""
    stats = (server.command("INFO", "errorstats") for server in form.servers)
    return sum(of_server.get("errorstat_TOOLATE", {"count": 0})["count"] for of_server in stats)


@pytest.mark.parametrize("form", [single, behind_a_relay, sentinel, cluster])
def test_a_call_that_got_503_does_nothing_later(form: Any, tmp_path: Path) -> None:
    def run() -> None:
        with form(tmp_path) as store:
            flags = ("--redis-url", store.url, "--shards", str(SHARDS), "--store-timeout", str(STORE_TIMEOUT_S))
            with running_service(*flags, data_dir=tmp_path / "service") as service:
                asyncio.run(check(service, store))

    in_private_network(run)


async def check(service: ServiceProcess, store: Form) -> None:
    async with httpx.AsyncClient(base_url=service.url, verify=NO_TLS, timeout=20, trust_env=False) as client:

        def put(topic: str, **fields: Any) -> Any:
            return client.post("/jobs", json={"topic": topic, "id": "a", **fields})

        async def pop(topic: str, wait_s: float = 0) -> list[Any]:
            jobs: list[Any] = ok(await client.get(f"/topics/{topic}/pop", params={"wait": wait_s}))["jobs"]
            return jobs

        replaced = {"on_conflict": "replace", "delay": 60}
        if store.url.startswith("redis+sentinel"):
            replaced["durability"] = "replicated:1"
        ok(await put("cancelled"), 201)
        ok(await client.delete("/jobs/cancelled/a"))  # the store must know the script of what comes late
        await asyncio.gather(put("cancelled", delay=60), put("replaced", body=0, delay=60))
        with packets_held_up(*store.ports):
            given_up = await asyncio.gather(
                put("put.then.cancelled"),
                put("put.then.finished"),
                client.delete("/jobs/cancelled/a"),
                put("replaced", body=1, **replaced),
                asyncio.sleep(HELD_UP_S),
            )
        assert [one.status_code for one in given_up[:-1]] == [503] * 4
        service.wait_ready()

        ok(await when_back(lambda: put("put.then.cancelled")), 201)
        ok(await client.delete("/jobs/put.then.cancelled/a"))
        ok(await when_back(lambda: put("put.then.finished")), 201)
        [job] = await pop("put.then.finished")
        ok(await client.post("/jobs/put.then.finished/a/finish", json={"receipt": job["receipt"]}))
        ok(await when_back(lambda: client.delete("/jobs/cancelled/a")))
        ok(await put("cancelled", delay=60), 201)
        ok(await when_back(lambda: put("replaced", body=2, **replaced)))

        if not store.is_reset:
            await asyncio.to_thread(wait_until, lambda: refusals(store) >= 4, SHOWS_WITHIN_S, "the late calls came")
        assert await pop("put.then.cancelled,put.then.finished", 1) == []
        ok(await client.get("/jobs/cancelled/a"))
        assert ok(await client.get("/jobs/replaced/a"))["body"] == 2
