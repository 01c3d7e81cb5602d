"""How a worker ends: gracefully by a signal, at once by SIGKILL."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from typing import Any

import pytest

from deferd import AsyncClient, Context, Worker
from deferd.worker import worker_run
from deferd.worker.held_job import HeldJob
from deferd.worker.lease_keeper import LeaseKeeper
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_process import WorkerProcess
from tests.acceptance.worker.worker_runs import WITHIN_S, in_state, serving, sleeping_handler
from tests.waiting import BUSY_S, until

WINDOWS = ("--without-signal-handlers",)


@pytest.mark.parametrize(
    ("number", "flags"),
    [
        (signal.SIGTERM, ()),
        (signal.SIGTERM, WINDOWS),
        pytest.param(signal.SIGINT, WINDOWS, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, (), marks=pytest.mark.slow),
    ],
)
async def test_a_signal_lets_handlers_end_and_stops_fetching(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, number: signal.Signals, flags: tuple[str, ...]
) -> None:
    may_end = shared_service.folder / topic
    with WorkerProcess(shared_service.url, topic, *flags) as worker:
        for kind in ("async", "plain"):
            await client.put(f"{topic}.{kind}", str(may_end), id=kind, retain=60)
        await asyncio.to_thread(worker.wait_for, "began async", "began plain")
        worker.send(number)
        await asyncio.to_thread(worker.wait_for, "stopping")
        await client.put(f"{topic}.async", 0, id="more")
        await asyncio.sleep(0.1)  # a worker that still fetched would get it within milliseconds
        may_end.touch()
        assert await asyncio.to_thread(worker.wait) == 0
    for kind in ("async", "plain"):
        finished = await client.get(f"{topic}.{kind}", kind)
        assert (finished.state, finished.result, finished.attempts) == ("finished", "done", 1)
    assert (await client.get(f"{topic}.async", "more")).state == "ready"
    assert not any("cancelled" in line for line in worker.lines)


@pytest.mark.slow
async def test_jobs_that_still_run_after_the_grace_time_are_released(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    kinds = ("async", "plain", "stubborn", "stubborn-plain")
    with WorkerProcess(shared_service.url, topic, "--grace", "0.5", "--short-waits") as worker:
        for kind in kinds:
            await client.put(f"{topic}.{kind}", 600, id=kind, ttr=3600)
        await asyncio.to_thread(worker.wait_for, *(f"began {kind}" for kind in kinds))
        began_s = time.monotonic()
        worker.send(signal.SIGTERM)
        # Although one async handler ignores its cancellation and a thread hangs.
        assert await asyncio.to_thread(worker.wait) == 0
        assert 0.5 < time.monotonic() - began_s < 15  # handlers take 600 s
    for kind in kinds:
        released = await in_state(client, f"{topic}.{kind}", kind, "ready")
        assert (released.last_error, released.attempts) == ("the worker stopped", 1)
    lines = [line.strip() for line in worker.lines]
    assert {"cancelled async", "cancelled plain", "ignored stubborn"} <= set(lines)


async def test_a_job_of_a_killed_worker_is_delivered_again_after_its_ttr(
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
    assert time.monotonic() - killed_s < ttr_s + BUSY_S


@pytest.mark.parametrize("flags", [(), WINDOWS], ids=["unix", "windows"])
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
    assert (await client.get(f"{topic}.async", "a")).state == "reserved"


@pytest.mark.slow
async def test_a_worker_that_cannot_report_ends_nevertheless_and_logs_it(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    with contextlib.ExitStack() as route:
        proxy = route.enter_context(lossy_proxy(shared_service.url))
        with WorkerProcess(proxy.url, topic, "--grace", "0.2", "--short-waits") as worker:
            await client.put(f"{topic}.async", 600, id="a", ttr=1)
            await asyncio.to_thread(worker.wait_for, "began a")
            route.close()  # the worker cannot reach the service any more
            worker.send(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait) == 1
    assert any("1 jobs could not be reported" in line for line in worker.lines)
    [delivery] = await client.pop(f"{topic}.async")
    assert (delivery.id, delivery.attempt) == ("a", 2)


async def test_no_handler_starts_after_one_has_stopped_its_worker(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1)
    began: list[str] = []

    @worker.handler(topic)
    async def handle(context: Context) -> None:
        began.append(context.job.id)
        if context.job.id == "last":
            worker.stop()

    await client.put_batch([{"topic": topic, "id": name} for name in ("first", "last", "waiting", "fetched")])
    async with asyncio.timeout(WITHIN_S):
        await worker.serve()
    assert began == ["first", "last"]
    for job_id in ("waiting", "fetched"):  # the service takes back what it popped for a closed connection
        await in_state(client, topic, job_id, "ready")


async def test_no_handler_begins_if_the_worker_is_stopped_while_its_lease_is_confirmed(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(shared_service.url)
    touch, began = LeaseKeeper.touch, list[str]()
    worker.handler(topic)(began.append)

    async def touch_and_stop(leases: LeaseKeeper, held: HeldJob) -> bool:
        is_live = await touch(leases, held)
        worker.stop()
        return is_live

    monkeypatch.setattr(worker_run, "_CONFIRMED_S", -1.0)  # as if each job had waited in the worker for some time
    monkeypatch.setattr(LeaseKeeper, "touch", touch_and_stop)
    await client.put(topic, "body", id="a")
    async with asyncio.timeout(WITHIN_S):
        await worker.serve()
    assert began == []
    assert (await in_state(client, topic, "a", "ready")).attempts == 0


async def test_a_cancelled_serve_releases_its_jobs_without_grace_time(
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


async def test_a_handler_that_returns_when_it_is_cancelled_has_finished_its_job(
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


async def test_a_stop_before_serve_is_not_lost(shared_service: ServiceProcess, topic: str) -> None:
    worker = Worker(shared_service.url)
    worker.handler(topic)(lambda: None)
    serve = asyncio.create_task(worker.serve())
    worker.stop()
    async with asyncio.timeout(10):
        await serve


@pytest.mark.slow
async def test_a_worker_that_stops_under_load_leaves_no_job_reserved(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=100)
    done = 0

    @worker.handler(topic)
    async def count() -> None:
        nonlocal done
        done += 1

    jobs = ({"topic": topic, "ttr": 3600} for _ in range(5000))
    assert {result.code async for result in client.put_many(jobs)} == {None}
    async with serving(worker):
        await until(lambda: done > 1000, "some jobs are finished")
    counts = (await client.topic(topic)).counts
    assert sum(counts.values()) == 5000 - done
    assert {state for state, count in counts.items() if count} <= {"ready", "delayed"}


@pytest.mark.slow(seconds=15)
async def test_workers_that_are_replaced_with_jobs_in_hand_lose_no_attempt(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    """Each job may be attempted once: a delivery that counted for nothing would end it as dead."""
    once: dict[str, Any] = {"max_attempts": 1, "ttr": 3600, "retain": 600}
    lines: list[str] = []
    with contextlib.ExitStack() as workers:
        worker = workers.enter_context(WorkerProcess(shared_service.url, topic))
        for turn in range(3):
            may_end = shared_service.folder / f"{topic}-{turn}"
            for kind in ("async", "plain"):
                await client.put(f"{topic}.{kind}", str(may_end), id=f"{kind}-{turn}", **once)
            await asyncio.to_thread(worker.wait_for, *(f"began {kind}-{turn}" for kind in ("async", "plain")))
            successor = await asyncio.to_thread(workers.enter_context, WorkerProcess(shared_service.url, topic))
            jobs = ({"topic": f"{topic}.async", "body": 0, "id": f"{turn}-{n}", **once} for n in range(500))
            assert {result.code async for result in client.put_many(jobs)} == {None}
            worker.send(signal.SIGTERM)
            await asyncio.to_thread(worker.wait_for, "stopping")
            may_end.touch()
            assert await asyncio.to_thread(worker.wait) == 0
            lines += worker.lines
            worker = successor
        expected = {"async": 3 * 501, "plain": 3}
        for kind, number in expected.items():
            async with asyncio.timeout(60):
                while (await client.topic(f"{topic}.{kind}")).counts["finished"] < number:
                    assert (await client.topic(f"{topic}.{kind}")).counts["dead"] == 0
                    await asyncio.sleep(0.05)
        worker.send(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait) == 0
        lines += worker.lines
    began = Counter(line.split()[1] for line in lines if line.startswith("began "))
    assert (len(began), set(began.values())) == (sum(expected.values()), {1})
