"""A worker extends its leases, and ends handlers whose job was cancelled or whose lease was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient, Context, JobRef, Worker
from deferd.client import async_transport
from deferd.client.async_transport import AsyncConnection
from deferd.client.sender import RetryPolicy
from deferd.worker import fetcher, lease_keeper, reporter
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.worker.worker_runs import gone, in_state, serving, sleeping_handler
from tests.ports import free_port
from tests.waiting import BUSY_S, until

TTR_S = 1.0


@pytest.fixture
def worker(shared_service: ServiceProcess) -> Worker:
    return Worker(shared_service.url, concurrency=20)


@pytest.mark.slow
async def test_a_lease_does_not_end_while_a_handler_runs(client: AsyncClient, worker: Worker, topic: str) -> None:
    runs: list[str] = []
    ttr_s = 2 * TTR_S  # a busy machine may delay an extension

    @worker.handler(f"{topic}-async")
    async def take_long(context: Context) -> int:
        runs.append(context.job.id)
        await asyncio.sleep(1.7 * ttr_s)
        return context.job.attempt

    @worker.handler(f"{topic}-plain")
    def take_long_in_thread(context: Context) -> int:
        runs.append(context.job.id)
        time.sleep(1.7 * ttr_s)
        return context.job.attempt

    names = [(f"{topic}-{kind}", f"{kind}-{number}") for kind in ("async", "plain") for number in range(10)]
    for name, job_id in names:
        await client.put(name, id=job_id, ttr=ttr_s, retain=60)
    async with serving(worker):
        for name, job_id in names:
            assert (await in_state(client, name, job_id, "finished")).result == 1
    assert sorted(runs) == sorted(job_id for _, job_id in names)


async def test_calls_that_ask_about_jobs_delay_no_touch(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def hang(_client: AsyncClient, name: str, _jobs: object) -> None:
        asked.append(name)
        await asyncio.sleep(600)

    monkeypatch.setattr(AsyncClient, "check_many", hang)
    monkeypatch.setattr(lease_keeper, "_CHECK_TIMEOUT_S", 600.0)
    names = [f"{topic}.{number}" for number in range(20)]
    worker = Worker(shared_service.url, concurrency=len(names), grace=0)

    @worker.handler(f"{topic}.*")
    async def take_long() -> None:
        await asyncio.sleep(600)

    await client.put_batch([{"topic": name, "id": "a", "ttr": 6} for name in names])
    async with serving(worker):
        await until(lambda: len(asked) >= 16, "the worker has asked about jobs of many topics")
        popped = {name: await client.get(name, "a") for name in names}
        async with asyncio.timeout(BUSY_S):
            for name in names:
                while (job := await client.get(name, "a")).reserved_until == popped[name].reserved_until:
                    await asyncio.sleep(0.05)
                assert job.attempts == 1


async def test_a_cancel_ends_the_handlers_of_both_kinds(
    client: AsyncClient, worker: Worker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    began: list[str] = []
    ended: list[str] = []

    @worker.handler(f"{topic}-async")
    async def wait(context: Context) -> None:
        began.append("async")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append(f"async {context.cancelled}")
            raise

    @worker.handler(f"{topic}-plain")
    def wait_in_thread(context: Context) -> str:
        began.append("plain")
        end_s = time.monotonic() + 60
        while not context.cancelled and time.monotonic() < end_s:
            time.sleep(0.005)
        ended.append(f"plain {context.cancelled}")
        return "in vain"

    topics = (f"{topic}-async", f"{topic}-plain")
    async with serving(worker):
        for name in topics:
            await client.put(name, id="a", ttr=3600, retain=60)
        await until(lambda: len(began) == 2, "both have begun")
        for name in topics:
            assert (await client.cancel(name, "a")).was == "reserved"
        cancelled_s = time.monotonic()
        await until(lambda: len(ended) == 2, "both have ended")
        assert time.monotonic() - cancelled_s < 1 + BUSY_S
    assert sorted(ended) == ["async True", "plain True"]
    logged = [one for one in caplog.records if getattr(one, "code", None) == "job_cancelled"]
    assert sorted(vars(one)["topic"] for one in logged) == sorted(topics)
    for name in topics:
        await gone(client, name, "a")


async def test_a_delivery_that_is_over_ends_its_handler_and_is_logged(
    client: AsyncClient, worker: Worker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    began, ended = sleeping_handler(worker, topic)
    await client.put(topic, id="a", ttr=3600)
    async with serving(worker), asyncio.timeout(20):
        await began.wait()
        await client.release(JobRef(topic, "a"), delay=600)  # without a receipt: another program intervenes
        await ended.wait()
    [record] = [one for one in caplog.records if getattr(one, "code", None) == "receipt_stale"]
    assert record.levelno == logging.WARNING
    assert (await client.get(topic, "a")).last_error is None


async def test_a_finish_that_is_too_late_is_logged_and_the_worker_continues(
    client: AsyncClient, worker: Worker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def wait(body: str | None) -> None:
        if body is None:
            began.set()
            await may_end.wait()

    await client.put(topic, id="a", ttr=3600)
    async with serving(worker), asyncio.timeout(20):
        await began.wait()
        await client.release(JobRef(topic, "a"), delay=600)
        may_end.set()
        await client.put(topic, "more", id="b")
        await gone(client, topic, "b")
        await until(lambda: bool(caplog.records), "it is logged")
    [record] = [one for one in caplog.records if getattr(one, "code", None) == "receipt_stale"]
    assert "could not be finished: its lease has ended" in record.getMessage()


async def test_results_are_reported_when_the_service_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fetcher, reporter):  # pauses of seconds would only prolong the test
        monkeypatch.setattr(module, "_RETRY", RetryPolicy(max_pause_s=0.2, heeds_proxies=False))
    caplog.set_level(logging.INFO, "deferd.worker")
    with running_service(data_dir=tmp_path) as service:
        worker = Worker(service.url)
        running = {kind: threading.Event() for kind in ("async", "plain", "fails")}
        away = threading.Event()

        @worker.handler("async")
        async def wait() -> str:
            running["async"].set()
            await asyncio.to_thread(away.wait, 20)
            return "async"

        @worker.handler("plain")
        def wait_in_thread() -> str:
            running["plain"].set()
            away.wait(20)
            return "plain"

        @worker.handler("fails")
        def fail_in_thread() -> None:
            running["fails"].set()
            away.wait(20)
            raise ValueError("no such order")

        async with AsyncClient(service.url) as client, serving(worker):
            for topic in running:
                await client.put(topic, id="a", retain=60, backoff={"kind": "fixed", "seconds": 600})
            for event in running.values():
                assert await asyncio.to_thread(event.wait, 20)
            service.kill()
            away.set()  # the handlers end while the service is away

            def has_failed() -> bool:
                doing = {vars(one).get("doing") for one in caplog.records}
                return doing >= {"fetching jobs", "reporting finished jobs"}

            await until(has_failed, "the worker has found that the service is away")
            await asyncio.to_thread(service.start)
            for kind in ("async", "plain"):
                finished = await in_state(client, kind, "a", "finished")
                assert (finished.result, finished.attempts) == (kind, 1)
            failed = await in_state(client, "fails", "a", "delayed")
            assert (failed.last_error, failed.attempts) == ("ValueError: no such order", 1)
            await client.put("async", id="b", retain=60)
            await in_state(client, "async", "b", "finished")
    logged = [(vars(one)["doing"], one.levelname) for one in caplog.records if hasattr(one, "doing")]
    assert sorted(logged) == [
        ("fetching jobs", "INFO"),
        ("fetching jobs", "WARNING"),
        ("reporting finished jobs", "INFO"),
        ("reporting finished jobs", "WARNING"),
    ]


@pytest.mark.slow
async def test_a_worker_waits_for_a_service_that_has_not_started(
    shared_service: ServiceProcess,
    client: AsyncClient,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, failed = async_transport.connect, 0

    async def counted(*args: Any) -> AsyncConnection:
        nonlocal failed
        try:
            return await connect(*args)
        except OSError:
            failed += 1
            raise

    port = free_port()
    worker = Worker(f"http://127.0.0.1:{port}")
    worker.handler(topic)(lambda: None)
    await client.put(topic, id="a")
    with contextlib.ExitStack() as started:
        monkeypatch.setattr(async_transport, "connect", counted)
        async with serving(worker):
            await until(lambda: failed >= 4, "the worker has retried several times")
            logged = [one.levelname for one in caplog.records if one.name == "deferd.worker"]
            assert logged == ["WARNING"]
            started.enter_context(lossy_proxy(shared_service.url, port))  # it starts at once, unlike a service
            await gone(client, topic, "a")
