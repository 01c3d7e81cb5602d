"""Lets calls find jobs that are on the shelf: they are loaded into the store before anything acts on them.

The shelf (`deferd.shelf`) keeps delayed jobs that are far away in files. Ids that it was asked for do not leave the
store for HELD_S at least, whether it had them or not. So a call that finds nothing, asks, and finds nothing again in
that time, can say that there is no such job. A put, which may reach the store later than that, names the generation in
which it asked: the script does nothing once a job of that generation may have left the store (lua/lib/terms.lua).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson
from msgspec import Struct

from deferd.contract.errors import StoreUnavailable

HELD_S = 10.0
"""How long ids stay in the store after the shelf was asked for them."""
KEPT_S = 30.0
"""How long the jobs of a topic stay in the store after a call for that."""
OTHERS_WAIT_S = 0.25
"""How long a call waits for the shelf if it shares its calls of the store with calls that need no job of the shelf. It
usually takes milliseconds. What a slow shelf was asked for is loaded by the next attempt."""
STILL_S = 1.0
"""How long the shelf waits for the end of a block in which jobs must not move."""
NO_SHELF = (1 << 53) - 1
"""In place of a generation: the ids need not be asked for."""
NOT_ASKED = 0
"""In place of a generation: the topic had no jobs on the shelf when it was last heard of."""
OPENING = "the shelf is being opened"
"""The fault of a shelf whose process has just started."""
PAGE_S = 2.0
"""How long an operator's page waits for the shelf."""
HANGS_S = 5.0
"""Once one has waited in vain, no page waits for so long."""
_HANGS = "the shelf did not respond in time"
_REMEMBERED_MAX = 10_000
_NOTED_MOST = 100_000
Item = TypeVar("Item")
Result = TypeVar("Result")


class Job(NamedTuple):
    """A delayed job with its record, as the store has it; see engine/record.py."""

    id: str
    record: bytes

    @property
    def created_ms(self) -> int:
        """When it was put."""
        return int.from_bytes(self.record[:6], "little")

    @property
    def due_ms(self) -> int:
        """When it is due."""
        return int.from_bytes(self.record[6:12], "little")

    @property
    def attempts(self) -> int:
        """How many attempts it has had."""
        return int.from_bytes(self.record[18:22], "little")

    @property
    def tags(self) -> Sequence[str]:
        """Its tags."""
        tags: Sequence[str] = self._stored("g", ())
        return tags

    @property
    def group(self) -> str:
        """Its group, empty without one."""
        group: str = self._stored("gr", "")
        return group

    @property
    def takes_turns(self) -> bool:
        """Whether it has a group or a priority."""
        return bool(self.group or self._stored("pr", 0))

    @property
    def error(self) -> str:
        """The error of its last attempt, empty without one."""
        error: str = self._stored("e", "")
        return error

    def _stored(self, key: str, default: Any) -> Any:
        """What the record's `extra` has under a key. The JSON is read only if it may have it."""
        extra = self._extra
        return orjson.loads(extra).get(key, default) if b'"%b":' % key.encode() in extra else default

    @property
    def is_intact(self) -> bool:
        """Whether its fields can be read. Otherwise another program has damaged the record in the store."""
        extra = self._extra
        if not extra:
            return self.record[22:26] == bytes(4)
        try:
            fields = orjson.loads(extra)
        except ValueError:
            return False
        tags = fields.get("g", ()) if isinstance(fields, dict) else None
        return isinstance(tags, (list, tuple)) and all(isinstance(tag, str) for tag in tags)

    @property
    def _extra(self) -> bytes:
        return self.record[26 : 26 + int.from_bytes(self.record[22:26], "little")]


class Wanted(NamedTuple):
    """The conditions on jobs to read; None is no condition. See engine/topics.py for what they mean."""

    due_from_ms: int | None = None
    due_before_ms: int | None = None
    tag: str | None = None
    id_prefix: str | None = None
    error: str | None = None
    created_until_ms: int | None = None
    is_retried: bool = False
    group: str | None = None

    def matches(self, job: Job) -> bool:
        """Whether a job that is due in that time meets them."""
        return (
            (self.id_prefix is None or job.id.startswith(self.id_prefix))
            and (self.created_until_ms is None or job.created_ms <= self.created_until_ms)
            and (not self.is_retried or job.attempts > 0)
            and (self.tag is None or self.tag in job.tags)
            and (self.group is None or self.group == job.group)
            and (self.error is None or self.error in job.error)
        )


