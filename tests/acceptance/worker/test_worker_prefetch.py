"""What becomes of prefetched jobs: none begins on a delivery that is over, and none waits for long."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from deferd import AsyncClient, Worker
from deferd.worker import lease_keeper, worker_run
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import WITHIN_S, gone, in_state, prefetching_worker, serving
from tests.waiting import until


@pytest.fixture
def waiting_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefetched jobs are not returned while they wait."""
    monkeypatch.setattr(worker_run, "_WAIT_S", 600.0)


@pytest.fixture
def never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not ask about its jobs, and takes each for one that has waited for some time."""
    monkeypatch.setattr(lease_keeper, "_CHECK_INTERVAL_S", 600.0)
    monkeypatch.setattr(worker_run, "_CONFIRMED_S", 0.0)


async def others_wait(began: list[str]) -> None:
    """Wait until "slow" runs: the same pop returned "next" and "last"."""
    await until(lambda: "slow" in began, "the slow one has begun")


@pytest.mark.usefixtures("waiting_long")
async def test_a_worker_learns_of_the_cancel_of_a_job_that_waits(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    worker, began, may_end = await prefetching_worker(client, shared_service.url, topic, ttr=3600)
    async with serving(worker):
        await others_wait(began)
        await client.cancel(topic, "next")
        await until(lambda: any(vars(one).get("job_id") == "next" for one in caplog.records), "it knows of the cancel")
        may_end.set()
        await until(lambda: "last" in began, "the last one has begun")
    assert began == ["quick", "slow", "last"]


@pytest.mark.usefixtures("waiting_long", "never_asked")
async def test_a_job_that_was_cancelled_a_moment_ago_does_not_begin(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker, began, may_end = await prefetching_worker(client, shared_service.url, topic, ttr=3600)
    async with serving(worker):
        await others_wait(began)
        await client.cancel(topic, "next")
        may_end.set()
        await until(lambda: "last" in began, "the last one has begun")
    assert began == ["quick", "slow", "last"]


@pytest.mark.parametrize("limit", ["deadline", "time_limit"])
@pytest.mark.usefixtures("waiting_long", "never_asked")
async def test_no_handler_begins_after_the_limits_of_its_job(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, limit: str
) -> None:
    worker, began, may_end = await prefetching_worker(client, shared_service.url, topic)
    bound: dict[str, Any] = {limit: 0.5}
    await client.change(topic, "next", ttr=3600, max_attempts=1, **bound)
    async with serving(worker):
        await in_state(client, topic, "next", "dead")
        may_end.set()
        await until(lambda: "last" in began, "the last one has begun")
    assert began == ["quick", "slow", "last"]


@pytest.mark.usefixtures("never_asked")
async def test_a_job_whose_lease_cannot_be_confirmed_does_not_begin_and_is_returned(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        worker, began, may_end = await prefetching_worker(client, proxy.url, topic, ttr=3600, max_attempts=1)
        async with serving(worker):
            await others_wait(began)
            await gone(client, topic, "quick")
            for _ in range(2):  # the finish of "slow", and the touch of "next"
                proxy.respond(503, sent=False)
            may_end.set()
            await until(lambda: {"next", "last"} <= set(began), "all have begun")
    assert any("/return " in head for head in proxy.heads)
    assert sorted(began) == ["last", "next", "quick", "slow"]


async def test_prefetched_jobs_are_returned_uncounted_when_the_worker_stops(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker, began, may_end = await prefetching_worker(client, shared_service.url, topic, ttr=3600, max_attempts=1)
    async with serving(worker):
        await others_wait(began)
        await client.put(topic, id="later")
        worker.stop()
        for job_id in ("next", "last"):  # at once, during the grace time of the handler
            returned = await in_state(client, topic, job_id, "ready")
            assert (returned.attempts, returned.snoozes, returned.last_error) == (0, 0, None)
        may_end.set()
    assert began == ["quick", "slow"]
    assert [job.id for job in await client.pop(topic, count=3)] == ["next", "last", "later"]


async def test_jobs_behind_a_handler_that_hangs_go_to_another_consumer(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_run, "_WAIT_S", 0.1)
    worker, began, may_end = await prefetching_worker(client, shared_service.url, topic, ttr=3600)
    async with serving(worker):
        await others_wait(began)
        taken = await client.pop(topic, count=2)
        assert [(job.id, job.attempt) for job in taken] == [("next", 1), ("last", 1)]
        may_end.set()
    assert began == ["quick", "slow"]


@pytest.mark.slow
async def test_one_call_asks_about_all_jobs_of_a_topic_and_none_about_quick_ones(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        worker = Worker(proxy.url, concurrency=50)
        running, may_end = 0, asyncio.Event()

        @worker.handler(topic)
        async def handle(body: str | None) -> None:
            nonlocal running
            running += 1
            if body == "long":
                await may_end.wait()

        def checks() -> int:
            return sum("/check " in head for head in proxy.heads)

        async with serving(worker), asyncio.timeout(WITHIN_S):
            await client.put_batch([{"topic": topic} for _ in range(100)])
            await until(lambda: running == 100, "the quick ones have run")
            await asyncio.sleep(2 * lease_keeper._CHECK_INTERVAL_S)  # nothing comes: there is no event to await
            assert checks() == 0
            await client.put_batch([{"topic": topic, "body": "long", "ttr": 3600} for _ in range(50)])
            await until(lambda: checks() >= 3, "the worker asks")
            assert checks() < 10  # not 50 each time
            may_end.set()
