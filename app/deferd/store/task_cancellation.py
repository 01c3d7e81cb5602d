"""The ends of tasks: reliable cancellation, and errors that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

_RETRY_S = 0.5


async def cancel_and_wait(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return when all have ended, with or without an error.

    The cancellation is repeated: redis-py uses asyncio.wait_for, which may swallow one before Python 3.12.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_RETRY_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # retrieve their errors, so that asyncio does not log them


def forget_error(ended: asyncio.Future[Any]) -> None:
    """Else asyncio logs the error of a future that nobody awaits, as when all its callers were cancelled."""
    if not ended.cancelled():
        ended.exception()
