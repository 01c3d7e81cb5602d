"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

_AGAIN_S = 0.5


async def cancel_and_wait(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return when they have ended, however they did.

    They are cancelled again and again: redis-py uses asyncio.wait_for, which before Python 3.12 may swallow one.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # so that no error counts as never looked at
