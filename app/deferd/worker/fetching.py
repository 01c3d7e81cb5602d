"""The pop loop: asks for as many jobs as there is room for, one pop at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deferd.client import AsyncClient, Delivery
from deferd.client.idempotency import new_id
from deferd.contract.errors import DeferdError, InvalidInput
from deferd.contract.limits import POP_COUNT_MAX, WAIT_DEFAULT_S
from deferd.worker.topic_priority import Order
from deferd.worker.transient_errors import Pauses, Trouble

_ANSWER_S = 0.5
"""A pop that has waited longer than this has found nothing ready: it can be hung up on."""


class Fetcher:
    """Pops jobs while there is room.

    `room` says for how many there is; when it says 0 it is asked again after `look_again`. `take` gets what came, and
    whether it may have been handed out some time ago already.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        order: Order,
        consumer: str,
        room: Callable[[], int],
        take: Callable[[list[Delivery], bool], None],
    ) -> None:
        self._client = client
        self._order = order
        self._consumer = consumer
        self._room = room
        self._take = take
        self._there_may_be_room = asyncio.Event()
        self._trouble = Trouble("fetching jobs")
        self._ending = False
        self._asked_at_s = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin; the task ends by `stop`, or with an error that no further try can mend."""
        self._task = asyncio.create_task(self._run())
        return self._task

    def look_again(self) -> None:
        """There may be room now."""
        self._there_may_be_room.set()

    async def stop(self) -> None:
        """Pop no more. What a pop under way brings at once is still taken, so that it can be given back.

        A pop that waits is cut off: the service takes back what it pops for one that has hung up.
        """
        self._ending = True
        if self._task is None:
            return
        if (left_s := self._asked_at_s + _ANSWER_S - self._loop.time()) > 0:
            await asyncio.wait({self._task}, timeout=left_s)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        hurried = Pauses()
        while not self._ending:
            count = min(self._room(), POP_COUNT_MAX)
            if count <= 0:
                self._there_may_be_room.clear()
                await self._there_may_be_room.wait()
                continue
            began_s = self._loop.time()
            jobs, old = await self._pop(count)
            if jobs:
                self._take(jobs, old)
            elif self._loop.time() - began_s < _ANSWER_S:
                # The service is shutting down: it keeps nobody waiting.
                await asyncio.sleep(hurried.next_s())
                continue
            hurried = Pauses()

    async def _pop(self, count: int) -> tuple[list[Delivery], bool]:
        """What one pop brings, and whether an answer to it was lost before."""
        topics, request_id, pauses, asked_before = self._order(), new_id(), Pauses(), False
        while True:
            self._asked_at_s = self._loop.time()
            try:
                jobs = await self._client.pop(
                    topics, count=count, wait=WAIT_DEFAULT_S, consumer=self._consumer, request_id=request_id
                )
            except InvalidInput:
                raise
            except DeferdError as error:
                self._trouble.met(error)
                if self._ending:
                    return [], True
                asked_before = True
                self._asked_at_s = float("-inf")
                await asyncio.sleep(pauses.next_s(error))
            else:
                self._trouble.over()
                return jobs, asked_before
