"""The measured deployment: checking it, comparing clocks, and removing topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from deferd.bench.errors import BenchFailed, bench_error
from deferd.bench.service_clock import ClockOffset, epoch_ms
from deferd.client import AsyncClient, NoAnswer
from deferd.contract.errors import DeferdError, TopicNotFound

_SAMPLES = 20
_TIMEOUT_S = 10.0
_REMOVE_TIMEOUT_S = 120.0
"""Removing a million jobs takes a while."""
_SETTLE_S = 0.2
_RECOVER_S = 5.0
"""How long removing is retried while the service fails."""

Value = TypeVar("Value")


class Deployment:
    """The service at a URL. Each method uses a new connection and raises BenchFailed when a call fails."""

    def __init__(self, url: str) -> None:
        self.url = url

    def check(self, topic: str) -> None:
        """Check that a deferd service with a working store responds, with a pop of this empty topic."""

        async def pop(client: AsyncClient) -> None:
            try:
                await client.pop(topic, wait=0)
            except NoAnswer as error:
                raise BenchFailed(f"cannot reach {self.url}: {error.__cause__ or error}") from error

        self._with_client(pop)

    def read_clock(self, topic: str) -> ClockOffset:
        """Compare the clock of its store with this machine's by puts into this topic; the jobs stay there."""

        async def compare(client: AsyncClient) -> ClockOffset:
            samples = []
            for _ in range(_SAMPLES):
                sent_s = time.time()
                job = await client.put(topic, delay=3600)
                received_s = time.time()
                samples.append((sent_s * 1000, epoch_ms(job.created_at), received_s * 1000))
            return ClockOffset.from_samples(samples)

        return self._with_client(compare)

    def remove(self, topic: str) -> int:
        """Remove a topic that is no longer used; returns how many jobs it had."""

        async def purge(client: AsyncClient) -> int:
            return await _purge(client, topic) or 0

        return self._with_client(purge, _REMOVE_TIMEOUT_S)

    def remove_all(self, topics: Sequence[str]) -> None:
        """Remove topics into which puts may still be in progress, from clients that have disconnected.

        It retries for a while when the service fails, for example while its store restarts.
        """

        async def purge_until_gone(client: AsyncClient) -> None:
            give_up_s = time.monotonic() + _RECOVER_S
            while time.monotonic() < give_up_s + _REMOVE_TIMEOUT_S:
                await asyncio.sleep(_SETTLE_S)
                try:
                    if {await _purge(client, topic) for topic in topics} == {None}:
                        return
                except DeferdError:
                    if time.monotonic() > give_up_s:
                        raise
            raise BenchFailed(f"jobs are still being put into {', '.join(topics)}")

        self._with_client(purge_until_gone, _REMOVE_TIMEOUT_S)

    def _with_client(self, work: Callable[[AsyncClient], Awaitable[Value]], timeout_s: float = _TIMEOUT_S) -> Value:
        async def run() -> Value:
            async with AsyncClient(self.url, timeout=timeout_s, retry_for=0, connections=1) as client:
                return await work(client)

        try:
            return asyncio.run(run())
        except DeferdError as failure:
            raise bench_error(failure, self.url) from failure


async def _purge(client: AsyncClient, topic: str) -> int | None:
    """How many jobs were removed; None without such a topic."""
    try:
        return await client.purge(topic)
    except TopicNotFound:
        return None
