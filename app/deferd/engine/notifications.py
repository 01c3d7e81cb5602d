"""Listens to the store's messages that a topic has something ready, or that a timer has something sooner to do.

Messages only save waiting; nothing is lost with one. Whenever the subscription was broken, everybody is told to
look for themselves (`on_gap`): when it breaks, at each try to subscribe again, a second apart, and when it is back.

A subscription can be lost while its connection looks well: its packets may be dropped on the way, or its node may have
left the cluster. So a message is sent each second the way that the others come, on a channel of this subscription's
own. One that has not arrived when the second one after it was sent means that the subscription is lost, which is so
noticed within 3 s, plus the time that the store takes to publish. A store that cannot publish cannot wake anybody
either, so that says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

from deferd.contract.errors import StoreUnavailable
from deferd.engine.redis_keys import DUE_CHANNEL, HEARTBEAT_CHANNEL, READY_CHANNEL
from deferd.engine.scripts import observed, translate
from deferd.engine.task_cancellation import cancel_and_wait
from deferd.store.connection import Store
from deferd.store.redis_client import WatchedPubSub

_LOG = logging.getLogger(__name__)
_POLL_S = 1.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.05, 1.0
HEARTBEAT_S = 1.0
_BEHIND_MAX = 2
"""The heartbeat that must have arrived when one is sent is the one so many before it."""


class Notifications:
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
        self._was_lost = False

    async def listening(self, timeout_s: float) -> None:
        """Wait until messages arrive. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._listening.wait()

    async def check_publishing(self) -> None:
        """See that the store publishes, as its scripts do. Raises StoreUnavailable."""
        pubsub = self._store.pubsub()
        with observed("publish"):
            await pubsub.publish(DUE_CHANNEL, "")

    async def run(self) -> None:
        """Listen until cancelled, subscribing again whenever the subscription is lost."""
        retry_s = _RETRY_MIN_S
        while True:
            subscription = _Subscription(self._store.pubsub(), self._hear, self._on_listening)
            try:
                await subscription.run()
            except Exception as exc:  # noqa: BLE001 (whatever it is, waiting consumers must hear again)
                if translate(exc) is None and not isinstance(exc, StoreUnavailable):
                    _LOG.exception("listening to the store failed; trying again")
                if self._listening.is_set():
                    _LOG.warning("lost the store's messages (%s); subscribing again", exc)
                    self._listening.clear()
                    self._was_lost = True
                    retry_s = _RETRY_MIN_S
                self._on_gap()
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _RETRY_MAX_S)

    def _on_listening(self) -> None:
        if self._was_lost:
            _LOG.info("the store's messages arrive again")
            self._was_lost = False
        self._listening.set()
        self._on_gap()

    def _hear(self, channel: bytes, payload: str) -> None:
        if channel == READY_CHANNEL:
            topic, _, mark = payload.partition(" ")
            self._on_ready(topic, mark)
        else:
            self._on_due(payload)


class _Subscription:
    """One life of the subscription. `on_listening` is called when messages begin to arrive."""

    def __init__(
        self, pubsub: WatchedPubSub, on_message: Callable[[bytes, str], None], on_listening: Callable[[], None]
    ) -> None:
        self._pubsub = pubsub
        self._on_message = on_message
        self._on_listening = on_listening
        self._channel = f"{HEARTBEAT_CHANNEL}:{os.urandom(8).hex()}".encode()
        self._confirmed = asyncio.Event()
        self._unheard: dict[bytes, int] = {}

    async def run(self) -> None:
        """Listen until the subscription is lost; raises why."""
        try:
            await self._pubsub.subscribe(READY_CHANNEL, DUE_CHANNEL, self._channel)
            await _until_one_fails(self._read(), self._send_heartbeats())
        finally:
            with contextlib.suppress(Exception):
                await self._pubsub.aclose()

    async def _read(self) -> None:
        while True:
            message = await self._pubsub.get_message(timeout=_POLL_S)
            if message is None:
                continue
            if message["type"] == "subscribe" and not self._confirmed.is_set():
                self._confirmed.set()
                self._on_listening()
            elif message["type"] == "message" and message["channel"] == self._channel:
                self._unheard.pop(message["data"], None)
            elif message["type"] == "message":
                self._on_message(message["channel"], message["data"].decode(errors="replace"))

    async def _send_heartbeats(self) -> None:
        await self._until_confirmed()
        number = 0
        while True:
            number += 1
            payload = str(number)
            self._unheard[payload.encode()] = number
            try:
                await self._pubsub.publish(self._channel, payload)
            except Exception:  # noqa: BLE001 (a store that cannot publish says nothing about the subscription)
                self._unheard.pop(payload.encode(), None)
            else:
                if any(sent <= number - _BEHIND_MAX for sent in self._unheard.values()):
                    raise StoreUnavailable("what the store publishes does not arrive")
            await asyncio.sleep(HEARTBEAT_S)

    async def _until_confirmed(self) -> None:
        try:
            async with asyncio.timeout((_BEHIND_MAX + 1) * HEARTBEAT_S):
                await self._confirmed.wait()
        except TimeoutError:
            raise StoreUnavailable("the store does not confirm the subscription") from None


async def _until_one_fails(*works: Coroutine[Any, Any, None]) -> None:
    """Run them at the same time, and raise the error of the first that fails; the others are cancelled."""
    tasks = {asyncio.create_task(work) for work in works}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_and_wait(tasks)
