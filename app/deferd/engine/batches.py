"""Batches: jobs that are counted under a name, so that one job is put when all of them have ended.

A batch is in the shard of the topic of that job, and so are its jobs: `lua/lib/batches.lua` counts them in the calls
that put and end them. Its name does not tell the shard, so a batch is looked for in all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from deferd.contract import limits
from deferd.contract.bulk_model import CancelSelected, Select
from deferd.contract.errors import BatchNotFound, DeferdError, DifferentShard, FieldError, InvalidInput
from deferd.contract.model import IfReserved
from deferd.contract.operations.batches import BatchEnd, PutBatchOfJobs
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.bulk_actions import BulkActions
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.job_batches import all_results
from deferd.engine.record import json_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_EXISTED, _CREATED, _NOT_FOUND, _TOO_MANY, _PARTITIONED, _CHANGED = range(6)
"""What lua/batch_set.lua returns."""
_LOOKED_AT_MAX = 2000
"""Batches that are looked at for a page."""
_BEGIN, _DELETE = 0, 1
_YIELDS_FOR_S = 0.05
"""Two that have yielded to each other try again at different times."""


class ChangedMeanwhile(Exception):
    """A batch has been made, or puts its job into another topic, since it was found."""


class StoredBatch(NamedTuple):
    """A batch as it is stored, in a shard. Times are ms since the epoch."""

    name: str
    shard: int
    topic: str
    job_id: str | None
    expect: int | None
    is_sealed: bool
    joined: int
    finished: int
    dead: int
    cancelled: int
    created_ms: int
    completed_ms: int | None


class Batches:
    """Creates, reads and deletes batches."""

    def __init__(self, scripts: Scripts, keys: Keys, bulk: BulkActions) -> None:
        self._scripts = scripts
        self._keys = keys
        self._bulk = bulk

    async def put(self, name: str, batch: PutBatchOfJobs, stored: StoredBatch | None) -> tuple[StoredBatch, bool]:
        """Create, change or seal a batch, which was `stored`, as `find` returned; returns it, and whether it is new.

        Raises:
            InvalidInput: it is new and has no `on_end`, or there are as many as there may be; or the topic of its
                `on_end` has several partitions.
            BatchNotFound: it was deleted since `find`.
            DifferentShard: the topic of its `on_end` is in another shard than the batch.
            ChangedMeanwhile: somebody has made it since `find`, maybe in another shard, or changed the topic of its
                `on_end`. Nothing was done, as the caller may not be allowed to change it.
        """
        topic = stored.topic if stored is not None else ""
        if batch.on_end is not None:
            topic = batch.on_end.topic
            if stored is not None and self._keys.shard_of(topic) != stored.shard:
                raise DifferentShard(topic, f"batch {name!r} is in another shard of the store than topic {topic!r}")
        if not topic:
            raise _invalid(("body", "on_end"), "is required: there is no such batch yet", None)
        on_end = "" if batch.on_end is None else _on_end(batch.on_end)
        found = "" if stored is None else stored.topic
        args = (topic, name, on_end, batch.expect or 0, int(batch.seal), limits.BATCHES_OPEN_MAX, found)
        code, *fields = await self._scripts.run("batch_set", self._keys.of_topic(topic), args)
        match code:
            case int() if code == _PARTITIONED:
                raise _invalid(("body", "on_end", "topic"), "must be a topic with one partition", topic)
            case int() if code == _TOO_MANY:
                text = f"would be one batch more than may be open in a shard of the store, {limits.BATCHES_OPEN_MAX}"
                raise _invalid(("path", "name"), text, name)
            case int() if code == _NOT_FOUND:
                raise BatchNotFound(name)
            case int() if code == _CHANGED:
                raise ChangedMeanwhile
        made = _read(name, self._keys.shard_of(topic), fields)
        if code == _CREATED and self._keys.shards > 1 and len(await self._find_all(name)) > 1:
            # Of those that are made in several shards at the same time the later ones see the others.
            with contextlib.suppress(BatchNotFound):
                await self._delete_step(made, _DELETE)
            await asyncio.sleep(random.uniform(0, _YIELDS_FOR_S))  # noqa: S311 (no secret)
            raise ChangedMeanwhile
        return made, code == _CREATED

    async def find(self, name: str) -> StoredBatch | None:
        """The batch of this name, None if there is none."""
        return next(iter(await self._find_all(name)), None)

    async def _find_all(self, name: str) -> list[StoredBatch]:
        found = await all_results(self._page(shard, f"[{name}", 1) for shard in range(self._keys.shards))
        return [one for page, _ in found for one in page if one.name == name]

    async def get(self, name: str) -> StoredBatch:
        """The batch of this name. Raises BatchNotFound."""
        batch = await self.find(name)
        if batch is None:
            raise BatchNotFound(name)
        return batch

    async def page(
        self, cursor: str | None, limit: int, visible: TopicPatterns | None
    ) -> tuple[list[StoredBatch], str | None]:
        """Up to `limit` batches by name within each shard, and the cursor of the next page, None after the last.

        `visible`: only batches that put their job into one of these topics, None for all. For a caller who may not see
        all, as many are looked at as are needed, because a cursor reveals a name.

        Raises:
            InvalidInput: this method did not return the cursor.
        """
        first, after = read_cursor(cursor, (0, ""), (int, str))
        if not 0 <= first < self._keys.shards:
            raise bad_cursor(cursor)
        found: list[StoredBatch] = []
        looked_at, step = 0, limit if visible is None else limits.PAGE_MAX  # most may be those of others
        for shard in range(first, self._keys.shards):
            more = True
            while more:
                if looked_at >= _LOOKED_AT_MAX and visible is None:
                    return found, write_cursor(shard, after)
                page, names = await self._page(shard, f"({after}" if after else "-", step)
                more = len(names) == step
                for batch in page:
                    if visible is None or visible.match(batch.topic):
                        if len(found) == limit:
                            return found, write_cursor(found[-1].shard, found[-1].name)
                        found.append(batch)
                looked_at += len(names)
                after = names[-1] if names else ""
            after = ""
        return found, None

    async def delete(
        self, batch: StoredBatch, visible: TopicPatterns | None, if_reserved: IfReserved
    ) -> tuple[int, bool]:
        """Cancel the jobs of a batch in the visible topics, and delete it; it puts no job.

        Returns how many were cancelled, and whether the batch is deleted: not if there may be more jobs.

        Raises:
            BatchNotFound: it was deleted meanwhile.
        """
        await self._delete_step(batch, _BEGIN)
        call = CancelSelected(
            select=Select(tag=limits.BATCH_TAG + batch.name), limit=limits.BULK_MAX, if_reserved=if_reserved
        )
        cancelled = await self._bulk.cancel(call, visible)
        if cancelled.complete:
            await self._delete_step(batch, _DELETE)
        return cancelled.done, cancelled.complete

    async def _delete_step(self, batch: StoredBatch, step: int) -> None:
        args = (batch.topic, batch.name, step, batch.created_ms)
        if not await self._scripts.run("batch_delete", self._keys.of_topic(batch.topic), args):
            raise BatchNotFound(batch.name)

    async def why_not_here(self, name: str, topic: str) -> DeferdError:
        """Why the shard of a job of `topic` does not have its batch: BatchNotFound, or DifferentShard."""
        if self._keys.shards == 1 or await self.find(name) is None:
            return BatchNotFound(name)
        of = "" if self._keys.partitions.count(topic) == 1 else "the partition of this job of "
        text = f"batch {name!r} is in another shard of the store than {of}topic {topic!r}; nothing was stored"
        return DifferentShard(topic, text)

    async def _page(self, shard: int, first: str, most: int) -> tuple[list[StoredBatch], list[str]]:
        """Batches of a shard from a name on, in order, and the names that were looked at."""
        rows = await self._scripts.run("batches_page", [self._keys.of_shard(shard, "batches")], (first, most))
        names = [row[0].decode() for row in rows]
        return [_read(name, shard, fields) for name, (_, *fields) in zip(names, rows, strict=True) if fields], names


def _on_end(on_end: BatchEnd) -> bytes:
    """The job to put, as lua/lib/batches.lua reads it."""
    return json_bytes(on_end.model_dump(exclude_none=True))


def _read(name: str, shard: int, fields: Sequence[Any]) -> StoredBatch:
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    on_end = orjson.loads(values[b"on_end"])
    joined, finished, dead, cancelled = (
        int(values.get(count, 0)) for count in (b"joined", b"finished", b"dead", b"cancelled")
    )
    return StoredBatch(
        name,
        shard,
        on_end["topic"],
        on_end.get("id"),
        int(values[b"expect"]) if b"expect" in values else None,
        b"sealed" in values,
        joined,
        finished,
        dead,
        cancelled,
        int(values[b"created"]),
        int(values[b"completed"]) if b"completed" in values else None,
    )


def _invalid(path: tuple[str, ...], message: str, value: Any) -> InvalidInput:
    return InvalidInput([FieldError(path, message, value)])
