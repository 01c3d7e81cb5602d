"""A service under abuse: honest clients do not notice, nothing crashes, and nothing is left behind.

A longer run, with other bytes each time: ``DEFERD_FUZZ=10 python -m pytest -s -m slow --timeout=3600
tests/acceptance/server/test_http_abuse.py``; it prints the responses and the memory of each round.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient
from tests.acceptance.api import key_floods
from tests.acceptance.api.key_floods import FLOODS
from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.server.http_attacks import GET, Abuse
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.benchmarks.measuring import resident_bytes
from tests.drawn_input import FACTOR
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

pytestmark = pytest.mark.slow

ROUNDS = 3 * max(FACTOR, 1)
DROPPED_A_ROUND = 10_000 // 3 + 1
"""10,000 connections opened and dropped in all, in the suite."""
GROWTH_MAX_BYTES = 8 * 1024 * 1024
"""How much the memory may grow after the second round: allocators keep pages, caches fill."""
QUIET_S = 15.0
HONEST_PAUSE_S = 0.01
FLOOD_S = 1.0 * max(FACTOR, 1)
BYSTANDER_FIRST_JOBS = 100
UNSENT_MAX_BYTES = 8 * 1024 * 1024
MEMORY_BESIDES_BYTES = 64 * 1024 * 1024
"""The memory of a few pops of 5 MB between store and client, and what allocators keep."""
STORE_GROWTH_MAX_BYTES = 1024 * 1024
"""How much the store may grow in a second round of floods; the first has used up the quotas."""
FLOODED_MAX_BYTES = 16 * 1024 * 1024
"""What all floods together may leave in the store: the quotas, mostly that for large jobs."""
BYSTANDER_P99_S = 1.0
"""How long a bystander's request may take under a flood: usually some ms, but the machine may be busy."""
BYSTANDER_TIMES = 10
"""Or this many times what it took before the flood, where that was long already."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with short timeouts for requests."""
    limits = {"DEFERD_HEAD_TIMEOUT": "1", "DEFERD_BODY_TIMEOUT": "1", "DEFERD_ANSWER_TIMEOUT": "2"}
    with running_service(data_dir=tmp_path_factory.mktemp("abused"), **limits) as service:
        yield service


class HonestClient:
    """Puts, pops and finishes jobs one after the other, and checks each response."""

    def __init__(self, url: str, topic: str, **options: Any) -> None:
        self._url = url
        self._topic = topic
        self._options = options
        self.done = 0
        self.took_s: list[float] = []

    @property
    def longest_s(self) -> float:
        return max(self.took_s, default=0.0)

    def p99_s(self, since: int = 0) -> float:
        """The maximum time of nearly all its jobs, without the earlier ones."""
        return statistics.quantiles(self.took_s[since:], n=100)[98]

    async def work(self) -> None:
        """Run until cancelled. Every request must succeed at the first attempt."""
        async with AsyncClient(self._url, retry_for=0, timeout=10, **self._options) as client:
            while True:
                began = time.perf_counter()
                put = await client.put(self._topic, {"n": self.done})
                [popped] = await client.pop(self._topic, wait=5)
                assert (put.id, {"n": self.done}) == (popped.id, popped.body)
                await client.finish(popped)
                self.took_s.append(time.perf_counter() - began)
                self.done += 1
                await asyncio.sleep(HONEST_PAUSE_S)


