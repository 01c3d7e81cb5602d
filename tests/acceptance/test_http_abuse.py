"""A service under abuse: honest clients do not notice, nothing crashes, and nothing is left behind.

A longer run, with other bytes each time: ``DEFERD_FUZZ=10 python -m pytest -s tests/acceptance/test_http_abuse.py
--timeout=3600``; it prints the answers and the memory of each round.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferd import AsyncClient
from tests.acceptance.http_attacks import GET, Abuse
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.drawn_input import FACTOR

ROUNDS = 3 * max(FACTOR, 1)
DROPPED_A_ROUND = 10_000 // 3 + 1
"""10,000 connections opened and dropped in all, in the suite."""
GROWTH_MAX_BYTES = 8 * 1024 * 1024
"""How far the memory may be from where it was after the second round: allocators keep pages, caches fill."""
QUIET_S = 15.0
HONEST_PAUSE_S = 0.01


@pytest.fixture(scope="module")
def abused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service of its own, with short times to send a request within."""
    limits = {"DEFERD_HEAD_TIMEOUT": "1", "DEFERD_BODY_TIMEOUT": "1", "DEFERD_ANSWER_TIMEOUT": "2"}
    with running_service(data_dir=tmp_path_factory.mktemp("abused"), **limits) as service:
        yield service


class HonestClient:
    """Puts, pops and finishes jobs one after the other, and looks that each call does what it should."""

    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._topic = topic
        self.done = 0
        self.longest_s = 0.0

    async def work(self) -> None:
        """Until it is cancelled. Every call must succeed at its first try."""
        async with AsyncClient(self._url, retry_for=0, timeout=10) as client:
            while True:
                began = time.perf_counter()
                put = await client.put(self._topic, {"n": self.done})
                [popped] = await client.pop(self._topic, wait=5)
                assert (put.id, {"n": self.done}) == (popped.id, popped.body)
                await client.finish(popped)
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
                self.done += 1
                await asyncio.sleep(HONEST_PAUSE_S)


def open_files(pid: int) -> list[str]:
    """What the process has open, each with what it is."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since
            found.append(f"{file.name}: {file.readlink()}")
    return found


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def left_open(pid: int, files_at_first: list[str]) -> list[str]:
    """Files that the process has open although it has had time to close those of the abuse; none if all is well."""
    end_s = time.monotonic() + QUIET_S
    while len(open_files(pid)) > len(files_at_first) and time.monotonic() < end_s:
        await asyncio.sleep(0.1)
    found = open_files(pid)
    return [] if len(found) <= len(files_at_first) else [file for file in found if file not in files_at_first]


@pytest.mark.timeout(90 * max(FACTOR, 1))
async def test_abuse_harms_nobody_and_leaves_nothing_behind(abused: ServiceProcess, topic: str) -> None:
    pid, store_pid = abused.process.pid, abused.store_pid()
    async with AsyncClient(abused.url) as client:  # what is opened at the first use is not left by the abuse
        await client.put(f"{topic}-first")
        await client.finish((await client.pop(f"{topic}-first", wait=5))[0])
        await client.metrics()
    await asyncio.sleep(0.5)
    files_at_first = open_files(pid)
    answers: Counter[int] = Counter()
    memory: list[int] = []
    seed = random.randrange(2**32) if FACTOR else 0
    for round_number in range(ROUNDS):
        honest = HonestClient(abused.url, f"{topic}-{round_number}")
        working = asyncio.create_task(honest.work())
        abuse = Abuse(abused.port, f"{topic}-abused", seed + round_number)
        attacking = asyncio.create_task(abuse.everything(DROPPED_A_ROUND))
        try:
            await asyncio.wait((working, attacking), return_when=asyncio.FIRST_COMPLETED)
            assert not working.done(), f"the honest client failed: {working.exception()!r}"
            await attacking
        finally:
            for task in (working, attacking):
                task.cancel()
            await asyncio.wait((working, attacking))
        answers += abuse.answers
        assert honest.done > 0
        assert [] == await left_open(pid, files_at_first), f"round {round_number}"
        memory.append(resident_bytes(pid))
        print(
            f"round {round_number}, seed {seed + round_number}: {honest.done} honest jobs, the slowest in "
            f"{honest.longest_s:.2f} s; {memory[-1] / 1e6:.1f} MB; answers {sorted(abuse.answers.items())}"
        )
    assert (pid, store_pid) == (abused.process.pid, abused.store_pid())
    assert abused.process.poll() is None
    assert not [status for status in answers if status >= 500], f"seed {seed}: {sorted(answers.items())}"
    assert memory[-1] - memory[1] <= GROWTH_MAX_BYTES, f"memory grows: {memory}"
    assert "Traceback" not in abused.output(), abused.output()[-10_000:]
    async with AsyncClient(abused.url) as client:
        assert 0 == await asyncio.to_thread(abused.parked_pops)
        assert {200, 400, 404, 408, 413, 414, 422, 431} <= answers.keys()
        await client.put(f"{topic}-abused", id="last")
        [popped] = await client.pop(f"{topic}-abused", wait=5)
        assert popped.attempt == 1, "a pop whose client went away has counted"


@pytest.mark.parametrize("wait", ["20", "%320"], ids=["the short way", "through ASGI"])
@pytest.mark.parametrize("behind", [1, 5])
async def test_a_pop_with_requests_sent_behind_it_strands_nothing(
    abused: ServiceProcess, topic: str, wait: str, behind: int
) -> None:
    pop = f"GET /topics/{topic}/pop?wait={wait} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    async with AsyncClient(abused.url) as client:
        sending = asyncio.create_task(Abuse(abused.port, topic, 0).send(pop + GET * behind, wait_s=5))
        await asyncio.to_thread(abused.wait_for_parked_pops, 1)
        sending.cancel()
        await asyncio.wait((sending,))
        await asyncio.to_thread(abused.wait_for_parked_pops, 0)
        await client.put(topic)
        [popped] = await client.pop(topic, wait=5)
    assert 1 == popped.attempt


async def test_a_client_that_goes_away_from_its_pipelined_requests_is_no_error(
    abused: ServiceProcess, topic: str
) -> None:
    abuse = Abuse(abused.port, topic, 0)
    for _ in range(20):
        await abuse.send(b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n" * 50, wait_s=0)
    await asyncio.sleep(0.5)
    assert "Traceback" not in abused.output(), abused.output()[-3000:]
