"""Moves jobs between the store and the shelf, so that each is in one of them, also after a failure at any step.

A batch goes out in three steps: its rows are written, with a note that the move is under way; a script removes the jobs
from the store that are still as they were; the note is deleted, with the rows of the others. It comes back in three
steps, too: the note, a script that stores the jobs, the deletion of rows and note. Batches are numbered for each topic
and way, and the store remembers the last number, and which batch moved last. So it is known after each failure whether
the script ran, and one that comes too late does nothing. `tests/unit/shelf/shelf_model.py` visits all states of this.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from secrets import token_hex
from typing import Any, ParamSpec, TypeVar

from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.shelf.rows import IN, OUT, Job, Move, Rows

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
BATCH = 250
"""Jobs of a move: the store takes some 5 ms to remove them, and 8 ms to store them again."""


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
        self._thread = ThreadPoolExecutor(1, "deferd-shelf")

    async def close(self) -> None:
        """Wait until what was begun with `rows` is done: they may be closed then."""
        await asyncio.to_thread(self._thread.shutdown)

    async def settle_all(self) -> None:
        """End the moves that another process, or a failure of the store, has left. Raises StoreUnavailable."""
        self._unsettled = {move.topic: move for move in await self._on_thread(self._rows.moves)}
        for topic in list(self._unsettled):
            async with self._locks[topic]:
                await self._settle(topic)

    async def move_out(self, topic: str, from_ms: int, *, pass_over: int = 0, most: int = BATCH) -> tuple[int, int]:
        """Move at most `most` delayed jobs that are due at `from_ms` or later out of the store, those due last first.

        `pass_over` is how many of them to pass over: those that stayed before. Returns how many jobs were looked at,
        and how many have left the store.

        Raises:
            StoreUnavailable: the store cannot be reached; the jobs are where they were, or on the shelf.
        """
        async with self._locks[topic]:
            await self._settle(topic)
            last, looked_at, *found = await self._run("shelve_pick", topic, from_ms, pass_over, most)
            if not found:
                return looked_at, 0
            jobs = [Job(job_id.decode(), record) for job_id, record in zip(found[::2], found[1::2], strict=True)]
            move = await self._begin(topic, OUT, last + 1, jobs)
            is_moved, *rest = await self._run("shelve_out", topic, move.number, move.token, *found)
            if not is_moved:
                await self._settle(topic)
                return looked_at, 0
            left, *kept = rest
            await self._end(move, [job_id.decode() for job_id in kept])
            return looked_at, left

    async def move_in(self, topic: str, ids: Sequence[str]) -> list[str]:
        """Move those of the jobs that are on the shelf into the store; returns their ids. At most 1000 ids.

        Raises:
            StoreUnavailable: the store cannot be reached; the jobs are on the shelf, or where they belong.
        """
        async with self._locks[topic]:
            await self._settle(topic)
            jobs = await self._on_thread(self._rows.jobs, topic, ids)
            if not jobs:
                return []
            move = await self._begin(topic, IN, await self._last_number_in(topic) + 1, jobs)
            args = [value for job in jobs for value in job]
            (is_moved,) = await self._run("shelve_in", topic, move.number, move.token, *args)
            if not is_moved:
                await self._settle(topic)
                return []
            await self._end(move, move.ids)
            return list(move.ids)

    async def _last_number_in(self, topic: str) -> int:
        if topic not in self._last_in:
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
            await self._end(move, move.ids if is_moved else ())
        else:
            await self._end(move, kept[0].decode().split() if is_moved else move.ids)

    async def _begin(self, topic: str, way: str, number: int, jobs: Sequence[Job]) -> Move:
        move = Move(topic, way, number, token_hex(8), tuple(job.id for job in jobs))
        self._unsettled[topic] = move
        await self._on_thread(self._rows.begin, move, jobs if way == OUT else ())
        return move

    async def _end(self, move: Move, elsewhere: Sequence[str]) -> None:
        await self._on_thread(self._rows.end, move, elsewhere)
        if move.way == IN:
            self._last_in[move.topic] = move.number
        del self._unsettled[move.topic]

    async def _on_thread(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **more: Arguments.kwargs
    ) -> Result:
        """Call a method of `rows`. One thread does it: also what was begun by a task that was cancelled is in order."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **more))

    async def _run(self, verb: str, topic: str, *args: str | bytes | int) -> list[Any]:
        reply: list[Any] = await self._scripts.run(verb, self._keys.of_topic(topic), (topic, *args))
        return reply
