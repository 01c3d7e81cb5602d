"""A worker whose answers get lost on the way: nothing is stranded, and nothing is told that is not known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from deferd import AsyncClient, Context, Worker
from tests.acceptance.lossy_proxy import LossyProxy, lossy_proxy
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker_runs import gone, in_state, serving
from tests.waiting import until


@pytest.fixture
async def client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client


@pytest.fixture
def proxy(shared_service: ServiceProcess) -> Iterator[LossyProxy]:
    with lossy_proxy(shared_service.url) as proxy:
        yield proxy


def waiting_handler(
    worker: Worker, topic: str, *, error: Exception | None = None
) -> tuple[asyncio.Event, asyncio.Event]:
    """A handler that tells by the first event that it has begun, and that ends, or fails, after the second."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def handle() -> None:
        began.set()
        await may_end.wait()
        if error is not None:
            raise error

    return began, may_end


async def test_jobs_of_a_pop_whose_answer_was_lost_run_and_their_leases_are_extended_first(
    client: AsyncClient, proxy: LossyProxy, topic: str
) -> None:
    worker = Worker(proxy.url)
    runs: list[tuple[str, int]] = []
    touched = asyncio.Event()

    @worker.handler(topic)
    async def handle(context: Context) -> None:
        runs.append((context.job.id, context.job.attempt))
        await touched.wait()

    for job_id in ("a", "b"):
        await client.put(topic, id=job_id, ttr=3600)
    proxy.lose_answers()
    async with serving(worker):
        # Nobody knows how long ago the leases began, so half a ttr is not waited for.
        await until(lambda: sum("/touch " in head for head in proxy.heads) == 2, "both were touched")
        touched.set()
        for job_id in ("a", "b"):
            await gone(client, topic, job_id)
    assert sorted(runs) == [("a", 1), ("b", 1)]
    assert proxy.is_done()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_report_whose_answer_was_lost_is_repeated_and_not_told_as_a_failure(
    client: AsyncClient, proxy: LossyProxy, topic: str, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    worker = Worker(proxy.url, concurrency=1)
    began, may_end = waiting_handler(worker, topic, error=ValueError("no such order") if fails else None)
    await client.put(topic, id="a", ttr=3600, backoff={"kind": "fixed", "seconds": 600})
    async with serving(worker), asyncio.timeout(30):
        await began.wait()
        proxy.lose_answers(2)  # that of the report, and that of the pop for the place that it leaves
        may_end.set()

        def told() -> bool:
            return any("an answer was lost" in one.getMessage() for one in caplog.records)

        await until(told, "the worker had a second answer")
        if fails:
            assert (await in_state(client, topic, "a", "delayed")).attempts == 1
        else:
            await gone(client, topic, "a")
    assert not any("could not be" in one.getMessage() for one in caplog.records)


@pytest.mark.slow
async def test_a_touch_that_is_never_answered_does_not_cost_the_lease(
    client: AsyncClient, proxy: LossyProxy, topic: str
) -> None:
    worker = Worker(proxy.url, concurrency=1)
    began, may_end = waiting_handler(worker, topic)
    await client.put(topic, id="a", ttr=8, retain=60)
    async with serving(worker), asyncio.timeout(30):
        await began.wait()
        proxy.hang(sent=False)  # the touch: with its one place taken the worker asks for nothing else
        await until(lambda: sum("/touch " in head for head in proxy.heads) == 2, "it was touched again")
        await until(proxy.is_done, "a touch has hung")
        may_end.set()
        assert (await in_state(client, topic, "a", "finished")).attempts == 1


@pytest.mark.slow
async def test_a_handler_goes_on_while_touches_fail_and_its_lease_is_kept(
    client: AsyncClient, proxy: LossyProxy, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    worker = Worker(proxy.url, concurrency=1)
    began, may_end = waiting_handler(worker, topic)
    await client.put(topic, id="a", ttr=5, retain=60)
    async with serving(worker), asyncio.timeout(30):
        await began.wait()
        for _ in range(3):
            proxy.answer(503, sent=False)
        held = await client.look(topic, "a")
        assert held.reserved_until is not None
        while datetime.now(UTC) < held.reserved_until + timedelta(seconds=0.5):
            await asyncio.sleep(0.05)
        assert proxy.is_done()
        may_end.set()
        assert (await in_state(client, topic, "a", "finished")).attempts == 1
    told = [one.levelname for one in caplog.records if vars(one).get("doing") == "extending leases"]
    assert told == ["WARNING", "INFO"]