def open_files(pid: int) -> list[str]:
    """The open files of the process, with their targets."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since
            found.append(f"{file.name}: {file.readlink()}")
    return found


async def leaked_files(pid: int, files_at_first: list[str]) -> list[str]:
    """Files that the process still has open after it had time to close them; none if it leaks none."""
    end_s = time.monotonic() + QUIET_S
    while len(open_files(pid)) > len(files_at_first) and time.monotonic() < end_s:
        await asyncio.sleep(0.1)
    found = open_files(pid)
    return [] if len(found) <= len(files_at_first) else [file for file in found if file not in files_at_first]


@pytest.mark.timeout(600 * max(FACTOR, 1))
async def test_abuse_harms_nobody_and_leaves_nothing_behind(service: ServiceProcess, topic: str) -> None:
    pid, store_pid = service.process.pid, service.store_pid()
    async with AsyncClient(service.url) as client:  # files opened at the first use are not a leak
        await client.put(f"{topic}-first")
        await client.finish((await client.pop(f"{topic}-first", wait=5))[0])
        await client.metrics()
    await asyncio.sleep(0.5)
    files_at_first = open_files(pid)
    responses: Counter[int] = Counter()
    memory: list[int] = []
    seed = random.randrange(2**32) if FACTOR else 0
    for round_number in range(ROUNDS):
        honest = HonestClient(service.url, f"{topic}-{round_number}")
        working = asyncio.create_task(honest.work())
        abuse = Abuse(service.port, f"{topic}-abused", seed + round_number)
        attacking = asyncio.create_task(abuse.everything(DROPPED_A_ROUND))
        try:
            await asyncio.wait((working, attacking), return_when=asyncio.FIRST_COMPLETED)
            assert not working.done(), f"the honest client failed: {working.exception()!r}"
            await attacking
        finally:
            for task in (working, attacking):
                task.cancel()
            await asyncio.wait((working, attacking))
        responses += abuse.responses
        assert honest.done > 0
        assert [] == await leaked_files(pid, files_at_first), f"round {round_number}"
        memory.append(resident_bytes(pid))
        print(
            f"round {round_number}, seed {seed + round_number}: {honest.done} honest jobs, the slowest in "
            f"{honest.longest_s:.2f} s; {memory[-1] / 1e6:.1f} MB; responses {sorted(abuse.responses.items())}"
        )
    assert (pid, store_pid) == (service.process.pid, service.store_pid())
    assert service.process.poll() is None
    errors = [status for status in responses if status >= 500 and status != 501]  # 501: for a transfer coding
    assert not errors, f"seed {seed}: {sorted(responses.items())}"
    assert memory[-1] - memory[1] <= GROWTH_MAX_BYTES, f"memory grows: {memory}"
    assert "Traceback" not in service.output(), service.output()[-10_000:]
    async with AsyncClient(service.url) as client:
        assert 0 == await asyncio.to_thread(service.waiting_pops)
        assert {200, 400, 404, 408, 413, 414, 422, 431} <= responses.keys()
        await client.put(f"{topic}-abused", id="last")
        [popped] = await client.pop(f"{topic}-abused", wait=5)
        assert popped.attempt == 1, "a pop whose client went away has counted"


@pytest.mark.parametrize("wait", ["20", "%320"], ids=["the short way", "through ASGI"])
@pytest.mark.parametrize("behind", [1, 5])
async def test_a_pop_with_pipelined_requests_behind_it_holds_up_no_job(
    service: ServiceProcess, topic: str, wait: str, behind: int
) -> None:
    pop = f"GET /topics/{topic}/pop?wait={wait} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    async with AsyncClient(service.url) as client:
        sending = asyncio.create_task(Abuse(service.port, topic, 0).send(pop + GET * behind, wait_s=5))
        await asyncio.to_thread(service.wait_for_waiting_pops, 1)
        sending.cancel()
        await asyncio.wait((sending,))
        await asyncio.to_thread(service.wait_for_waiting_pops, 0)
        await client.put(topic)
        [popped] = await client.pop(topic, wait=5)
    assert 1 == popped.attempt


async def test_a_client_that_disconnects_from_its_pipelined_requests_is_no_error(
    service: ServiceProcess, topic: str
) -> None:
    abuse = Abuse(service.port, topic, 0)
    for _ in range(20):
        await abuse.send(b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n" * 50, wait_s=0)
    await asyncio.sleep(0.5)
    assert "Traceback" not in service.output(), service.output()[-3000:]


def used_memory(store: StoreServer) -> int:
    """The memory of the store, including its buffers for clients."""
    return int(store.command("INFO", "memory")["used_memory"])


@pytest.mark.timeout(600 * max(FACTOR, 1))
async def test_floods_by_keys_with_quotas_fill_no_memory_and_slow_nobody_down(tmp_path: Path, topic: str) -> None:
    files, keys = TlsFiles(tmp_path / "tls"), KeysFile(tmp_path / "keys.toml")
    keys.add("bystander", "put", "pop")
    for name in FLOODS:
        max_bytes = 12_000_000 if name == "slow" else 500_000
        scopes = key_floods.SCOPES.get(name, ("put", "pop", "cancel", "read"))
        keys.add(name, *scopes, topics=(f"{name}.*",), more=key_floods.QUOTA.format(max_bytes=max_bytes))
    limits = ("--max-connections", "100", "--max-unsent-bytes", str(UNSENT_MAX_BYTES))
    flags = (*files.flags(), "--keys-file", str(keys.path), *limits)
    with (
        StoreServer(tmp_path / "store") as store,
        running_service(*flags, data_dir=tmp_path, DEFERD_REDIS_URL=store.url) as service,
    ):
        honest = HonestClient(
            f"https://127.0.0.1:{service.port}", topic, key=keys.tokens["bystander"], tls=files.trust()
        )
        bystander = asyncio.create_task(honest.work())
        held: list[int] = []
        memory: list[int] = []
        try:
            await until(lambda: honest.done >= BYSTANDER_FIRST_JOBS or bystander.done(), "the bystander is at work")
            alone_s = honest.p99_s(BYSTANDER_FIRST_JOBS // 2)  # the first requests take longer
            held.append(used_memory(store))
            memory.append(resident_bytes(service.process.pid))
            for round_number, seconds in enumerate((FLOOD_S, FLOOD_S / 2)):
                for name in FLOODS:
                    before, so_far = used_memory(store), honest.done
                    outcome = await key_floods.run_flood(
                        name, service.port, files.authority_file, keys.tokens[name], seconds=seconds
                    )
                    assert not bystander.done(), f"the bystander failed: {bystander.exception()!r}"
                    p99_s = honest.p99_s(so_far)
                    print(
                        f"round {round_number}, {name}: {outcome.steps} steps, responses {outcome.responses}; "
                        f"bystander's p99 {p99_s * 1000:.1f} ms, {p99_s / alone_s:.1f} times that of before; the store "
                        f"{(used_memory(store) - before) / 1e3:+.0f} kB; the service "
                        f"{resident_bytes(service.process.pid) / 1e6:.1f} MB"
                    )
                    assert p99_s < max(BYSTANDER_P99_S, BYSTANDER_TIMES * alone_s)
                    assert not [status for status in outcome.responses if status >= "500"], outcome
                held.append(used_memory(store))
                memory.append(resident_bytes(service.process.pid))
        finally:
            bystander.cancel()
            await asyncio.wait((bystander,))
        assert "Traceback" not in service.output()
    empty, first, second = held
    assert first - empty < FLOODED_MAX_BYTES
    assert second - first < STORE_GROWTH_MAX_BYTES
    assert max(memory) - memory[0] < UNSENT_MAX_BYTES + MEMORY_BESIDES_BYTES, memory
