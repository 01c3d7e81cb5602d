"""The priority of the store's child that rewrites the append-only file.

It keeps a core busy, for a second per million jobs or so. Where service and store need both cores, jobs were late by
40 ms meanwhile. Valkey has no setting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

LOOK_S = 0.25
"""Short beside a rewrite that others notice. With 0.05 it was two thirds of what an idle service takes."""
NICE = 10
"""Beside what is always busy it still gets a tenth of what each of these gets. With SCHED_IDLE it might never end, and
only root could take that back."""


async def let_others_go_before_rewrites(store_pid: int) -> None:
    """Give each child of the store a lower priority soon after its start, until cancelled or the store has ended.

    On Linux; elsewhere it returns at once, as it does where the system does not tell the children of a process.
    """
    seen: set[int] = set()
    with contextlib.suppress(OSError):
        while True:
            running = _children(store_pid)
            for child in running - seen:
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, child, NICE)
            seen = running
            await asyncio.sleep(LOOK_S)


def _children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
