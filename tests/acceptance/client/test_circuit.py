"""A client whose service is down, hangs or comes back: calls fail fast, one at a time probes, recovery is quick."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from deferd import (
    AsyncClient,
    Client,
    JobNotFound,
    JobRef,
    NoAnswer,
    Unreachable,
)
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.client.scripted_server import ScriptedServer, never_responding, scripted_server
from tests.acceptance.service_process import ServiceProcess
from tests.ports import free_port
from tests.waiting import until, wait_until

AT_ONCE_S = 0.2
"""Far less than any time-out; these tests share the machine with others."""


@pytest.fixture
def silent() -> Iterator[ScriptedServer]:
    """It accepts connections and never responds."""
    with scripted_server(never_responding) as server:
        yield server


@pytest.fixture
def port() -> int:
    """A port where nobody listens yet."""
    return free_port()


@pytest.fixture
async def client(port: int) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{port}", timeout=5, retry_for=0.5) as client:
        yield client


async def seconds_to_fail(client: AsyncClient, topic: str) -> tuple[float, Unreachable]:
    began_s = time.monotonic()
    with pytest.raises(Unreachable) as failed:
        await client.put(topic)
    return time.monotonic() - began_s, failed.value


async def test_calls_fail_at_once_when_the_service_has_been_down_for_retry_for(client: AsyncClient, topic: str) -> None:
    began_s = time.monotonic()
    took_s, error = await seconds_to_fail(client, topic)
    # Pauses of 0.1 s and 0.2 s, each at least half as long with its jitter; the next may be too long for `retry_for`.
    assert 0.15 <= took_s < 2
    await asyncio.sleep(began_s + 0.5 + AT_ONCE_S - time.monotonic())  # until the outage is older than `retry_for`
    for _ in range(20):
        took_s, error = await seconds_to_fail(client, topic)
        assert took_s < AT_ONCE_S
    assert type(error) is Unreachable
    texts = [str((await seconds_to_fail(client, topic))[1]) for _ in range(5)]
    instant = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    told = rf"POST /jobs: not sent, because the service has not responded since {instant} \(\d\.\d s\): "
    assert any(re.match(told, text) for text in texts)
    assert any(re.search(r"; the next attempt is in \d\.\d s$", text) for text in texts)


@pytest.mark.slow
async def test_one_call_at_a_time_asks_whether_the_service_is_back(silent: ScriptedServer, topic: str) -> None:
    with scripted_server(never_responding) as other:
        await asyncio.gather(count_probes(silent, topic, retry_for=0.0), count_probes(other, topic, retry_for=5.0))


async def count_probes(silent: ScriptedServer, topic: str, retry_for: float) -> None:
    """Many callers, for three seconds: with a time-out of 0.3 s a probe takes that long, and pauses grow to 1 s."""
    async with AsyncClient(silent.url, timeout=0.3, retry_for=0) as client:
        with pytest.raises(NoAnswer):
            await client.put(topic)
        with pytest.raises(NoAnswer):
            await client.put(topic)
        before = silent.connections
        end_s = time.monotonic() + 3

        async def call() -> None:
            while time.monotonic() < end_s:
                with contextlib.suppress(NoAnswer):
                    await client.put(topic)
                await asyncio.sleep(0.01)

        client._sender.retry_for_s = retry_for
        await asyncio.gather(*(call() for _ in range(30)))
        assert 2 <= silent.connections - before <= 12


@pytest.mark.slow
async def test_a_service_that_hangs_costs_one_time_out_and_then_nothing(silent: ScriptedServer, topic: str) -> None:
    async with AsyncClient(silent.url, timeout=1.2, retry_for=0.5) as client:
        began_s = time.monotonic()
        with pytest.raises(NoAnswer, match="POST"):
            await client.put(topic)
        assert time.monotonic() - began_s < 2.5
        probing = asyncio.create_task(until_it_probes(client, silent, topic))
        await until(lambda: silent.connections == 2, "a call probes")
        for _ in range(10):
            took_s, error = await seconds_to_fail(client, f"{topic}-2")
            assert took_s < AT_ONCE_S
            assert str(error).endswith("an attempt is under way")
        probing.cancel()


async def test_a_put_in_a_web_handler_takes_as_long_as_the_documentation_says(
    silent: ScriptedServer, topic: str
) -> None:
    """With the settings of its example: a second attempt, which starts within 2 s of the first and takes 1 s."""
    async with AsyncClient(silent.url, timeout=1, retry_for=2) as client:
        began_s = time.monotonic()
        puts = [asyncio.create_task(client.put(topic)) for _ in range(5)]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert {NoAnswer} == {type(one) for one in outcomes}
        assert 2 <= time.monotonic() - began_s < 4
        assert silent.connections >= 3


def _accepted_more(silent: ScriptedServer, than: int) -> bool:
    return silent.connections > than


async def until_it_probes(client: AsyncClient, silent: ScriptedServer, topic: str) -> None:
    before = silent.connections
    while silent.connections == before:
        with contextlib.suppress(NoAnswer):
            await client.put(topic)
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_service_that_comes_back_is_used_within_two_seconds(
    shared_service: ServiceProcess, client: AsyncClient, port: int, topic: str
) -> None:
    """After an outage that let the pauses grow to their maximum."""
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        with contextlib.suppress(Unreachable):
            await client.put(topic)
        await asyncio.sleep(0.01)
    with lossy_proxy(shared_service.url, port):
        back_s = time.monotonic()
        while True:
            with contextlib.suppress(Unreachable):
                await client.put(topic)
                break
            await asyncio.sleep(0.01)
        assert time.monotonic() - back_s < 2
        assert len(await asyncio.gather(*(client.put(topic) for _ in range(20)))) == 20


async def test_calls_with_time_left_wait_for_the_service_to_come_back(
    shared_service: ServiceProcess, port: int, topic: str
) -> None:
    async with AsyncClient(f"http://127.0.0.1:{port}", timeout=5, retry_for=20) as client:
        puts = [asyncio.create_task(client.put(topic, n)) for n in range(40)]
        pops = asyncio.create_task(client.pop(topic, count=40, wait=5))
        await asyncio.sleep(1)
        assert not any(task.done() for task in [*puts, pops])
        with lossy_proxy(shared_service.url, port):
            assert sorted(job.body for job in await asyncio.gather(*puts)) == [*range(40)]
            assert await pops
            assert sum((await client.topic(topic)).counts.values()) == 40


def test_threads_with_time_left_wait_for_the_service_to_come_back(
    shared_service: ServiceProcess, port: int, topic: str
) -> None:
    with (
        Client(f"http://127.0.0.1:{port}", timeout=5, retry_for=20) as client,
        ThreadPoolExecutor(10) as threads,
    ):
        puts = [threads.submit(client.put, topic, n) for n in range(10)]
        time.sleep(0.5)
        assert not any(put.done() for put in puts)
        with lossy_proxy(shared_service.url, port):
            assert [*range(10)] == [put.result(timeout=20).body for put in puts]


@pytest.mark.slow
async def test_a_cancelled_probe_lets_others_probe(
    shared_service: ServiceProcess, silent: ScriptedServer, topic: str
) -> None:
    async with AsyncClient(silent.url, timeout=30, retry_for=0) as client:
        put = asyncio.create_task(client.put(topic))
        await until(lambda: silent.connections == 1, "a request hangs")
        client._sender._circuit.failed(NoAnswer("slow"), time.monotonic() - 2, None)
        put.cancel()
        for _ in range(3):
            probing = asyncio.create_task(until_it_probes(client, silent, topic))
            accepted = silent.connections
            await until(partial(_accepted_more, silent, accepted), "a call probes", within_s=5)
            probing.cancel()
            await asyncio.wait([probing])
        port = silent.port
        silent.stop()
        with lossy_proxy(shared_service.url, port):
            back_s = time.monotonic()
            while True:
                with contextlib.suppress(NoAnswer):
                    await client.put(topic)
                    break
                await asyncio.sleep(0.01)
            assert time.monotonic() - back_s < 2


async def test_readiness_is_always_asked(
    shared_service: ServiceProcess, client: AsyncClient, port: int, topic: str
) -> None:
    await seconds_to_fail(client, topic)
    assert not await client.is_ready()
    with lossy_proxy(shared_service.url, port):
        assert await client.is_ready()
        await client.put(topic)


@pytest.mark.slow
async def test_many_calls_that_fail_at_one_replica_fail_none_at_another(
    shared_service: ServiceProcess, silent: ScriptedServer, topic: str
) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        async with AsyncClient([silent.url, proxy.url], timeout=1.2, retry_for=0) as client:
            with proxy.responses_held():
                looks = [asyncio.create_task(client.get(topic, "a")) for _ in range(20)]
                await until(lambda: silent.connections == 20, "all hang at the first replica")
                await until(lambda: len(proxy.heads) == 20, "all have failed there")
                looks.append(asyncio.create_task(client.get(topic, "a")))
                await until(lambda: len(proxy.heads) == 21 or looks[20].done(), "another call is sent")
            await asyncio.wait(looks)
            assert {JobNotFound} == {type(look.exception()) for look in looks}


async def test_a_call_that_cannot_be_repeated_moves_the_next_one_to_another_replica(
    shared_service: ServiceProcess, silent: ScriptedServer, topic: str
) -> None:
    async with AsyncClient([silent.url, shared_service.url], timeout=0.3, retry_for=5) as client:
        client._sender._current = 0
        with pytest.raises(NoAnswer):
            await client.finish(JobRef(topic, "a"))
        with pytest.raises(JobNotFound):
            await client.finish(JobRef(topic, "a"))


async def test_a_replica_that_responds_keeps_the_circuit_closed(
    shared_service: ServiceProcess, port: int, topic: str
) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        urls = [f"http://127.0.0.1:{port}", proxy.url]
        async with AsyncClient(urls, timeout=5, retry_for=0) as client:
            for _ in range(5):
                client._sender._current = 0
                await client.put(topic)


def test_a_put_after_a_lost_response_in_an_outage_says_that_it_may_be_stored(
    shared_service: ServiceProcess, topic: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with lossy_proxy(shared_service.url) as proxy:
            client = Client(proxy.url, timeout=5, retry_for=1)
            client.put(topic)
            proxy.hang()
            put = threads.submit(client.put, topic)
            wait_until(proxy.is_done, 5, "the put is executed")
        with pytest.raises(NoAnswer, match="may have been executed") as failed:
            put.result(timeout=20)
    assert type(failed.value) is NoAnswer
