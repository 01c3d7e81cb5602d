"""The timer of one shard: does the work that is due, and sleeps until the next is.

It runs at least every `tick_s` and wakes earlier for the next due time. Any number of processes may run timers on one
store: a lock lets one of them work while the others rest, but every step is safe without it. When the holder dies,
another timer takes over once work is overdue and the holder has not renewed the lock for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from deferd.contract.errors import StoreUnavailable
from deferd.engine import metrics
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import SCHEDULES_MEMBER, Keys
from deferd.engine.scripts import Scripts

_LOG = logging.getLogger(__name__)
_TOPICS_PER_TURN = 1000
_JOBS_PER_STEP = 500
"""Most jobs that one script call moves from each sorted set: about a millisecond of the store's time."""
_TOPICS_AT_ONCE = 4
_TOPICS_NAMED = 8
"""Most topics with work that a promotion returns."""
_CATCH_UP_S = 5.0
"""Most time for which `catch_up` works before it leaves the rest to the turns."""
_LOCK_MS = 2500
_PATIENCE_MS = 250
"""A holder that has not renewed its lock for this long, while work is overdue by as much, counts as dead."""
_LOOK_FOR_SCHEDULES_S = 60.0
"""How often the holder of the lock looks for schedules that are due although the shard's `due` does not say so, or
whose runs another release of the time zones has derived."""
_SCHEDULES_BEHIND_TOPICS_S = 0.1
"""While topics have due jobs all the time, schedules wait for them no longer than this."""
_OUTCOMES_OF_RUNS = ("run", "skipped", "replaced", "missed")
_PATIENT_AFTER_FAILURE_S = 60.0
"""After a topic failed, the timer takes over no unexpired lock for this long: the failed topic's work stays overdue."""


class _NextWork(NamedTuple):
    """When the shard has work next, in ms from `since_s` on the loop's clock (-1: none), and at which topics.

    `since_s` is when the call was sent: the store reads its clock soon after, but responds only after its fsync.
    """

    wait_ms: int
    since_s: float
    topics: list[str]


def _has_due_topics(work: _NextWork | None) -> bool:
    return work is not None and work.wait_ms == 0 and work.topics != [SCHEDULES_MEMBER]


