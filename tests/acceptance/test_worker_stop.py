"""How a worker ends: in order by a signal, at once by SIGKILL."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deferd import AsyncClient, Context, Worker
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.worker_process import WorkerProcess
from tests.acceptance.worker_runs import in_state, serving, sleeping_handler
from tests.waiting import until


@pytest.fixture
async def client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client


with_and_without_signal_handlers = pytest.mark.parametrize(
    "flags", [(), ("--without-signal-handlers",)], ids=["unix", "windows"]
)


@with_and_without_signal_handlers
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_gives_handlers_time_to_end_and_fetches_nothing_more(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, number: signal.Signals, flags: tuple[str, ...]
) -> None:
    with WorkerProcess(shared_service.url, topic, *flags) as worker:
        for kind in ("async", "plain"):
            await client.put(f"{topic}.{kind}", 1.0, id=kind, retain=60)
        await asyncio.to_thread(worker.wait_for, "began async", "began plain")
        worker.send(number)
        await asyncio.to_thread(worker.wait_for, "stopping")
        await client.put(f"{topic}.async", 0, id="more")
        assert await asyncio.to_thread(worker.wait) == 0
    for kind in ("async", "plain"):
        finished = await client.look(f"{topic}.{kind}", kind)
        assert (finished.state, finished.result, finished.attempts) == ("finished", "done", 1)
    assert (await client.look(f"{topic}.async", "more")).state == "ready"
    assert not any("cancelled" in line for line in worker.lines)


@pytest.mark.slow
async def test_what_is_left_after_the_grace_time_is_released_at_once(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    kinds = ("async", "plain", "deaf", "deaf-plain")
    with WorkerProcess(shared_service.url, topic, "--grace", "0.5") as worker:
        for kind in kinds:
            await client.put(f"{topic}.{kind}", 600, id=kind, ttr=3600)
        await asyncio.to_thread(worker.wait_for, *(f"began {kind}" for kind in kinds))
        began_s = time.monotonic()
        worker.send(signal.SIGTERM)
        # Also while an async handler takes no notice and a thread is stuck.
        assert await asyncio.to_thread(worker.wait) == 0
        assert 0.5 < time.monotonic() - began_s < 10
    for kind in kinds:
        released = await in_state(client, f"{topic}.{kind}", kind, "ready")
        assert (released.last_error, released.attempts) == ("the worker stopped", 1)
    lines = [line.strip() for line in worker.lines]
    assert {"cancelled async", "cancelled plain", "deaf deaf"} <= set(lines)


async def test_a_job_of_a_killed_worker_comes_back_when_its_ttr_is_over(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    ttr_s = 1.0
    with WorkerProcess(shared_service.url, topic) as worker:
        await client.put(f"{topic}.async", 600, id="a", ttr=ttr_s)
        await asyncio.to_thread(worker.wait_for, "began a")
        worker.send(signal.SIGKILL)
        await asyncio.to_thread(worker.wait)
    killed_s = time.monotonic()
    [delivery] = await client.pop(f"{topic}.async", wait=20)
    assert (delivery.id, delivery.attempt) == ("a", 2)
    assert time.monotonic() - killed_s < ttr_s + 1


@with_and_without_signal_handlers
async def test_a_second_interrupt_ends_the_process_at_once(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, flags: tuple[str, ...]
) -> None:
    with WorkerProcess(shared_service.url, topic, *flags) as worker:
        await client.put(f"{topic}.async", 600, id="a")
        await asyncio.to_thread(worker.wait_for, "began a")
        worker.send(signal.SIGINT)
        await asyncio.to_thread(worker.wait_for, "stopping")
        worker.send(signal.SIGINT)
        assert await asyncio.to_thread(worker.wait) == -signal.SIGINT
    assert (await client.look(f"{topic}.async", "a")).state == "reserved"


@pytest.mark.slow
async def test_a_worker_that_cannot_report_ends_all_the_same_and_says_so(tmp_path: Path) -> None:
    with running_service(data_dir=tmp_path) as service:
        async with AsyncClient(service.url) as client:
            with WorkerProcess(service.url, "t", "--grace", "0.2") as worker:
                await client.put("t.async", 600, id="a", ttr=1)
                await asyncio.to_thread(worker.wait_for, "began a")
                service.kill()
                worker.send(signal.SIGTERM)
                assert await asyncio.to_thread(worker.wait) == 1
            assert any("1 jobs could not be reported" in line for line in worker.lines)
            await asyncio.to_thread(service.start)
            [delivery] = await client.pop("t.async")
            assert (delivery.id, delivery.attempt) == ("a", 2)


async def test_jobs_that_wait_for_a_place_are_given_back_when_the_worker_stops(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1, prefetch=10)
    began: list[str] = []
    may_end = asyncio.Event()

    @worker.handler(topic)
    async def handle(context: Context) -> None:
        began.append(context.job.id)
        if context.job.id == "slow":
            await may_end.wait()

    await client.put_batch([{"topic": topic, "id": name} for name in ("quick", "slow", "next", "last")])
    async with serving(worker):
        for job_id in ("slow", "next", "last"):
            await in_state(client, topic, job_id, "reserved")
        worker.stop()
        for job_id in ("next", "last"):  # at once, while a handler has its grace time
            given_back = await in_state(client, topic, job_id, "ready")
            assert (given_back.attempts, given_back.last_error) == (1, "the worker stopped")
        may_end.set()
    assert began == ["quick", "slow"]


async def test_a_serve_that_is_cancelled_gives_its_jobs_back_without_grace(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url)
    began, ended = sleeping_handler(worker, topic)
    await client.put(topic, id="a")
    serve = asyncio.create_task(worker.serve())
    await began.wait()
    serve.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serve
    assert ended.is_set()
    assert (await in_state(client, topic, "a", "ready")).last_error == "the worker stopped"


async def test_a_handler_that_is_done_when_it_is_told_to_end_is_done(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, grace=0.1)
    began = asyncio.Event()

    @worker.handler(topic)
    async def save_and_return() -> str:
        began.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "saved"
        return "slept"

    await client.put(topic, id="a", retain=60)
    async with serving(worker):
        await began.wait()
    assert (await in_state(client, topic, "a", "finished")).result == "saved"


async def test_a_stop_that_comes_before_the_worker_serves_is_not_lost(
    shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url)
    worker.handler(topic)(lambda: None)
    serve = asyncio.create_task(worker.serve())
    worker.stop()
    async with asyncio.timeout(10):
        await serve


async def test_a_worker_that_stops_while_it_drains_leaves_no_job_in_its_name(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=100)
    done = 0

    @worker.handler(topic)
    async def count() -> None:
        nonlocal done
        done += 1

    jobs = ({"topic": topic, "ttr": 3600} for _ in range(10_000))
    assert {result.code async for result in client.put_many(jobs)} == {None}
    async with serving(worker):
        await until(lambda: done > 2000, "it is in the middle of it")
    counts = (await client.topic(topic)).counts
    assert sum(counts.values()) == 10_000 - done
    assert {state for state, count in counts.items() if count} <= {"ready", "delayed"}
