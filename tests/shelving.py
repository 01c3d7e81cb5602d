"""What tests do with the shelf."""

from __future__ import annotations

import os

from deferd.engine.shelf import HELD_S, Status
from deferd.shelf.moving import Mover
from deferd.shelf.rows import IN, OUT


class ShelfInProcess(Mover):
    """A shelf without a process of its own, in which jobs move when the test says so."""

    async def status(self) -> Status:
        """See ShelfCalls."""
        moved = self.moved
        return Status(os.getpid(), None, await self.count(), await self.bytes_on_disk(), moved[OUT], moved[IN])


def let_go(mover: Mover) -> None:
    """Let the time pass in which ids that were asked for stay in the store."""
    mover._held._began_at_s -= 2 * HELD_S
    mover._none_leaves_until_s = 0.0