class Page(NamedTuple):
    """Jobs in the order of due time and id. `end` is where the look ended: due time and id of the last of `looked_at`
    jobs. `unreadable` are ids of jobs among these whose records are damaged.
    """

    jobs: list[Job]
    looked_at: int
    end: tuple[int, str] | None
    has_more: bool
    unreadable: tuple[str, ...] = ()


class Asked(NamedTuple):
    """Ids that a call has asked for, and in which generation."""

    generation: int
    ids: Sequence[str]


class Status(Struct, frozen=True):
    """How the shelf is doing. Rates are per second, over the last 10 s.

    `fault`: why jobs cannot be read or moved; None while they can. With a fault nothing else is known. `jobs`: how many
    are on the shelf, None if that could not be read at the start. Jobs are loaded `ahead_s` before they are due.
    `jobs_behind` have not been loaded although they are due within half of that, the first of them for `behind_s`.
    `unreadable` jobs could not be read, by moves or calls, as a file is damaged; there may be more.
    """

    pid: int
    fault: str | None = None
    jobs: int | None = None
    bytes_on_disk: int = 0
    moved_out: int = 0
    moved_in: int = 0
    moved_out_per_s: float = 0.0
    moved_in_per_s: float = 0.0
    jobs_behind: int = 0
    behind_s: float = 0.0
    ahead_s: float = 0.0
    unreadable: int = 0

    @property
    def first_due_in_s(self) -> float:
        """In how many seconds the first of the jobs behind is due; below 0 if it is late."""
        return self.ahead_s / 2 - self.behind_s


class ShelfCalls(Protocol):
    """The calls of the shelf. `topic` is a partition everywhere. Each raises StoreUnavailable."""

    async def load(self, topic: str, ids: Sequence[str], let_go: Sequence[Asked] = (), at_least: int = 0) -> int:
        """Load those of the jobs that are on the shelf into the store; the others stay there.

        Returns the generation, which is `at_least` that one, or NOT_ASKED if the shelf has not had any job of the
        topic. Ids in `let_go` may leave the store, as far as no other call has asked for them.
        """
        ...

    async def load_due(self, until_ms: int) -> None:
        """Load all jobs that are due until then; none leaves the store for a second or two."""
        ...

    async def keep(self, topic: str) -> None:
        """Let no job of a topic leave the store from now on for KEPT_S."""
        ...

    def still(self, topic: str) -> AbstractAsyncContextManager[None]:
        """Let no job of a topic move during the block, which must be short: at its end, raises if it took STILL_S."""
        ...

    async def page(
        self, topic: str, wanted: Wanted, most: int, after: tuple[int, str] | None = None, *, reverse: bool = False
    ) -> Page:
        """Look at the next jobs of a topic on the shelf, at most `most`, behind a due time and id."""
        ...

    async def with_tag(self, topic: str, tag: str, most: int, after: str = "", *, reverse: bool = False) -> list[str]:
        """The ids of at most `most` jobs of a topic on the shelf that have a tag, in order, those after `after`."""
        ...

    async def topics_with_tag(self, tag: str) -> list[str]:
        """The topics that have jobs with this tag on the shelf, in order."""
        ...

    async def counts_before(self, topic: str, times_ms: Sequence[int]) -> list[int]:
        """How many jobs of a topic on the shelf are due before each of the times, which ascend."""
        ...

    async def first_due(self, topic: str) -> int | None:
        """When the first job of a topic that is on the shelf is due; None without one."""
        ...

    async def status(self) -> Status:
        """How the shelf is doing."""
        ...