class Timer:
    """Does the due work of `shard`.

    `on_promoting(topic)` is called once a promotion has been sent, so that a poll can follow it to the store at once.
    The caller may then ignore the message with this timer's `mark` that the promotion publishes.
    `advance_schedules(shard)` advances some schedules that are due and returns 0 when that was all.
    """

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        shard: int,
        labels: metrics.TopicLabels,
        *,
        tick_s: float,
        dead_retention_ms: int,
        on_promoting: Callable[[str], None] = lambda _topic: None,
        advance_schedules: Callable[[int], Awaitable[int]],
    ) -> None:
        self._scripts = scripts
        self._shard = shard
        self._advance_schedules = advance_schedules
        self._look_for_schedules_at = 0.0
        self._advance_at_the_latest: float | None = None
        self._keys = keys
        self._due_key = keys.of_shard(shard, "due")
        self._lock_key = keys.of_shard(shard, "lock")
        self._labels = labels
        self._tick_s = tick_s
        self._dead_retention_ms = dead_retention_ms
        self._name = f"{os.getpid()}-{os.urandom(8).hex()}"
        self.mark = os.urandom(8).hex()
        self._on_promoting = on_promoting
        self._holds_lock = False
        self._in_turn = False
        self._renew_lock_at = 0.0
        self._expected: list[str] = []
        self._woken = asyncio.Event()
        self._patient_until = 0.0
        self._delayed_wake: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Work until cancelled. While the store is away, wait; then do what has come due until then."""
        store_is_away = False
        while True:
            self._woken.clear()
            try:
                wait_s = await self.run_once()
                if store_is_away:
                    _LOG.info("the store is back; the timer continues")
                store_is_away = False
            except StoreUnavailable as exc:
                if not store_is_away:
                    _LOG.warning("the timer waits for the store: %s", exc)
                store_is_away = True
                wait_s = min(self._tick_s, 0.25)
            except Exception:  # noqa: BLE001 (no error may keep due jobs waiting for a restart)
                _LOG.exception("a turn of the timer failed; the next one follows")
                wait_s = self._tick_s
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._woken.wait()

    async def run_once(self) -> float:
        """Run one turn: one bounded step at every topic that has due work.

        Returns the seconds until the next turn, at most the tick; 0 when work may be left.
        """
        began = time.perf_counter()
        topics, self._expected = self._expected, []
        if not topics or began >= self._renew_lock_at:
            wait_s, topics = await self._begin_turn(began)
            if self._holds_lock and began >= self._look_for_schedules_at and SCHEDULES_MEMBER not in topics:
                if await self._advance_some_schedules():
                    wait_s = 0
                else:
                    self._look_for_schedules_at = began + _LOOK_FOR_SCHEDULES_S
            if not topics:
                return wait_s
        has_schedules = SCHEDULES_MEMBER in topics
        if has_schedules:
            topics = [topic for topic in topics if topic != SCHEDULES_MEMBER]
        next_work, failed = await self._promote_all(topics)
        if has_schedules:
            # Jobs that are due come first, so that many runs of one instant do not wait for those that follow them.
            if self._advance_at_the_latest is None:
                self._advance_at_the_latest = began + _SCHEDULES_BEHIND_TOPICS_S
            if not _has_due_topics(next_work) or began >= self._advance_at_the_latest:
                self._advance_at_the_latest = None
                failed |= await self._advance_some_schedules() is None
            next_work = None
        metrics.TIMER_TURN_SECONDS.observe(time.perf_counter() - began)
        if failed:
            self._patient_until = time.perf_counter() + _PATIENT_AFTER_FAILURE_S
            return self._tick_s
        return 0 if next_work is None else self._rest_until(next_work)

    async def _promote_all(self, topics: list[str]) -> tuple[_NextWork | None, bool]:
        """Promote in all of the topics; returns the next work after that, and whether a topic failed."""
        next_work: _NextWork | None = None
        failed = False
        for at in range(0, len(topics), _TOPICS_AT_ONCE):
            some = topics[at : at + _TOPICS_AT_ONCE]
            for topic, done in zip(
                some, await asyncio.gather(*map(self._promote, some), return_exceptions=True), strict=True
            ):
                if isinstance(done, StoreUnavailable):
                    raise done
                if isinstance(done, BaseException):  # a topic that makes the script fail must not stop the others
                    _LOG.error("the timer's turn at topic %s failed", topic_of(topic), exc_info=done)
                    failed = True
                else:
                    next_work = done  # the store runs promotions in order: the last one is up to date
        return next_work, failed

    async def _advance_some_schedules(self) -> int | None:
        """Advance schedules that are due; returns 0 when that was all, None when that failed."""
        try:
            return await self._advance_schedules(self._shard)
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 (schedules that cannot be advanced must not stop the topics)
            _LOG.exception("the schedules of shard %d could not be advanced", self._shard)
            return None

    async def _begin_turn(self, now_s: float) -> tuple[float, list[str]]:
        """Take or keep the lock; return the seconds until the next turn, and the topics that have work now."""
        self._in_turn = True
        try:
            patience_ms = _PATIENCE_MS if now_s >= self._patient_until else _LOCK_MS
            reply = await self._scripts.run(
                "turn", (self._due_key, self._lock_key), (self._name, _LOCK_MS, _TOPICS_PER_TURN, patience_ms)
            )
            self._holds_lock = reply[0] == 1
        finally:
            self._in_turn = False
        self._renew_lock_at = now_s + _LOCK_MS / 2000 if self._holds_lock else 0
        metrics.TIMER_TURNS.labels("yes" if self._holds_lock else "no").inc()
        wait_ms: int = reply[1]
        if not self._holds_lock:
            return min((wait_ms + 1) / 1000, self._tick_s), []
        return self._tick_s if wait_ms < 0 else min(wait_ms / 1000, self._tick_s), [t.decode() for t in reply[2:]]

    def _rest_until(self, work: _NextWork) -> float:
        """The seconds to sleep. If `work` names all topics with work, the next turn need not ask for them."""
        if work.wait_ms < 0 or work.wait_ms > self._tick_s * 1000:
            return self._tick_s
        if len(work.topics) < _TOPICS_NAMED:
            self._expected = work.topics
        return max(work.since_s + work.wait_ms / 1000 - asyncio.get_running_loop().time(), 0)

    def wake(self, key: str) -> None:
        """Handle a message: `key` is a shard's due key with earlier work, or a lock key that became free."""
        # A message may overtake the reply that says who holds the lock.
        if key == self._lock_key or (key == self._due_key and (self._holds_lock or self._in_turn)):
            self.wake_always()
        elif key == self._due_key and self._delayed_wake is None:
            # The holder got the message too. Check that it is alive when this work would be overdue.
            self._delayed_wake = asyncio.get_running_loop().call_later(_PATIENCE_MS / 1000, self.wake_always)

    def wake_always(self) -> None:
        """Wake, also without holding the lock; also for messages that may have been missed."""
        if self._delayed_wake is not None:
            self._delayed_wake.cancel()
            self._delayed_wake = None
        self._expected = []
        self._woken.set()

    async def catch_up(self, until_ms: int) -> None:
        """Do all work due by `until_ms`, also without holding the lock; after 5 s the rest is left to the turns."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _CATCH_UP_S
        while loop.time() < end_s:
            topics = await self._scripts.command(
                "ZRANGEBYSCORE", self._due_key, "-inf", until_ms, "LIMIT", 0, _TOPICS_AT_ONCE
            )
            if not topics:
                return
            names = [topic.decode() for topic in topics]
            promotions = (self._promote(name) for name in names if name != SCHEDULES_MEMBER)
            for done in await asyncio.gather(*promotions, return_exceptions=True):
                if isinstance(done, BaseException):
                    raise done
            if SCHEDULES_MEMBER in names:
                await self._advance_schedules(self._shard)

    async def resign(self) -> None:
        """Let another timer take over at once, at shutdown. Does nothing when the store is away."""
        if self._holds_lock:
            try:
                await self._scripts.run("resign", (self._lock_key,), (self._name,))
            except StoreUnavailable:
                _LOG.debug("could not release the timer's lock; it expires")

    async def _promote(self, topic: str) -> _NextWork:
        sent_at_s = asyncio.get_running_loop().time()
        promotion = self._scripts.run(
            "promote",
            (*self._keys.of_topic(topic), self._lock_key),
            (topic, _JOBS_PER_STEP, self._dead_retention_ms, self.mark, _TOPICS_NAMED, self._name, _LOCK_MS),
        )
        # What this starts runs when this task waits: after the promotion has been sent.
        self._on_promoting(topic)
        try:
            reply = await promotion
        except Exception:
            # The promotion may have run, or may still run, with no poll behind it. With a new mark its message is
            # no longer ignored; if it has arrived already, this poll makes up for it.
            self.mark = os.urandom(8).hex()
            self._on_promoting(topic)
            raise
        redelivered, expired, exhausted, retention_ended, wait_ms, next_topics, overdue, runs, *lateness_ms = reply
        label = self._labels.label(topic)
        if lateness_ms or redelivered or expired or exhausted or retention_ended or overdue:
            counted = self._labels.counted.of(topic)
            counted.dead += expired + exhausted + overdue
            counted.released += redelivered + exhausted
        metrics.PROMOTION_LATENESS.labels(label).observe_all_ms(lateness_ms)
        for counter, count in (
            (metrics.REDELIVERIES.labels(label), redelivered),
            (metrics.DEATHS.labels(label, "expired"), expired),
            (metrics.DEATHS.labels(label, "attempts_exhausted"), exhausted),
            (metrics.DEATHS.labels(label, "deadline"), overdue),
            (metrics.RETENTION_ENDS.labels(label), retention_ended),
        ):
            if count:
                counter.inc(count)
        if runs:  # most promotions concern no schedule
            for outcome, count in zip(_OUTCOMES_OF_RUNS, runs, strict=True):
                if count:
                    metrics.SCHEDULE_RUNS.labels(label, outcome).inc(count)
        return _NextWork(wait_ms, sent_at_s, [next_topic.decode() for next_topic in next_topics])
