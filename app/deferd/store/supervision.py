"""Keeps a process running that belongs to the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
STABLE_S = 60.0
"""If a process dies after it has run for this long, the pauses before restarts begin again with the shortest."""


async def keep_running(
    name: str,
    ended: Callable[[], Awaitable[str]],
    launch: Callable[[], Awaitable[object]],
    refused: type[Exception],
    log: logging.Logger,
) -> None:
    """Restart a process whenever it ends, until cancelled, with growing pauses.

    `ended` waits for the end of the process launched last, and returns the reason. `launch` raises `refused` when the
    text of the error says all that operators need; no other error ends the supervision.
    """
    clock = asyncio.get_running_loop().time
    pause_s = FIRST_PAUSE_S
    while True:
        started_at_s = clock()
        reason = await ended()
        ended_at_s = clock()
        if ended_at_s - started_at_s > STABLE_S:
            pause_s = FIRST_PAUSE_S
        log.error("%s exited unexpectedly (%s); restarting it in %.1f s", name, reason, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        try:
            await launch()
        except refused as exc:
            log.error("%s", exc)  # noqa: TRY400 (the text says it all)
        except Exception:  # no error may leave the service without the process
            log.exception("%s could not be restarted; trying again", name)
        else:
            log.warning("%s is running again after %.1f s", name, clock() - ended_at_s)
