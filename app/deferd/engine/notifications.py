"""Listens to the store's messages: a topic has something ready, or a timer has earlier work.

Messages only shorten waits; a lost one loses no job. `on_gap` reports that messages may have been missed: when the
subscription breaks, at each attempt to subscribe again, at most a second apart, and when it is back.

A subscription can be lost while its connection looks healthy: packets may be dropped on the way, or the node may have
left the cluster. So a heartbeat is published each second on a channel of this subscription's own. If a heartbeat has
not arrived when the second one after it is sent, the subscription is lost; this is noticed within 3 s, plus the time
that the store takes to publish. A failed publish says nothing about the subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

from deferd.contract.errors import StoreUnavailable
from deferd.engine.redis_keys import (
    DUE_CHANNEL,
    ENDED_CHANNEL,
    HEARTBEAT_CHANNEL,
    PARTITIONS_CHANNEL,
    PUSH_CHANNEL,
    READY_CHANNEL,
)
from deferd.engine.scripts import observed, translate
from deferd.store.connection import Store
from deferd.store.redis_client import WatchedPubSub
from deferd.store.task_cancellation import cancel_and_wait

_LOG = logging.getLogger(__name__)
_CHANNELS = (READY_CHANNEL, DUE_CHANNEL, PUSH_CHANNEL, PARTITIONS_CHANNEL, ENDED_CHANNEL)
_POLL_S = 1.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.05, 1.0
HEARTBEAT_S = 1.0
_BEHIND_MAX = 2
"""When a heartbeat is sent, the one this many before it must have arrived."""


class Notifications:
    """One subscription for the whole process.

    `on_ready(topic, mark)` is called for a topic with something ready; `mark` names the timer that made it ready,
    '' for any other call. `on_due(key)` is called for a timer with earlier work; `key` as for `Timer.wake`.
    `on_push(payload)` is called with the messages about pushed topics, `on_partitions(topic)` for one that has another
    number of partitions, `on_ended(payload)` with the messages about jobs that somebody waits for.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_ready: Callable[[str, str], None],
        on_due: Callable[[str], None],
        on_push: Callable[[str], None],
        on_partitions: Callable[[str], None],
        on_ended: Callable[[str], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._store = store
        self._on_ready = on_ready
        self._on_due = on_due
        self._on_push = on_push
        self._on_partitions = on_partitions
        self._on_ended = on_ended
        self._on_gap = on_gap
        self._listening = asyncio.Event()
        self._was_lost = False

    async def listening(self, timeout_s: float) -> None:
        """Wait until messages arrive. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._listening.wait()

    async def check_publishing(self) -> None:
        """Publish a message, as the scripts do. Raises StoreUnavailable when the store refuses."""
        pubsub = self._store.pubsub()
        with observed("PUBLISH"):
            await pubsub.publish(DUE_CHANNEL, "")

    async def run(self) -> None:
        """Listen until cancelled, subscribing again whenever the subscription is lost."""
        retry_s = _RETRY_MIN_S
        while True:
            subscription = _Subscription(self._store.pubsub(), self._on_message, self._on_listening)
            try:
                await subscription.run()
            except Exception as exc:  # noqa: BLE001 (after any error, waiting consumers need a new subscription)
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

    def _on_message(self, channel: bytes, payload: str) -> None:
        if channel == READY_CHANNEL:
            topic, _, mark = payload.partition(" ")
            self._on_ready(topic, mark)
        elif channel == PUSH_CHANNEL:
            self._on_push(payload)
        elif channel == PARTITIONS_CHANNEL:
            self._on_partitions(payload)
        elif channel == ENDED_CHANNEL:
            self._on_ended(payload)
        else:
            self._on_due(payload)


class _Subscription:
    """One subscription until it is lost. `on_listening` is called when it is confirmed."""

    def __init__(
        self, pubsub: WatchedPubSub, on_message: Callable[[bytes, str], None], on_listening: Callable[[], None]
    ) -> None:
        self._pubsub = pubsub
        self._on_message = on_message
        self._on_listening = on_listening
        self._channel = f"{HEARTBEAT_CHANNEL}:{os.urandom(8).hex()}".encode()
        self._confirmed = asyncio.Event()
        self._unreceived: dict[bytes, int] = {}

    async def run(self) -> None:
        """Listen until the subscription is lost; raises the reason."""
        try:
            await self._pubsub.subscribe(*_CHANNELS, self._channel)
            await _run_until_one_fails(self._read(), self._send_heartbeats())
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
                self._unreceived.pop(message["data"], None)
            elif message["type"] == "message":
                self._on_message(message["channel"], message["data"].decode(errors="replace"))

    async def _send_heartbeats(self) -> None:
        await self._wait_until_confirmed()
        number = 0
        while True:
            number += 1
            payload = str(number)
            self._unreceived[payload.encode()] = number
            try:
                await self._pubsub.publish(self._channel, payload)
            except Exception:  # noqa: BLE001 (a failed publish says nothing about the subscription)
                self._unreceived.pop(payload.encode(), None)
            else:
                if any(sent <= number - _BEHIND_MAX for sent in self._unreceived.values()):
                    raise StoreUnavailable("the messages that the store publishes do not arrive")
            await asyncio.sleep(HEARTBEAT_S)

    async def _wait_until_confirmed(self) -> None:
        try:
            async with asyncio.timeout((_BEHIND_MAX + 1) * HEARTBEAT_S):
                await self._confirmed.wait()
        except TimeoutError:
            raise StoreUnavailable("the store does not confirm the subscription") from None


async def _run_until_one_fails(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run them at the same time; cancel the others when one ends, and raise its error."""
    tasks = {asyncio.create_task(coroutine) for coroutine in coroutines}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_and_wait(tasks)
