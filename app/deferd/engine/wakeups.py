"""Listens to the store's messages that a topic has something ready, or that a timer has something sooner to do.

Messages only save waiting; nothing is lost with one. Whenever the subscription was broken, everybody is told to
look for themselves (`on_gap`), both when it breaks and when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from deferd.engine.keys import DUE_CHANNEL, READY_CHANNEL
from deferd.engine.scripts import translate
from deferd.store.connection import Store

_LOG = logging.getLogger(__name__)
_POLL_S = 1.0
_RETRY_MAX_S = 1.0


class Wakeups:
    """One subscription for the whole process.

    `on_ready(topic, mark)` hears of a topic with something ready, and the mark of the timer that made it so, empty
    when it was not a timer; `on_due(key)` which timer may have something sooner to do, as `Timer.wake` takes it.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_ready: Callable[[str, str], None],
        on_due: Callable[[str], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._store = store
        self._on_ready = on_ready
        self._on_due = on_due
        self._on_gap = on_gap
        self._listening = asyncio.Event()

    async def listening(self, timeout_s: float) -> None:
        """Wait until messages arrive. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._listening.wait()

    async def run(self) -> None:
        """Listen until cancelled, subscribing anew whenever the connection is lost."""
        retry_s = 0.05
        while True:
            pubsub = self._store.pubsub()
            try:
                await pubsub.subscribe(READY_CHANNEL, DUE_CHANNEL)
                while True:
                    message = await pubsub.get_message(timeout=_POLL_S)
                    if message is None:
                        continue
                    if message["type"] == "message":
                        self._hear(message["channel"], message["data"].decode(errors="replace"))
                    elif message["type"] == "subscribe" and not self._listening.is_set():
                        self._listening.set()
                        retry_s = 0.05
                        self._on_gap()
            except Exception as exc:  # noqa: BLE001 (whatever it is, waiting consumers must hear again)
                if translate(exc) is None:
                    _LOG.exception("listening to the store failed; trying again")
                if self._listening.is_set():
                    _LOG.warning("lost the store's messages (%s); trying again", exc)
                    self._listening.clear()
                    self._on_gap()
            finally:
                with contextlib.suppress(Exception):
                    await pubsub.aclose()
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _RETRY_MAX_S)

    def _hear(self, channel: bytes, payload: str) -> None:
        if channel == READY_CHANNEL:
            topic, _, mark = payload.partition(" ")
            self._on_ready(topic, mark)
        else:
            self._on_due(payload)
