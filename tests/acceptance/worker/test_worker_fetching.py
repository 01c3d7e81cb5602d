"""How many jobs a worker fetches, from which topics first, and what becomes of those that it fetched ahead."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
from collections import Counter
from typing import Any

import pytest

from deferd import AsyncClient, Worker
from deferd.worker import fetcher, lease_keeper, worker_run
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import WITHIN_S, gone, in_state, prefetching_worker, serving
from tests.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def fill(client: AsyncClient, topic: str, count: int) -> None:
    jobs = ({"topic": topic, "id": f"j{number}", "body": number} for number in range(count))
    assert {result.code async for result in client.put_many(jobs)} == {None}


def note(order: list[str], name: str, _number: int) -> None:
    order.append(name)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_no_more_handlers_run_at_once_than_the_concurrency(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, kind: str
) -> None:
    worker = Worker(shared_service.url, concurrency=3)
    running, most, done = 0, 0, 0
    lock, may_end = threading.Lock(), threading.Event()

    def change(by: int) -> None:
        nonlocal running, most, done
        with lock:
            running += by
            most = max(most, running)
            done += by < 0

    if kind == "async":

        @worker.handler(topic)
        async def wait() -> None:
            change(1)
            await asyncio.to_thread(may_end.wait, 20)
            change(-1)
    else:

        @worker.handler(topic)
        def wait_in_thread() -> None:
            change(1)
            may_end.wait(20)
            change(-1)

    await fill(client, topic, 12)
    async with serving(worker):
        await until(lambda: running == 3, "all slots are busy")
        # Run times are not known yet, so nothing is prefetched.
        assert (await client.topic(topic)).counts["reserved"] == 3
        may_end.set()
        await until(lambda: done == 12, "all have run")
    assert most == 3


@pytest.mark.slow
async def test_a_worker_with_slow_handlers_prefetches_nothing(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    slow, quick = Worker(shared_service.url, concurrency=2), Worker(shared_service.url)
    begun, taken, may_end = 0, [], asyncio.Event()

    @slow.handler(topic)
    async def take_long() -> None:
        nonlocal begun
        begun += 1
        if begun > 2:
            await may_end.wait()
        else:
            await asyncio.sleep(0.6)  # so long that no further job would start within 0.25 s

    @quick.handler(topic)
    async def note(number: int) -> None:
        taken.append(number)

    await fill(client, topic, 20)
    async with serving(slow):
        await until(lambda: begun == 4, "two have ended, two run")
        async with serving(quick):
            await until(lambda: len(taken) == 16, "the other worker got all others")
        may_end.set()


async def test_strict_priority_serves_the_first_topic_first(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1, prefetch=0, priority=[f"{topic}-b"])
    order: list[str] = []
    for name in ("a", "b", "c"):
        worker.handler(f"{topic}-{name}")(functools.partial(note, order, name))
        await fill(client, f"{topic}-{name}", 10)
    async with serving(worker):
        await until(lambda: len(order) == 30, "all have run")
    assert order == ["b"] * 10 + ["a"] * 10 + ["c"] * 10


@pytest.mark.slow
async def test_weighted_priority_starves_no_topic(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    random.seed(1)
    worker = Worker(shared_service.url, concurrency=1, prefetch=0, priority={f"{topic}-a": 3, f"{topic}-b": 1})
    order: list[str] = []
    for name in ("a", "b"):
        worker.handler(f"{topic}-{name}")(functools.partial(note, order, name))
        await fill(client, f"{topic}-{name}", 150)
    async with serving(worker):
        await until(lambda: len(order) >= 100, "many have run")
    first = Counter(order[:100])
    assert 54 < first["a"] < 96  # 75 are expected, with a standard deviation of 4.3


@pytest.mark.slow
async def test_jobs_that_fail_at_the_same_time_are_all_released(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=100)

    @worker.handler(topic)
    async def fail(number: int) -> None:
        raise ValueError(number)

    jobs = [
        {"topic": topic, "id": f"j{n}", "body": n, "backoff": {"kind": "fixed", "seconds": 600}} for n in range(200)
    ]
    await client.put_batch(jobs)
    async with serving(worker):
        async with asyncio.timeout(20):
            while (await client.topic(topic)).counts["delayed"] < len(jobs):
                await asyncio.sleep(0.02)
        errors = {job.id: job.last_error async for job in client.jobs(topic, state="delayed")}
    assert errors == {f"j{number}": f"ValueError: {number}" for number in range(200)}


async def test_a_topic_whose_jobs_become_pushed_is_left_out_until_they_are_not(
    pushing_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    monkeypatch.setattr(fetcher, "_PUSHED_S", 0.05)
    worker = Worker(pushing_service.url)
    pushed, other = f"{topic}-pushed", f"{topic}-other"
    for name in (pushed, other):
        worker.handler(name)(lambda: None)

    def logged() -> list[str]:
        return [one.levelname for one in caplog.records if vars(one).get("topic") == pushed]

    async with AsyncClient(pushing_service.url) as client, serving(worker):
        await client.put(pushed, id="a")
        await gone(client, pushed, "a")
        await client.set_push(pushed, "http://127.0.0.1:9/", secrets=[SECRET])
        await client.put(other, id="b")  # wakes the pop that waits
        await until(lambda: logged() == ["WARNING"], "it says so")
        await client.put(other, id="c")
        await gone(client, other, "c")
        await client.remove_push(pushed)
        await client.put(pushed, id="d")
        await gone(client, pushed, "d")
    assert logged() == ["WARNING", "INFO"]


async def test_a_worker_whose_topics_are_all_pushed_waits_and_can_be_stopped(
    pushing_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(pushing_service.url)
    worker.handler(topic)(lambda: None)
    async with AsyncClient(pushing_service.url) as client:
        await client.set_push(topic, "http://127.0.0.1:9/", secrets=[SECRET])
        async with serving(worker):
            said = f"the jobs of topic '{topic}' are pushed, so this worker gets none; it asks again every"
            await until(lambda: said in caplog.text, "it says so")


# Jobs that are fetched ahead


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