class Shelf:
    """What a process knows of the shelf. Without `calls` there is none."""

    def __init__(self, calls: ShelfCalls | None = None) -> None:
        self.calls = calls
        self._hangs_until_s = 0.0
        self._shelved: dict[str, int] = {}
        """The partitions that had jobs on the shelf when a put last asked, with the generation that the store asks for.

        That is higher than the shelf's if its files are older than the store.
        """
        self._done: dict[str, list[Asked]] = {}
        """By partition: what was asked for by puts that have ended."""
        self._ids_done = 0
        """How many ids that are."""

    async def find(
        self,
        topic: str,
        items: Sequence[Item],
        id_of: Callable[[Item], str],
        send: Callable[[str, list[Item]], Awaitable[Sequence[Result]]],
        is_missing: Callable[[Result], bool],
        *,
        within_s: float | None = None,
    ) -> list[Result | StoreUnavailable]:
        """What `send(topic, items)` returns, where it is sent again for items whose jobs had to be loaded.

        An item whose job cannot be loaded, or not `within_s`, has that error as its result. `topic`: a partition.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        results: list[Result | StoreUnavailable] = list(await send(topic, list(items)))
        while missing := [at for at, result in enumerate(results) if is_still_missing(result, is_missing)]:
            if self.calls is None:
                break
            asked_at_s = monotonic()
            try:
                load = self.calls.load(topic, [id_of(items[at]) for at in missing])
                if await _within(within_s, load) == NOT_ASKED:
                    break
                found: Sequence[Result | StoreUnavailable] = await send(topic, [items[at] for at in missing])
            except StoreUnavailable as exc:
                found = [exc] * len(missing)
            for at, result in zip(missing, found, strict=True):
                results[at] = result
            if monotonic() - asked_at_s < HELD_S:
                break
        return results

    async def ask(self, topic: str, ids: Sequence[str], *, within_s: float | None = None) -> int:
        """Have the jobs with these ids in the store, for puts; returns the generation that the puts must name.

        Raises StoreUnavailable, also if that takes longer than `within_s`.
        """
        if self.calls is None or not ids:
            return NO_SHELF
        if topic not in self._shelved:
            return NOT_ASKED
        done = self._done.pop(topic, ())
        self._ids_done -= sum(len(asked.ids) for asked in done)
        try:
            generation = await _within(within_s, self.calls.load(topic, ids, done, self._shelved[topic]))
        except StoreUnavailable:
            # The topic may have no jobs there any more: the script of the next put knows.
            self._shelved.pop(topic, None)
            raise
        if generation == NOT_ASKED:
            self._shelved.pop(topic, None)
        return generation

    def note_done(self, topic: str, asked: Asked) -> None:
        """Note that a put has ended, so that its ids may leave the store; the shelf learns of it with the next put.

        Not for a put that may still come to the store.
        """
        if asked.generation in {NO_SHELF, NOT_ASKED}:
            return
        self._ids_done += len(asked.ids)
        if self._ids_done > _NOTED_MOST:  # topics that nobody puts into again; the shelf holds no id for long
            self._done.clear()
            self._ids_done = len(asked.ids)
        self._done.setdefault(topic, []).append(asked)

    @asynccontextmanager
    async def loaded(self, topic: str, ids: Sequence[str]) -> AsyncIterator[None]:
        """Have the jobs with these ids in the store during the block.

        Raises StoreUnavailable, also at the end of a block that took so long that they may have left.
        """
        if self.calls is None or not ids:
            yield
            return
        asked_at_s = monotonic()
        await self.calls.load(topic, ids)
        yield
        if monotonic() - asked_at_s > HELD_S:
            raise StoreUnavailable("the store took so long that jobs may have left it")

    async def status(self) -> Status | None:
        """How the shelf is doing, None without one. That it does not respond is a fault."""
        if self.calls is None:
            return None
        try:
            return await self.for_page(self.calls.status)
        except StoreUnavailable as exc:
            return Status(0, str(exc))

    async def for_page(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """What a call of the shelf returns. It is for a page that is useful without that, and must not wait for long.

        Raises StoreUnavailable, also if the shelf does not respond within PAGE_S, or did not lately.
        """
        if monotonic() < self._hangs_until_s:
            raise StoreUnavailable(_HANGS)
        try:
            async with asyncio.timeout(PAGE_S):
                return await call()
        except TimeoutError:
            self._hangs_until_s = monotonic() + HANGS_S
            raise StoreUnavailable(_HANGS) from None

    def note_shelved(self, topic: str, generation: int) -> None:
        """Note that a topic has jobs on the shelf: the store has refused a put that did not ask in this generation."""
        if len(self._shelved) == _REMEMBERED_MAX:
            self._shelved.clear()
        self._shelved[topic] = generation


async def _within(within_s: float | None, call: Coroutine[Any, Any, Result]) -> Result:
    """What a call of the shelf returns. Raises StoreUnavailable, also if it takes longer than that."""
    try:
        async with asyncio.timeout(within_s):
            return await call
    except TimeoutError:
        raise StoreUnavailable(_HANGS) from None


def is_still_missing(result: Result | StoreUnavailable, is_missing: Callable[[Result], bool]) -> bool:
    """Whether a result, which may be an error, says that there is no such job."""
    return not isinstance(result, StoreUnavailable) and is_missing(result)
