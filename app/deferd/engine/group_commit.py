"""Group commit: calls that arrive at the same time share one call of the store.

While a call for a topic is under way, the calls that arrive are collected and go together in the next one. A call that
arrives alone is sent at once, so there is no added delay. Under load, sharing saves a round trip and a script run for
each call, and an fsync where the store fsyncs always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommit(Generic[Item, Result]):
    """Collects items by topic and sends them with `send(topic, items)`, which returns their results in order.

    A call takes at most `most_items` items, and of several items at most `most_bytes` together, as `size` counts them.
    """

    def __init__(
        self,
        send: Callable[[str, list[Item]], Awaitable[Sequence[Result]]],
        *,
        size: Callable[[Item], int],
        most_items: int = 500,
        most_bytes: int = 512 * 1024,
    ) -> None:
        self._send = send
        self._size = size
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._waiting: dict[str, list[tuple[Item, asyncio.Future[Result]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, topic: str, item: Item) -> Result:
        """Send `item`, together with others of its topic, and return its result.

        An error of the store call is raised to all that were in it.
        """
        waiting = self._waiting.get(topic)
        if waiting is not None:
            result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            waiting.append((item, result))
            return await result
        self._waiting[topic] = []
        try:
            return (await self._send(topic, [item]))[0]
        finally:
            if self._waiting[topic]:
                task = asyncio.get_running_loop().create_task(self._send_waiting(topic))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                del self._waiting[topic]

    async def _send_waiting(self, topic: str) -> None:
        """Send the items that arrived during a call, batch by batch, until none is left."""
        while self._waiting[topic]:
            batch = self._take_batch(self._waiting[topic])
            try:
                results = await self._send(topic, [item for item, _ in batch])
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result)
            except Exception as exc:  # noqa: BLE001 (every caller must learn of any error)
                for _, future in batch:
                    if not future.done():
                        future.set_exception(exc)
        del self._waiting[topic]

    def _take_batch(
        self, waiting: list[tuple[Item, asyncio.Future[Result]]]
    ) -> list[tuple[Item, asyncio.Future[Result]]]:
        taken, size = 0, 0
        for item, _ in waiting:
            size += self._size(item)
            if taken and (taken == self._most_items or size > self._most_bytes):
                break
            taken += 1
        batch = waiting[:taken]
        del waiting[:taken]
        return batch
