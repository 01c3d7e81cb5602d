"""Lets calls find jobs that are on the shelf: they are loaded into the store before anything acts on them.

The shelf (`deferd.shelf`) keeps delayed jobs that are far away in files. Ids that it was asked for do not leave the
store for HELD_S at least, whether it had them or not. So a call that finds nothing, asks, and finds nothing again in
that time, can say that there is no such job. A put, which may reach the store later than that, names the generation in
which it asked: the script does nothing once a job of that generation may have left the store (lua/lib/terms.lua).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Protocol, TypeVar

from deferd.contract.errors import StoreUnavailable

HELD_S = 10.0
"""How long ids stay in the store after the shelf was asked for them."""
NO_SHELF = (1 << 53) - 1
"""In place of a generation: the ids need not be asked for."""
NOT_ASKED = 0
"""In place of a generation: the topic had no jobs on the shelf when it was last heard of."""
_REMEMBERED_MAX = 10_000
Item = TypeVar("Item")
Result = TypeVar("Result")


class Loader(Protocol):
    """The shelf, as calls need it."""

    async def load(self, topic: str, ids: Sequence[str]) -> int:
        """Load those of the jobs that are on the shelf into the store; the others stay there.

        Returns the generation, NOT_ASKED if the shelf has not had any job of the topic. `topic`: a partition.

        Raises StoreUnavailable.
        """
        ...

    async def load_due(self, until_ms: int) -> None:
        """Load all jobs that are due until then. Raises StoreUnavailable."""
        ...

    async def first_due(self, topic: str) -> int | None:
        """When the first job of a topic that is on the shelf is due; None without one. Raises StoreUnavailable."""
        ...


class Shelf:
    """What a process knows of the shelf. Without a `loader` there is none."""

    def __init__(self, loader: Loader | None = None) -> None:
        self.loader = loader
        self._shelved: set[str] = set()
        """The partitions that had jobs on the shelf when a put last asked."""

    async def find(
        self,
        topic: str,
        items: Sequence[Item],
        id_of: Callable[[Item], str],
        send: Callable[[str, list[Item]], Awaitable[Sequence[Result]]],
        is_missing: Callable[[Result], bool],
    ) -> list[Result | StoreUnavailable]:
        """What `send(topic, items)` returns, where it is sent again for items whose jobs had to be loaded.

        An item whose job cannot be loaded has that error as its result. `topic`: a partition.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        results: list[Result | StoreUnavailable] = list(await send(topic, list(items)))
        while missing := [at for at, result in enumerate(results) if is_still_missing(result, is_missing)]:
            if self.loader is None:
                break
            asked_at_s = monotonic()
            try:
                if await self.loader.load(topic, [id_of(items[at]) for at in missing]) == NOT_ASKED:
                    break
                found: Sequence[Result | StoreUnavailable] = await send(topic, [items[at] for at in missing])
            except StoreUnavailable as exc:
                found = [exc] * len(missing)
            for at, result in zip(missing, found, strict=True):
                results[at] = result
            if monotonic() - asked_at_s < HELD_S:
                break
        return results

    async def ask(self, topic: str, ids: Sequence[str]) -> int:
        """Have the jobs with these ids in the store, for puts; returns the generation that the puts must name.

        Raises StoreUnavailable.
        """
        if self.loader is None or not ids:
            return NO_SHELF
        if topic not in self._shelved:
            return NOT_ASKED
        generation = await self.loader.load(topic, ids)
        if generation == NOT_ASKED:
            self._shelved.discard(topic)
        return generation

    def note_shelved(self, topic: str) -> None:
        """Note that a topic has jobs on the shelf: the store has refused a put that had not asked."""
        if len(self._shelved) == _REMEMBERED_MAX:
            self._shelved.clear()
        self._shelved.add(topic)


def is_still_missing(result: Result | StoreUnavailable, is_missing: Callable[[Result], bool]) -> bool:
    """Whether a result, which may be an error, says that there is no such job."""
    return not isinstance(result, StoreUnavailable) and is_missing(result)
