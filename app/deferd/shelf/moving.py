"""Moves jobs between the store and the shelf, so that each is in one of them, also after a failure at any step.

A batch goes out in three steps: its rows are written, with a note that the move is under way; a script removes the jobs
from the store that are still as they were; the note is deleted, with the rows of the others. It comes back in three
steps, too: the note, a script that stores the jobs, the deletion of rows and note. Batches are numbered for each topic
and way, and the store remembers the last number, and which batch moved last. So it is known after each failure whether
the script ran, and one that comes too late does nothing. `tests/unit/shelf/shelf_model.py` visits all states of this.

Calls ask for the ids that they do not find in the store, and before they put them (engine/shelf.py). Such ids are held:
they do not leave the store while the generation in which they were asked for, or the next one, lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from redis.exceptions import ResponseError

from deferd.contract.errors import StoreUnavailable
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType
from deferd.engine.shelf import HELD_S, KEPT_S, NOT_ASKED, STILL_S, Asked, Job, Page, Wanted
from deferd.shelf.rows import IN, OUT, TABLES, Move, Rows

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
BATCH = 250
"""Jobs of a move: the store takes some 5 ms to remove them, and 8 ms to store them again."""
_BATCH_BYTES = 1024 * 1024
LOADED_S = 2.0
"""How long no job leaves the store after all that are due until some time were loaded."""
CHECKPOINT_S = 10.0
"""How long no batch begins to move, for a backup, once the files are copied."""
FILES_RETRY_S = 5
"""An estimate, for Retry-After, while the files cannot be used."""
_GENERATIONS_OF_A_START = 1 << 32
_EVER_MS = 1 << 53
_CHECKED_TOGETHER = 200
_log = logging.getLogger("deferd.shelf")


class FilesClosed(Exception):
    """The mover was closed during a call."""


class HeldIds:
    """The ids that must not leave the store, in two generations; `first` is the first one."""

    def __init__(self, first: int) -> None:
        self.oldest = self._newest = first
        self._began_at_s = monotonic()
        self._of_oldest: dict[str, Counter[str]] = {}
        self._of_newest: dict[str, Counter[str]] = {}
        """By topic: how many calls have asked for an id."""

    def hold(self, topic: str, ids: Iterable[str]) -> int:
        """Hold ids for HELD_S at least; returns the generation."""
        self._go_on()
        self._of_newest.setdefault(topic, Counter()).update(ids)
        return self._newest

    def raise_to(self, generation: int) -> None:
        """Let this be the generation, if it is a later one: the files are older than the store."""
        if generation > self._newest:
            for topic, ids in self._of_oldest.items():
                self._of_newest.setdefault(topic, Counter()).update(ids)
            self.oldest = self._newest = generation
            self._of_oldest = {}

    def let_go(self, topic: str, asked: Asked) -> None:
        """Hold ids no longer for one of the calls that have asked for them."""
        self._go_on()
        held = self._of_newest if asked.generation == self._newest else self._of_oldest
        if asked.generation not in {self._newest, self.oldest} or topic not in held:
            return
        held_ids = held[topic]
        for job_id in asked.ids:
            if held_ids[job_id] > 1:
                held_ids[job_id] -= 1
            else:
                held_ids.pop(job_id, None)

    def without(self, topic: str, jobs: Iterable[Job]) -> list[Job]:
        """Those of the jobs that are not held."""
        self._go_on()
        oldest, newest = self._of_oldest.get(topic, ()), self._of_newest.get(topic, ())
        return [job for job in jobs if job.id not in oldest and job.id not in newest]

    def _go_on(self) -> None:
        passed = int((monotonic() - self._began_at_s) / HELD_S)
        self._began_at_s += passed * HELD_S
        for _ in range(min(passed, 2)):
            self.oldest, self._newest = self._newest, self._newest + 1
            self._of_oldest, self._of_newest = self._of_newest, {}


class Mover:
    """Moves jobs; the only user of `rows`. Call `settle_all` before anything else."""

    def __init__(self, rows: Rows, scripts: Scripts, keys: Keys) -> None:
        self._rows = rows
        self._scripts = scripts
        self._keys = keys
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._unsettled: dict[str, Move] = {}
        """By topic: the move whose script may have run or not."""
        self._last_in: dict[str, int] = {}
        self._topics: set[str] = set()
        """All that had jobs on the shelf since the start."""
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)
        """By topic: jobs that calls wait for."""
        self._none_leaves_until_s = 0.0
        self._kept_until_s: dict[str, float] = {}
        self.starts = rows.count_start()
        """How often moving was started on these files."""
        # Before the start a call may have missed a job that has come back since, as the last one of its topic.
        self._all_topics_known_at_s = 0.0 if self.starts == 1 else monotonic() + KEPT_S
        self._held = HeldIds(self.starts * _GENERATIONS_OF_A_START)
        self.moved = dict.fromkeys((OUT, IN), 0)
        """By way: how many jobs have moved since the start."""
        self.files_failed = asyncio.Event()
        """Set at each error of the files."""
        self._checkpoints = 0
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "deferd-shelf")

    async def close(self) -> None:
        """Wait until what was begun with `rows` is done: they may be closed then. Calls under way raise FilesClosed."""
        self._is_closed = True
        await asyncio.to_thread(self._thread.shutdown)

    async def settle_all(self) -> None:
        """End the moves that another process, or a failure of the store, has left. Raises StoreUnavailable."""
        self._topics.update(await self._on_thread(lambda: list(self._rows.topics())))
        self._unsettled = {move.topic: move for move in await self._on_thread(self._rows.moves)}
        self._topics.update(self._unsettled)
        failed: list[Exception] = []
        for topic in list(self._unsettled):
            async with self._locks[topic]:
                try:
                    await self._settle(topic)
                except (StoreUnavailable, WrongType) as exc:  # calls for this topic try again
                    failed.append(exc)
        if failed and len(failed) == len(self._unsettled) and not await self._is_store_there():
            raise failed[0]
        to_check = list(self._topics - self._unsettled.keys())
        for at in range(0, len(to_check), _CHECKED_TOGETHER):
            await asyncio.gather(*map(self._count_again_if_lost, to_check[at : at + _CHECKED_TOGETHER]))

    async def _is_store_there(self) -> bool:
        try:
            await self._scripts.command("PING")
        except StoreUnavailable:
            return False
        return True

    async def _count_again_if_lost(self, topic: str) -> None:
        """Tell the store how many jobs of a topic are here, if it does not know of any: it has lost its data."""
        key = self._keys.named(topic, "shelf")
        try:
            if await self._scripts.command("EXISTS", key):
                return
            [jobs] = await self.counts_before(topic, [_EVER_MS])
            await self._scripts.write("HSET", key, "jobs", jobs, "bytes", 0, "tags", 0, "generation", self._held.oldest)
        except WrongType:
            return
        _log.error("the store has lost that %d jobs of topic %s are on the shelf: they come back in time", jobs, topic)

    async def move_out(self, topic: str, from_ms: int, *, pass_over: int = 0, most: int = BATCH) -> tuple[int, int]:
        """Move at most `most` delayed jobs that are due at `from_ms` or later out of the store, those due last first.

        `pass_over` is how many of them to pass over: those that stayed before. Returns how many jobs were looked at,
        and how many have left the store. Jobs that are held stay, all of a topic that is kept, and those whose records
        another program has damaged: they could not come back.

        Raises:
            StoreUnavailable: the store cannot be reached; the jobs are where they were, or on the shelf.
        """
        await self._no_checkpoint()
        async with self._locks[topic]:
            await self._settle(topic)
            if max(self._kept_until_s.get(topic, 0.0), self._none_leaves_until_s) > monotonic():
                return 0, 0
            self._kept_until_s.pop(topic, None)
            last, looked_at, *found = await self._run("shelve_pick", topic, from_ms, pass_over, most)
            self._topics.add(topic)
            read = [Job(job_id.decode(), record) for job_id, record in zip(found[::2], found[1::2], strict=True)]
            if not self._may_begin.is_set():  # while the move waited, calls could ask for the jobs
                return 0, 0
            jobs = [job for job in self._held.without(topic, read) if job.is_intact]
            if not jobs:
                return looked_at, 0
            # A call that asks for one of them from here on waits for the end of the move.
            move = await self._begin(topic, OUT, last + 1, jobs)
            args = [value for job in jobs for value in job]
            is_moved, *rest = await self._run("shelve_out", topic, move.number, move.token, self._held.oldest, *args)
            if not is_moved:
                await self._settle(topic)
                return looked_at, 0
            left, *kept = rest
            stayed = {job_id.decode() for job_id in kept}
            await self._end(move, [job for job in jobs if job.id in stayed], left)
            return looked_at, left

    async def move_in(self, topic: str, ids: Sequence[str]) -> list[str]:
        """Move those of the jobs that are on the shelf into the store; returns their ids. At most a batch of ids.

        Raises:
            StoreUnavailable: the store cannot be reached; the jobs are on the shelf, or where they belong.
        """
        await self._no_checkpoint()
        async with self._locks[topic]:
            await self._settle(topic)
            return await self._move_in(topic, ids)

    # For the callers in engine/shelf.py, whose methods these are

    async def load(self, topic: str, ids: Sequence[str], let_go: Sequence[Asked] = (), at_least: int = 0) -> int:
        """See ShelfCalls. What several callers wait for moves together."""
        if self._is_closed:
            raise FilesClosed
        for asked in let_go:
            self._held.let_go(topic, asked)
        self._held.raise_to(at_least)
        generation = self._held.hold(topic, ids)
        if topic not in self._topics and monotonic() >= self._all_topics_known_at_s:
            return NOT_ASKED
        move = self._unsettled.get(topic)
        in_move = frozenset(() if move is None else move.ids)
        moving = [job_id for job_id in ids if job_id in in_move]
        others = [job_id for job_id in ids if job_id not in in_move]
        if to_load := [*moving, *self._rows.may_have(topic, others)]:
            await self._load(topic, to_load)
            if unreadable := self._rows.unreadable(topic, to_load):
                raise StoreUnavailable(
                    f"job {unreadable[0]!r} of topic {topic!r} is on the shelf, and cannot be read: a file is damaged",
                    FILES_RETRY_S,
                )
        return generation

    async def _load(self, topic: str, ids: list[str]) -> None:
        wanted = self._wanted[topic]
        wanted.update(ids)
        await self._no_checkpoint()
        async with self._locks[topic]:
            await self._settle(topic)
            for at in range(0, len(ids), BATCH):
                together = dict.fromkeys((*ids[at : at + BATCH], *islice(wanted, BATCH)))
                await self._move_in(topic, list(together)[:BATCH])
                wanted.difference_update(together)

    async def load_due(self, until_ms: int) -> None:
        """See ShelfCalls."""
        self._none_leaves_until_s = inf
        try:
            for lock in list(self._locks.values()):
                async with lock:  # a batch that is on its way has arrived
                    pass
            for topic in list(self._topics):
                while ids := await self.due(topic, until_ms):
                    await self.move_in(topic, ids)
        finally:
            self._none_leaves_until_s = monotonic() + LOADED_S

    async def first_due(self, topic: str) -> int | None:
        """See ShelfCalls."""
        return await self._on_thread(self._rows.first_due, topic) if topic in self._topics else None

    async def keep(self, topic: str) -> None:
        """See ShelfCalls."""
        self._kept_until_s[topic] = monotonic() + KEPT_S
        async with self.still(topic):  # a batch that is on its way has arrived
            pass

    @asynccontextmanager
    async def still(self, topic: str) -> AsyncIterator[None]:
        """See ShelfCalls."""
        async with self._locks[topic]:
            await self._settle(topic)
            until_s = monotonic() + STILL_S
            yield
            if monotonic() > until_s:
                raise StoreUnavailable("the shelf was read too slowly")

    async def page(
        self, topic: str, wanted: Wanted, most: int, after: tuple[int, str] | None = None, *, reverse: bool = False
    ) -> Page:
        """See ShelfCalls."""
        return await self._on_thread(self._rows.page, topic, wanted, most, after, reverse=reverse)

    async def with_tag(self, topic: str, tag: str, most: int, after: str = "", *, reverse: bool = False) -> list[str]:
        """See ShelfCalls."""
        return await self._on_thread(self._rows.with_tag, topic, tag, most, after, reverse=reverse)

    async def topics_with_tag(self, tag: str) -> list[str]:
        """See ShelfCalls."""
        return await self._on_thread(lambda: list(self._rows.topics_with_tag(tag)))

    async def counts_before(self, topic: str, times_ms: Sequence[int]) -> list[int]:
        """See ShelfCalls."""
        return await self._on_thread(self._rows.counts_before, topic, times_ms)

    async def due(self, topic: str, until_ms: int) -> list[str]:
        """The ids of the next jobs of a topic, of a batch at most, that are due until then."""
        return await self._on_thread(self._rows.due_until, topic, until_ms, BATCH)

    async def _move_in(self, topic: str, ids: Sequence[str]) -> list[str]:
        jobs = await self._on_thread(self._rows.jobs, topic, ids)
        for batch in batches(jobs):
            for is_last_try in (False, True):
                move = await self._begin(topic, IN, await self._last_number_in(topic) + 1, batch)
                args = [value for job in batch for value in job]
                (is_moved,) = await self._run("shelve_in", topic, move.number, move.token, *args)
                if is_moved:
                    await self._end(move, batch, len(batch))
                    break
                await self._settle(topic)
                del self._last_in[topic]  # another process has moved jobs, or the store was restored
                if is_last_try:
                    raise StoreUnavailable("jobs on the shelf cannot be moved into the store")
        return [job.id for job in jobs]

    async def _last_number_in(self, topic: str) -> int:
        if topic not in self._last_in:
            with _damage_named(topic):
                stored = await self._scripts.command("HGET", self._keys.named(topic, "shelf"), IN)
            self._last_in[topic] = int(stored or 0)
        return self._last_in[topic]

    async def _settle(self, topic: str) -> None:
        """End the move of a topic that may have happened or not, if there is one."""
        move = self._unsettled.get(topic)
        if move is None:
            return
        is_moved, *kept = await self._run("shelve_settle", topic, move.way, move.number, move.token)
        if move.way == IN:
            elsewhere = move.ids if is_moved else ()
            moved = len(elsewhere)
        else:
            elsewhere = kept[0].decode().split() if is_moved else move.ids
            moved = len(move.ids) - len(elsewhere)
        await self._end(move, await self._on_thread(self._rows.jobs, topic, elsewhere), moved)

    async def _begin(self, topic: str, way: str, number: int, jobs: Sequence[Job]) -> Move:
        await self._no_checkpoint()
        move = Move(topic, way, number, token_hex(8), tuple(job.id for job in jobs))
        self._unsettled[topic] = move
        await self._on_thread(self._rows.begin, move, jobs if way == OUT else ())
        return move

    async def _no_checkpoint(self) -> None:
        """Wait until batches may begin to move. Callers wait without the lock of a topic, as far as they can: others
        need it for what moves nothing. The next checkpoint may begin before a caller that has waited goes on.
        """
        while not self._may_begin.is_set():
            await self._may_begin.wait()

    async def _end(self, move: Move, elsewhere: Sequence[Job], moved: int) -> None:
        await self._on_thread(self._rows.end, move, elsewhere)
        self.moved[move.way] += moved
        if move.way == IN:
            self._last_in[move.topic] = move.number
        del self._unsettled[move.topic]

    async def _on_thread(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **more: Arguments.kwargs
    ) -> Result:
        """Call a method of `rows`. One thread does it: also what was begun by a task that was cancelled is in order."""
        if self._is_closed:
            raise FilesClosed
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **more))
        except Exception as exc:
            if fault := files_fault(exc):
                self.files_failed.set()
                raise StoreUnavailable(fault, FILES_RETRY_S) from exc
            raise

    async def _run(self, verb: str, topic: str, *args: str | bytes | int) -> list[Any]:
        with _damage_named(topic):
            reply: list[Any] = await self._scripts.run(verb, self._keys.of_topic(topic), (topic, *args))
            return reply

    @asynccontextmanager
    async def checkpoint(self) -> AsyncIterator[Path]:
        """Have a folder with a copy of the files during the block, in which no batch begins to move.

        A batch that has begun may end: as the copy has its note, it does not matter whether a copy of the store that is
        made in the block has seen it. At its end, raises StoreUnavailable if the block took CHECKPOINT_S.
        """
        for table in TABLES:  # one at a time: calls may come between
            await self._on_thread(self._rows.flush, table)
        self._checkpoints += 1
        self._may_begin.clear()
        try:
            copy = await self._on_thread(self._rows.checkpoint)
            until_s = monotonic() + CHECKPOINT_S
            try:
                yield copy
            finally:
                with suppress(RuntimeError):  # closed; the next process removes it
                    self._thread.submit(self._rows.remove, copy)
            if monotonic() > until_s:
                raise StoreUnavailable("the backup took too long")
        finally:
            self._checkpoints -= 1
            if not self._checkpoints:
                self._may_begin.set()

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have had jobs on the shelf since the start."""
        return frozenset(self._topics)

    async def count(self) -> int:
        """How many jobs are on the shelf; it reads as many numbers as there are minutes in which jobs are due."""
        return await self._on_thread(self._rows.count)

    def count_unreadable(self) -> int:
        """How many jobs could not be read, as a file is damaged, since the files were opened."""
        return self._rows.count_unreadable()

    async def check_writing(self) -> None:
        """Raise StoreUnavailable if nothing can be written until the files are opened again."""
        await self._on_thread(self._rows.check_writing)

    async def is_compaction_behind(self) -> bool:
        """Whether no further jobs should leave the store, so that those that come back need not wait for compaction."""
        return await self._on_thread(self._rows.is_compaction_behind)

    async def bytes_on_disk(self) -> int:
        """How large the shelf's files are."""
        return await self._on_thread(self._rows.bytes_on_disk)


@contextmanager
def _damage_named(topic: str) -> Iterator[None]:
    """Turn errors of a script into StoreUnavailable, so that other topics go on."""
    try:
        yield
    except ResponseError as exc:
        raise StoreUnavailable(
            f"another program has damaged what the store has of topic {topic!r}: {exc}", FILES_RETRY_S
        ) from exc


def files_fault(error: BaseException) -> str | None:
    """What is wrong with the files, in the words of RocksDB, for an error of one of its calls; None for a bug."""
    if type(error) is Exception or isinstance(error, OSError):  # rocksdict has no class of its own for them
        return f"the shelf's files cannot be used: {error}"
    return None


def batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The jobs in batches of a megabyte at most, or of one job."""
    batch: list[Job] = []
    size = 0
    for job in jobs:
        size += len(job.record)
        if batch and size > _BATCH_BYTES:
            yield batch
            batch, size = [], len(job.record)
        batch.append(job)
    if batch:
        yield batch
