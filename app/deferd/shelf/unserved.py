"""The shelf in the files of a service that does not run, for commands that copy or check them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

from deferd.contract.errors import StoreUnavailable
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Job, Wanted
from deferd.shelf.moving import BATCH, Mover, batches, files_fault
from deferd.shelf.rows import Rows
from deferd.store.connection import Store
from deferd.store.preflight import StoreRefused

_NOT_OF_OTHER_USERS = 0o077


class UnservedShelf:
    """Its jobs, by partition."""

    def __init__(self, rows: Rows, folder: Path) -> None:
        self._rows = rows
        self._folder = folder

    def counts(self) -> Mapping[str, int]:
        """How many jobs each partition has; partitions without jobs are left out. It reads all of them.

        Raises:
            StoreRefused: the files are damaged.
        """
        with _named(self._folder):
            return dict(self._rows.counts())

    def batches(self, topic: str) -> Iterator[list[Job]]:
        """The jobs of a partition, the first due first. Raises StoreRefused as `counts`."""
        after: tuple[int, str] | None = None
        has_more = True
        while has_more:
            with _named(self._folder):
                page = self._rows.page(topic, Wanted(), BATCH, after)
            yield from batches(page.jobs)
            after, has_more = page.end, page.has_more


@contextlib.asynccontextmanager
async def unserved_shelf(folder: Path, store: Store, shards: int) -> AsyncIterator[UnservedShelf]:
    """The shelf in a folder that no other process uses, of the jobs that are not in this store.

    Moves that were under way when the files were copied, or their process died, are ended, in the files and the store.

    Raises:
        StoreRefused: the files or the store cannot be used.
    """
    async with _opened(folder) as rows:
        with _named(folder):
            mover = Mover(rows, Scripts(store), Keys(shards))
            try:
                await mover.settle_all()
            finally:
                await mover.close()
        yield UnservedShelf(rows, folder)


async def has_jobs(folder: Path) -> bool:
    """Whether there are jobs on the shelf in a folder that no process uses. Raises StoreRefused: it cannot be read."""
    async with _opened(folder) as rows:
        with _named(folder):
            return next(rows.topics(), None) is not None


@contextlib.asynccontextmanager
async def _opened(folder: Path) -> AsyncIterator[Rows]:
    """Other users can read no file that is written during the block."""
    before = os.umask(_NOT_OF_OTHER_USERS)
    try:
        with _named(folder):
            rows = await asyncio.to_thread(Rows, folder)
        try:
            yield rows
        finally:
            await asyncio.to_thread(rows.close)
    finally:
        os.umask(before)


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Turn errors of the files and of the store into StoreRefused."""
    try:
        yield
    except StoreUnavailable as exc:
        raise StoreRefused(f"{folder}: {exc}") from exc
    except Exception as exc:
        fault = files_fault(exc)
        if fault is None and isinstance(exc, ValueError):  # something that is not a row
            fault = f"the shelf's files are damaged: {exc}"
        if fault is None:
            raise
        raise StoreRefused(f"{folder}: {fault}") from exc
