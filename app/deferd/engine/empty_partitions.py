"""Which partitions are known to be empty, for topics with several partitions: a waiting pop need not poll them.

A partition counts as empty if its last poll found nothing and no message has come since. Because messages can be lost,
it is checked again every few seconds, with one command for many partitions of a shard.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from deferd.contract.errors import StoreUnavailable
from deferd.engine.partitions import topic_of
from deferd.engine.queue import JobQueue
from deferd.engine.redis_keys import Keys

_LOOK_AGAIN_S = 5.0
_PARTITIONS_PER_CALL = 500


class EmptyPartitions:
    """The empty partitions that this process knows.

    `is_waited_for` says whether a pop waits for a partition; other partitions are soon forgotten. `on_ready` is called
    for a partition that may have something after all.
    """

    def __init__(
        self,
        queue: JobQueue,
        keys: Keys,
        *,
        is_waited_for: Callable[[str], bool],
        on_ready: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._keys = keys
        self._is_waited_for = is_waited_for
        self._on_ready = on_ready
        self._names: set[str] = set()
        self._looks: list[tuple[Sequence[str], Sequence[str]]] | None = None
        """The partitions and Ready lists in each command of the next check; None when the set of empty partitions has
        changed. Making these names for 10,000 partitions costs more than the rest of a check."""
        self._missed_messages = asyncio.Event()
        self._turn = 0

    def __contains__(self, partition: str) -> bool:
        return partition in self._names

    def partitions_of(self, topics: Sequence[str]) -> Sequence[str]:
        """The partitions of topics, in the order of the topics.

        The first partition of each topic rotates from call to call.
        """
        partitions = self._keys.partitions
        if not partitions.layouts:
            return topics
        self._turn += 1
        expanded: list[str] = []
        for topic in topics:
            names = partitions.of(topic)
            at = self._turn % len(names)
            expanded += (*names[at:], *names[:at])
        return expanded

    def add(self, topic: str) -> None:
        """A poll found nothing. This is remembered only for topics with several partitions."""
        partitions = self._keys.partitions
        if partitions.layouts and topic not in self._names and partitions.count(topic_of(topic)) > 1:
            self._names.add(topic)
            self._looks = None

    def discard(self, partition: str) -> None:
        """It may have something ready."""
        if partition in self._names:
            self._names.remove(partition)
            self._looks = None

    def on_gap(self) -> None:
        """Messages may have been missed: look again at once."""
        self._missed_messages.set()

    async def run(self) -> None:
        """Look again, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._missed_messages.wait()
            self._missed_messages.clear()
            for partition in [one for one in self._names if not self._is_waited_for(one)]:
                self.discard(partition)
            if self._looks is None:
                self._looks = self._by_shard()
            for partitions, ready_lists in self._looks:
                await self._look_again(partitions, ready_lists)

    def _by_shard(self) -> list[tuple[Sequence[str], Sequence[str]]]:
        calls = [
            partitions[at : at + _PARTITIONS_PER_CALL]
            for partitions in self._keys.by_shard(self._names).values()
            for at in range(0, len(partitions), _PARTITIONS_PER_CALL)
        ]
        return [(partitions, [self._keys.named(one, "ready") for one in partitions]) for partitions in calls]

    async def _look_again(self, partitions: Sequence[str], ready_lists: Sequence[str]) -> None:
        try:
            if not await self._queue.have_ready(ready_lists):
                return
        except StoreUnavailable:
            return  # once the store is back, all are polled
        if len(partitions) == 1:
            self._on_ready(partitions[0])
            return
        half = len(partitions) // 2
        await self._look_again(partitions[:half], ready_lists[:half])
        await self._look_again(partitions[half:], ready_lists[half:])
