"""What tests do with the shelf."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import HELD_S, Status
from deferd.shelf.client import ShelfClient
from deferd.shelf.moving import Mover
from deferd.shelf.rows import IN, OUT, Rows
from deferd.store.connection import Store
from deferd.store.data_dir import DataDirectory
from tests.integration.engine.engine_driver import TOPIC


class ShelfInProcess(Mover):
    """A shelf without a process of its own, in which jobs move when the test says so."""

    async def status(self) -> Status:
        """See ShelfCalls."""
        moved = self.moved
        return Status(os.getpid(), None, await self.count(), await self.bytes_on_disk(), moved[OUT], moved[IN])


def status_of(data_dir: Path) -> Status:
    """How the shelf of the service with this data directory is doing. Raises StoreUnavailable."""

    async def read() -> Status:
        client = ShelfClient(DataDirectory(data_dir).shelf_socket)
        try:
            return await client.status()
        finally:
            await client.close()

    return asyncio.run(read())


def let_go(mover: Mover) -> None:
    """Let the time pass in which ids that were asked for stay in the store."""
    mover._held._began_at_s -= 2 * HELD_S
    mover._none_leaves_until_s = 0.0


class Shelved:
    """An engine with a shelf."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.rows = Rows(folder)
        self.mover = ShelfInProcess(self.rows, Scripts(store), Keys(1))
        self.engine = Engine(store, shelf=self.mover)

    async def close(self) -> None:
        await self.engine.close()
        await self.mover.close()
        self.rows.close()

    async def put(self, job_id: str, due_ms: int, tags: list[str] | None = None, **more: Any) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due_ms // 1000)) + f".{due_ms % 1000:03d}Z"
        fields = {"topic": TOPIC, "id": job_id, "run_at": at, **({"tags": tags} if tags else {}), **more}
        await self.engine.puts.put(PutJob.model_validate(fields))

    async def move_out(self, *, pass_over: int = 0, most: int = 250) -> None:
        let_go(self.mover)
        await self.mover.move_out(TOPIC, 0, pass_over=pass_over, most=most)
