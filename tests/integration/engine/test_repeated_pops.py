"""A pop that is repeated by its `request_id` at another service while the first attempt is still under way.

Whichever call the store runs first, the jobs of one response never go to another consumer while it may hold them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from deferd.contract.model import JobState
from deferd.engine.engine import Engine
from deferd.engine.queue import PopReply, PopRequest
from deferd.engine.record import JobRecord
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job


class Held:
    """Holds up the calls that an engine's dispatcher makes to pop, before or after the store has run them."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self.before, self.after = asyncio.Event(), asyncio.Event()
        self.called, self.ran = asyncio.Event(), asyncio.Event()
        self._pop = engine.queue.pop
        patch.setattr(engine.queue, "pop", self._held_pop)

    async def _held_pop(self, topic: str, requests: Sequence[PopRequest]) -> PopReply:
        self.called.set()
        await self.before.wait()
        reply = await self._pop(topic, requests)
        self.ran.set()
        await self.after.wait()
        return reply


def popping(engine: Engine, wait_ms: int = 10_000) -> asyncio.Task[list[JobRecord]]:
    return asyncio.create_task(engine.dispatcher.pop([TOPIC], count=2, wait_ms=wait_ms, request_id="r1"))


async def disconnect(*pops: asyncio.Task[list[JobRecord]]) -> None:
    for one in pops:
        one.cancel()
    await asyncio.gather(*pops, return_exceptions=True)


async def settled(*engines: Engine) -> None:
    """Wait until the engines have returned what they return."""
    for engine in engines:
        while engine.dispatcher._tasks:
            await asyncio.gather(*engine.dispatcher._tasks)


async def can_finish(engine: Engine, jobs: Sequence[JobRecord]) -> bool:
    """Whether nobody else gets these jobs, and their consumer can finish them."""
    assert await engine.dispatcher.pop([TOPIC], count=10) == []
    for one in jobs:
        await engine.queue.finish(TOPIC, one.id, one.receipt)
    return len(jobs) == 2


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_first_attempt_whose_client_is_gone_does_not_return_what_the_repetition_holds(
    engine: Engine, second: Engine, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """`is_late`: it reaches the store last, so the store takes it for the repetition."""
    await engine.puts.put_many([job("a"), job("b")])
    held = Held(engine, monkeypatch)
    first = popping(engine)
    if not is_late:
        held.before.set()
    await (held.called if is_late else held.ran).wait()
    jobs = await popping(second)
    await disconnect(first)
    held.before.set()
    held.after.set()
    await settled(engine)
    assert await can_finish(second, jobs)


@pytest.mark.parametrize("gone", [0, 1])
async def test_of_two_attempts_in_one_call_neither_returns_the_jobs_of_the_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    await engine.puts.put_many([job("a"), job("b")])
    held = Held(engine, monkeypatch)
    attempts = [popping(engine), popping(engine)]
    await held.called.wait()
    await disconnect(attempts[gone])
    held.before.set()
    held.after.set()
    jobs = await attempts[1 - gone]
    await settled(engine)
    assert await can_finish(engine, jobs)


@pytest.mark.parametrize("is_first_late", [False, True])
async def test_when_both_clients_are_gone_the_jobs_come_back_by_the_end_of_their_leases(
    engine: Engine, second: Engine, monkeypatch: pytest.MonkeyPatch, is_first_late: bool
) -> None:
    await engine.puts.put_many([job("a", ttr=0.5), job("b", ttr=0.5)])
    held, held_second = Held(engine, monkeypatch), Held(second, monkeypatch)
    attempts = [popping(engine), popping(second)]
    order = [held_second, held] if is_first_late else [held, held_second]
    for one in order:
        await one.called.wait()
    for one in order:
        one.before.set()
        await one.ran.wait()
    await disconnect(*attempts)
    for one in order:
        one.after.set()
    await settled(engine, second)
    popped: list[JobRecord] = []
    while len(popped) < 2:
        popped += await engine.dispatcher.pop([TOPIC], count=2, wait_ms=5000)
    assert [(one.id, one.attempts) for one in popped] == [("a", 2), ("b", 2)]


async def test_a_first_attempt_that_returns_its_jobs_before_it_is_repeated_costs_no_attempt(
    engine: Engine, second: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.puts.put_many([job("a"), job("b")])
    held = Held(engine, monkeypatch)
    first = popping(engine)
    await held.called.wait()
    await disconnect(first)
    held.before.set()
    held.after.set()
    await settled(engine)
    jobs = await popping(second)
    assert [(one.id, one.attempts) for one in jobs] == [("a", 1), ("b", 1)]
    assert await can_finish(second, jobs)


async def test_a_delivery_whose_request_is_forgotten_is_not_returned(driver: EngineDriver) -> None:
    """As after a touch by the client of a repetition: whether there was one is not known any more."""
    await driver.put()
    (lost,) = await driver.pop(1, request_id="r1")
    (again,) = await driver.pop(1, request_id="r1")
    await driver.deliveries.touch(TOPIC, "a", again.receipt, ttr_ms=60_000)
    assert driver.server.command("DEL", f"{KEY}:request/r1") == 1
    assert await driver.held_jobs.return_popped([lost]) == 0
    assert await driver.held_jobs.return_popped([again]) == 0
    assert await driver.state() is JobState.RESERVED
