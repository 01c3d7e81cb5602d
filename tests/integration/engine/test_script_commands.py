"""The commands inside the scripts of the usual calls are those of the table in docs/architecture.md, and no others."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.store.store_servers import StoreServer

DOCUMENT = Path(__file__).parents[3] / "docs" / "architecture.md"
SECTION = re.compile(r"^### The commands of a script$(.*?)^#", re.MULTILINE | re.DOTALL)
LOCK = "deferd:{0}:lock"
LOCK_MS = 2500


def documented(call: str) -> Counter[str]:
    """How often each command occurs in a call, by the table."""
    section = SECTION.search(DOCUMENT.read_text(encoding="utf-8"))
    assert section is not None
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section[1].splitlines()
        if line.startswith("|")
    ]
    column = header.index(call)
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row[0].strip("`").split()[0].lower()] += int(row[column] or 0)
    return +counts


def run_so_far(server: StoreServer) -> Counter[str]:
    """How often each command has run."""
    stats = server.command("INFO", "commandstats")
    return Counter({name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()})


async def commands_of(server: StoreServer, call: Callable[[], Awaitable[object]]) -> Counter[str]:
    """The commands that one call of a script runs."""
    before = run_so_far(server)
    await call()
    counts = run_so_far(server) - before
    assert counts.pop("fcall") == 1
    assert counts.pop("info") == 1
    return counts


@pytest.fixture
async def driver(store: Store, server: StoreServer) -> AsyncIterator[EngineDriver]:
    """An engine with the clock of the store, whose topic has had jobs and has one that is due later."""
    engine = Engine(store, movable_clock=False)
    driver = EngineDriver(engine, server)
    await driver.put("first")
    await pop(driver, "request-1")
    await driver.put("last", delay=3600)
    yield driver
    await engine.close()


async def pop(driver: EngineDriver, request_id: str) -> JobRecord:
    """One job, as workers pop it."""
    reply = await driver.queue.pop(TOPIC, [PopRequest(1, consumer="one", request_id=request_id)])
    return reply.jobs[0][0]


async def test_a_put_for_later(driver: EngineDriver, server: StoreServer) -> None:
    assert await commands_of(server, lambda: driver.put("a", delay=3601)) == documented("put, later")


async def test_a_put_for_now(driver: EngineDriver, server: StoreServer) -> None:
    assert await commands_of(server, lambda: driver.put("a")) == documented("put, now")


async def test_a_visit_of_the_timer_for_a_job_that_is_due(driver: EngineDriver, server: StoreServer) -> None:
    await driver.put("a", delay=0.001)
    await asyncio.sleep(0.005)  # this store's clock cannot be moved
    server.command("SET", LOCK, "me", "PX", LOCK_MS)
    keys, args = driver.queue._keys.of_topic(TOPIC), (TOPIC, 100, 1000, "mark", 100, "me", LOCK_MS)
    visit = await commands_of(server, lambda: driver.engine._scripts.run("promote", (*keys, LOCK), args))
    assert await driver.counts() == {"delayed": 1, "ready": 1, "reserved": 1}
    assert visit == documented("promotion")


async def test_a_pop(driver: EngineDriver, server: StoreServer) -> None:
    await driver.put("a")
    assert await commands_of(server, lambda: pop(driver, "request-2")) == documented("pop")


async def test_a_finish(driver: EngineDriver, server: StoreServer) -> None:
    await driver.put("a")
    job = await pop(driver, "request-2")
    assert await commands_of(server, lambda: driver.queue.finish(TOPIC, job.id, job.receipt)) == documented("finish")
