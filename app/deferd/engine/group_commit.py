"""Joins calls that come at the same time into one call of the store: a group commit.

While a call for a topic is under way, those that come meanwhile are collected and go together in the next one. A
call that comes alone goes at once, so joining costs no time; under load it saves a round trip, a script call and,
with fsync always, an fsync for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class GroupCommit(Generic[Item, Answer]):
    """Collects items by topic and sends them with `send(topic, items)`, which answers each in order.

    At most `most_items` go in one call, and no more once they reach `most_bytes` (as `size` counts them).
    """

    def __init__(
        self,
        send: Callable[[str, list[Item]], Awaitable[Sequence[Answer]]],
        *,
        size: Callable[[Item], int],
        most_items: int = 500,
        most_bytes: int = 512 * 1024,
    ) -> None:
        self._send = send
        self._size = size
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._waiting: dict[str, list[tuple[Item, asyncio.Future[Answer]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, topic: str, item: Item) -> Answer:
        """Send `item` with whatever else there is for the topic. An error of the call goes to all that were in it."""
        waiting = self._waiting.get(topic)
        if waiting is not None:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            waiting.append((item, answer))
            return await answer
        self._waiting[topic] = []
        try:
            return (await self._send(topic, [item]))[0]
        finally:
            if self._waiting[topic]:
                task = asyncio.get_running_loop().create_task(self._serve(topic))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                del self._waiting[topic]

    async def _serve(self, topic: str) -> None:
        """Send those who came while a call was under way, until nobody waits."""
        while self._waiting[topic]:
            batch = self._take(self._waiting[topic])
            try:
                answers = await self._send(topic, [item for item, _ in batch])
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
            except Exception as exc:  # noqa: BLE001 (whatever it is, those who asked must hear of it)
                for _, future in batch:
                    if not future.done():
                        future.set_exception(exc)
        del self._waiting[topic]

    def _take(self, waiting: list[tuple[Item, asyncio.Future[Answer]]]) -> list[tuple[Item, asyncio.Future[Answer]]]:
        taken, size = 0, 0
        for item, _ in waiting:
            size += self._size(item)
            if taken and (taken == self._most_items or size > self._most_bytes):
                break
            taken += 1
        batch = waiting[:taken]
        del waiting[:taken]
        return batch
