"""Calls that share requests, when callers are cancelled, requests hang and clients are closed; and from threads."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from deferd import AsyncClient, Client, Job
from deferd.client.errors import ClientClosed
from tests.acceptance.client.joining import batches
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.waiting import until, wait_until


async def test_a_waiting_call_that_is_cancelled_is_withdrawn_and_others_go_on(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    with proxy.responses_held():
        first = asyncio.create_task(client.put(topic, id="first"))
        await until(lambda: len(proxy.heads) == 1, "the first put is sent")
        second = asyncio.create_task(client.put(topic, id="second"))
        await until(lambda: len(proxy.heads) == 2, "the second put is sent")
        others = [asyncio.create_task(client.put(topic, id=f"j{n}")) for n in range(9)]
        await asyncio.sleep(0)
        for task in (first, others[0], others[8]):
            task.cancel()
    outcomes = await asyncio.gather(first, second, *others, return_exceptions=True)
    cancelled = [at for at, one in enumerate(outcomes) if isinstance(one, asyncio.CancelledError)]
    assert cancelled == [0, 2, 10]
    assert {*(f"j{n}" for n in range(1, 8)), "first", "second"} == {job.id async for job in client.jobs(topic)}


async def test_a_storm_of_cancelled_callers_loses_and_doubles_nothing(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    """Every put that returned is stored; each id is put once and finished once."""
    drawn = random.Random(7)
    stored: set[str] = set()

    async def put(number: int) -> None:
        job = await client.put(topic, number, id=f"j{number}")
        stored.add(job.id)

    for start in range(0, 400, 40):
        tasks = [asyncio.create_task(put(start + n)) for n in range(40)]
        for task in drawn.sample(tasks, 12):
            await asyncio.sleep(drawn.random() / 500)
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(None), asyncio.CancelledError} >= {type(one) for one in outcomes}
    assert len(stored) >= 280
    held = [job async for job in client.jobs(topic)]
    assert stored <= {job.id for job in held}
    assert len(held) == len({job.id for job in held})
    popped = await client.pop(topic, count=1000, wait=5)
    await asyncio.gather(*(client.finish(job) for job in popped))
    assert (await client.topic(topic)).counts["reserved"] == 0


async def test_puts_of_one_topic_do_not_wait_for_those_of_another(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    proxy.hang(sent=False)
    hanging = asyncio.create_task(client.put(f"{topic}-away"))
    await until(lambda: len(proxy.heads) == 1, "a request hangs")
    await asyncio.gather(*(client.put(topic) for _ in range(3)))
    hanging.cancel()


async def test_calls_that_wait_when_the_client_is_closed_end(proxy: LossyProxy, topic: str) -> None:
    client = AsyncClient(proxy.url, timeout=5)
    with proxy.responses_held():
        puts = [asyncio.create_task(client.put(topic, id="j0"))]
        await until(lambda: len(proxy.heads) == 1, "the first put is sent")
        puts += [asyncio.create_task(client.put(topic, id=f"j{n}")) for n in range(1, 8)]
        await until(lambda: len(proxy.heads) == 2, "the first batch is sent")
        await client.close()
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [Job] * 5 + [ClientClosed] * 3 == [type(one) for one in outcomes]


def test_a_loop_that_ends_takes_its_waiting_calls_with_it(proxy: LossyProxy, topic: str) -> None:
    async def main() -> None:
        client = AsyncClient(proxy.url, timeout=5)
        for n in range(20):
            asyncio.create_task(client.put(topic, n))  # noqa: RUF006 (asyncio.run cancels it)
        await until(lambda: len(proxy.heads) == 2, "a put and a batch are sent")

    with proxy.responses_held():
        asyncio.run(main())


def test_puts_of_many_threads_share_requests(proxy: LossyProxy, topic: str) -> None:
    with Client(proxy.url, timeout=5) as client, ThreadPoolExecutor(24) as threads:
        with proxy.responses_held():
            first = threads.submit(client.put, topic, id="a")
            wait_until(lambda: bool(proxy.heads), 5, "the first put is sent")
            others = [threads.submit(client.put, topic, n, id=f"j{n}") for n in range(23)]
            wait_until(lambda: len(proxy.heads) > 1, 5, "another is sent")
        assert first.result().id == "a"
        assert [(f"j{n}", n) for n in range(23)] == [(job.result().id, job.result().body) for job in others]
        assert batches(proxy)
        heads = len(proxy.heads)
        numbers = [*threads.map(lambda n: client.put(topic, n).body, range(600))]
        assert numbers == [*range(600)]
        assert len(proxy.heads) - heads < 500
        held = client.pop(topic, count=1000, wait=5)
        assert len(held) == 624
        assert [None] * 624 == [*threads.map(client.finish, held)]


def test_ctrl_c_in_a_waiting_thread_takes_nothing_with_it(proxy: LossyProxy, topic: str) -> None:
    """The main thread waits and is interrupted; the others go on."""
    with Client(proxy.url, timeout=5) as client, ThreadPoolExecutor(12) as threads:
        proxy.hold_response()
        others = [threads.submit(client.put, topic, id="first")]
        wait_until(lambda: bool(proxy.heads), 5, "the first put is sent")
        others += [threads.submit(client.put, topic, id=f"j{n}") for n in range(10)]
        wait_until(lambda: len(proxy.heads) > 1, 5, "another is sent")
        interrupt = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            client.put(topic, id="interrupted")
        proxy.release_responses()
        ids = [other.result(timeout=10).id for other in others]
        assert ["first", *(f"j{n}" for n in range(10))] == ids
        assert {*ids, "interrupted"} >= {job.id for job in client.jobs(topic)} >= {*ids}
