"""The deployment that is measured: whether it is there, what its clock says, and removing what was left in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from deferd.bench.errors import BenchFailed, explained
from deferd.bench.service_clock import Clock, epoch_ms
from deferd.client import AsyncClient, NoAnswer
from deferd.contract.errors import DeferdError, TopicNotFound

_SIGHTINGS = 20
_TIMEOUT_S = 10.0
_REMOVE_TIMEOUT_S = 120.0
"""A million jobs take a while to remove."""
_SETTLE_S = 0.2
_RECOVER_S = 5.0
"""How long a service that fails is asked again to remove what was put."""

Value = TypeVar("Value")


class Deployment:
    """A service behind a URL. Each method connects anew, and raises BenchFailed when it is not answered well."""

    def __init__(self, url: str) -> None:
        self.url = url

    def greet(self, topic: str) -> None:
        """See that a deferd service with a working store answers, by a pop of this topic, which nobody puts into."""

        async def pop(client: AsyncClient) -> None:
            try:
                await client.pop(topic, wait=0)
            except NoAnswer as error:
                raise BenchFailed(f"cannot reach {self.url}: {error.__cause__ or error}") from error

        self._with_client(pop)

    def read_clock(self, topic: str) -> Clock:
        """Compare its store's clock with this machine's, by puts into this topic that stay there."""

        async def look(client: AsyncClient) -> Clock:
            sightings = []
            for _ in range(_SIGHTINGS):
                sent_s = time.time()
                job = await client.put(topic, delay=3600)
                answered_s = time.time()
                sightings.append((sent_s * 1000, epoch_ms(job.fields["created_at"]), answered_s * 1000))
            return Clock.seen_in(sightings)

        return self._with_client(look)

    def remove(self, topic: str) -> int:
        """Remove a topic with its jobs, which nobody uses any more; returns how many there were."""

        async def purge(client: AsyncClient) -> int:
            return await _purge(client, topic) or 0

        return self._with_client(purge, _REMOVE_TIMEOUT_S)

    def remove_all(self, topics: Sequence[str]) -> None:
        """Remove topics into which calls may still be under way, whose senders have hung up.

        A service that fails for a moment, as when its store starts anew, gets the time for it.
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
            raise BenchFailed(f"jobs keep coming into {', '.join(topics)}")

        self._with_client(purge_until_gone, _REMOVE_TIMEOUT_S)

    def _with_client(self, work: Callable[[AsyncClient], Awaitable[Value]], timeout_s: float = _TIMEOUT_S) -> Value:
        async def run() -> Value:
            async with AsyncClient(self.url, timeout=timeout_s, retry_for=0, connections=1) as client:
                return await work(client)

        try:
            return asyncio.run(run())
        except DeferdError as failure:
            raise explained(failure, self.url) from failure


async def _purge(client: AsyncClient, topic: str) -> int | None:
    """How many jobs were removed, None when there is no such topic."""
    try:
        return await client.purge(topic)
    except TopicNotFound:
        return None
