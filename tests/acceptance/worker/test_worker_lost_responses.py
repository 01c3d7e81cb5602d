"""A worker whose responses are lost: no job is stranded, and the log claims nothing that is unknown."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import parse_qs, urlsplit

import pytest

from deferd import AsyncClient, Context, Worker
from deferd.worker import fetcher
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.acceptance.worker.worker_runs import gone, in_state, serving
from tests.waiting import BUSY_S, until


def waiting_handler(
    worker: Worker, topic: str, *, error: Exception | None = None
) -> tuple[asyncio.Event, asyncio.Event]:
    """A handler that sets the first event when it begins, and ends or fails after the second."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def handle() -> None:
        began.set()
        await may_end.wait()
        if error is not None:
            raise error

    return began, may_end


async def test_jobs_of_a_pop_with_a_lost_response_run_and_are_touched_first(
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
    proxy.lose_responses()
    async with serving(worker):
        # It is unknown when the leases began, so the jobs are touched before half a ttr has passed.
        await until(lambda: sum("/touch " in head for head in proxy.heads) == 2, "both were touched")
        touched.set()
        for job_id in ("a", "b"):
            await gone(client, topic, job_id)
    assert sorted(runs) == [("a", 1), ("b", 1)]
    assert proxy.is_done()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_report_with_a_lost_response_is_repeated_and_not_logged_as_a_failure(
    client: AsyncClient, proxy: LossyProxy, topic: str, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    worker = Worker(proxy.url, concurrency=1)
    began, may_end = waiting_handler(worker, topic, error=ValueError("no such order") if fails else None)
    await client.put(topic, id="a", ttr=3600, backoff={"kind": "fixed", "seconds": 600})
    async with serving(worker), asyncio.timeout(30):
        await began.wait()
        proxy.lose_responses(2)  # of the report, and of the pop for the free slot
        may_end.set()

        def is_logged() -> bool:
            return any("a response was lost" in one.getMessage() for one in caplog.records)

        await until(is_logged, "the report is repeated")
        if fails:
            assert (await in_state(client, topic, "a", "delayed")).attempts == 1
        else:
            await gone(client, topic, "a")
    assert not any("could not be" in one.getMessage() for one in caplog.records)


async def test_a_stop_waits_for_the_repetition_of_its_pop_for_a_bounded_time(
    client: AsyncClient,
    proxy: LossyProxy,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher, "_LAST_POP_S", 0.2)
    worker = Worker(lambda: AsyncClient(proxy.url, timeout=3 * BUSY_S, retry_for=0))
    worker.handler(topic)(lambda: None)
    for _ in range(2):
        proxy.hang(sent=False)
    async with serving(worker), asyncio.timeout(30):
        await until(lambda: len(proxy.heads) == 1, "a pop is under way")
        began_s = asyncio.get_running_loop().time()
        worker.stop()
        await until(lambda: "jobs of the last pop may stay reserved" in caplog.text, "it gives up")
        assert asyncio.get_running_loop().time() - began_s < BUSY_S  # the client waits for longer
    first, last = (parse_qs(urlsplit(head.split()[1]).query) for head in proxy.heads)
    assert last == {**first, "wait": ["0"]}


# After a pop with a lost response the worker touches its jobs at once. That spares these tests half a ttr.


@pytest.mark.slow
async def test_a_touch_without_a_response_does_not_cost_the_lease(
    client: AsyncClient, proxy: LossyProxy, topic: str
) -> None:
    worker = Worker(proxy.url, concurrency=1)
    began, may_end = waiting_handler(worker, topic)
    await client.put(topic, id="a", ttr=4, retain=60)
    proxy.lose_responses()
    proxy.forward()
    proxy.hang(sent=False)  # the touch: with its only slot busy the worker sends nothing else
    async with serving(worker), asyncio.timeout(30):
        await began.wait()
        await until(lambda: sum("/touch " in head for head in proxy.heads) == 2, "it was touched again")
        assert proxy.is_done()
        may_end.set()
        assert (await in_state(client, topic, "a", "finished")).attempts == 1


@pytest.mark.slow
async def test_a_handler_continues_while_touches_fail_and_its_lease_is_kept(
    client: AsyncClient, proxy: LossyProxy, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    worker = Worker(proxy.url, concurrency=1)
    began, may_end = waiting_handler(worker, topic)
    await client.put(topic, id="a", ttr=3, retain=60)
    proxy.lose_responses()
    proxy.forward()
    for _ in range(3):
        proxy.respond(503, sent=False)
    async with serving(worker), asyncio.timeout(30):
        await began.wait()
        held = await client.get(topic, "a")
        assert held.reserved_until is not None

        def is_logged() -> bool:
            return levels() == ["WARNING", "INFO"]

        def levels() -> list[str]:
            return [one.levelname for one in caplog.records if vars(one).get("doing") == "extending leases"]

        await until(is_logged, "a touch succeeded after three failures")
        extended = await client.get(topic, "a")
        assert extended.reserved_until is not None
        assert extended.reserved_until > held.reserved_until
        assert proxy.is_done()
        may_end.set()
        assert (await in_state(client, topic, "a", "finished")).attempts == 1
        assert is_logged()
