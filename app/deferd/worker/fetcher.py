"""Fetches jobs: pops as many as the worker has room for, one pop at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deferd.client import AsyncClient, Delivery
from deferd.client.idempotency import new_id
from deferd.client.retry import RetryPolicy
from deferd.contract.errors import DeferdError, InvalidInput, TopicPushed
from deferd.contract.limits import POP_COUNT_MAX, WAIT_DEFAULT_S
from deferd.worker.log import FailureLog
from deferd.worker.topic_priority import TopicOrder

_RETRY = RetryPolicy(heeds_proxies=False)
_LONG_POLL_S = 0.5
"""A pop without a response after this time found nothing ready and waits: it can be cancelled."""


class Fetcher:
    """Pops jobs while there is room.

    `room` returns for how many jobs there is room; after a 0 it is called again when `room_changed` is. `take` gets the
    jobs of a pop, and whether their leases may have begun some time ago.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        order: TopicOrder,
        consumer: str,
        room: Callable[[], int],
        take: Callable[[list[Delivery], bool], None],
    ) -> None:
        self._client = client
        self._order = order
        self._consumer = consumer
        self._room = room
        self._take = take
        self._room_changed = asyncio.Event()
        self._failures = FailureLog("fetching jobs")
        self._stopping = False
        self._pop_began_s = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Start fetching. The task ends after `stop`, or with an error that no retry can fix."""
        self._task = asyncio.create_task(self._run())
        return self._task

    def room_changed(self) -> None:
        """There may be room now."""
        self._room_changed.set()

    async def stop(self) -> None:
        """Stop fetching. Jobs that a pop under way returns at once are still taken, so they can be released.

        A pop that waits is cancelled: the service returns to the queue what it pops for a disconnected client.
        """
        self._stopping = True
        if self._task is None:
            return
        if (left_s := self._pop_began_s + _LONG_POLL_S - self._loop.time()) > 0:
            await asyncio.wait({self._task}, timeout=left_s)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        quick_empty_pops = 0
        while not self._stopping:
            count = min(self._room(), POP_COUNT_MAX)
            if count <= 0:
                self._room_changed.clear()
                await self._room_changed.wait()
                continue
            began_s = self._loop.time()
            jobs, old = await self._pop(count)
            if jobs:
                self._take(jobs, old)
            elif self._loop.time() - began_s < _LONG_POLL_S:
                # The service is shutting down and lets no pop wait.
                await asyncio.sleep(_RETRY.pause_s(quick_empty_pops))
                quick_empty_pops += 1
                continue
            quick_empty_pops = 0

    async def _pop(self, count: int) -> tuple[list[Delivery], bool]:
        """The jobs of one pop, and whether a response to it was lost before."""
        topics, request_id, failures = self._order(), new_id(), 0
        while True:
            self._pop_began_s = self._loop.time()
            try:
                jobs = await self._client.pop(
                    topics, count=count, wait=WAIT_DEFAULT_S, consumer=self._consumer, request_id=request_id
                )
            except (InvalidInput, TopicPushed):  # the same call will not succeed later
                raise
            except DeferdError as error:
                self._failures.failed(error)
                if self._stopping:
                    return [], True
                self._pop_began_s = float("-inf")
                await asyncio.sleep(_RETRY.pause_s(failures, error))
                failures += 1
            else:
                self._failures.succeeded()
                return jobs, failures > 0
