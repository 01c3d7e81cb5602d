"""The engine of one process: queue, topics, timers and waiting consumers over one store."""

from __future__ import annotations

import asyncio
import logging

from deferd.contract.errors import StoreUnavailable
from deferd.engine import metrics
from deferd.engine.bulk_throttle import BulkThrottle
from deferd.engine.consistency.checker import ConsistencyChecker
from deferd.engine.dispatcher import Dispatcher
from deferd.engine.durability import PutSender
from deferd.engine.known_topics import KnownTopics
from deferd.engine.movable_clock import MovableClock
from deferd.engine.notifications import Notifications
from deferd.engine.queue import JobQueue
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.store_watch import StoreWatch
from deferd.engine.task_cancellation import cancel_and_wait
from deferd.engine.timer import Timer
from deferd.engine.topic_usage import TopicUsage
from deferd.engine.topics import Topics
from deferd.store.connection import Store

_LOG = logging.getLogger(__name__)
_LISTEN_TIMEOUT_S = 5.0


class Engine:
    """Everything that works on the store. Knows nothing of HTTP.

    `shards` must be the number the store was first used with; `tick_s` is the timer's tick, `dead_retention_ms` how
    long dead jobs are kept, `max_topic_labels` how many topics have metric series of their own. With `movable_clock`,
    for tests, there is a `clock`, which can be moved. `embedded`: the store is the service's own, which has no
    replicas. The store stays the caller's to close.
    """

    def __init__(
        self,
        store: Store,
        *,
        shards: int = 1,
        tick_s: float = 1.0,
        dead_retention_ms: int = 30 * 86_400_000,
        max_topic_labels: int = 100,
        movable_clock: bool = False,
        embedded: bool = False,
    ) -> None:
        keys = Keys(shards)
        labels = metrics.TopicLabels(max_topic_labels)
        self._watch = StoreWatch(store, shards, exclusive=embedded)
        self._scripts = Scripts(store, movable_clock=movable_clock, watch=self._watch)
        put_sender = PutSender(store, self._scripts, keys, embedded=embedded)
        self.usage = TopicUsage(self._scripts, keys)
        known = KnownTopics(keys)
        # What can fail while the rest of the store works.
        part_of = keys.shard_of if store.cluster else _the_only_part
        self.queue = JobQueue(
            self._scripts,
            keys,
            labels,
            put_sender,
            known=known,
            turns=BulkThrottle(part_of),
            dead_retention_ms=dead_retention_ms,
        )
        self.topics = Topics(self._scripts, keys, labels, known)
        self.consistency = ConsistencyChecker(self._scripts, keys)
        self.dispatcher = Dispatcher(self.queue, part_of)
        self.timers = [
            Timer(
                self._scripts,
                keys,
                shard,
                labels,
                tick_s=tick_s,
                dead_retention_ms=dead_retention_ms,
                on_promoting=self._follow_promotion,
            )
            for shard in range(shards)
        ]
        self.clock = MovableClock(self._scripts, keys, self.timers) if movable_clock else None
        self._notifications = Notifications(
            store, on_ready=self._look_at_topic, on_due=self._wake_timers, on_gap=self._look_everywhere
        )
        self._keys = keys
        self._is_cluster = store.cluster
        self._scripts.on_late_run = self.dispatcher.on_gap
        self._tasks: list[asyncio.Task[None]] = []
        self._pings: set[asyncio.Task[StoreUnavailable | None]] = set()

    async def start(self) -> None:
        """Start the timers and listen for ready jobs.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        await self.ping()
        await self._notifications.check_publishing()
        self._tasks = [asyncio.create_task(self._notifications.run(), name="deferd-notifications")]
        try:
            await self._notifications.listening(_LISTEN_TIMEOUT_S)
        except TimeoutError as exc:
            await self.close()
            raise StoreUnavailable("the store does not send messages (PUBLISH and SUBSCRIBE)") from exc
        self._tasks.append(asyncio.create_task(self._watch.run(), name="deferd-store-watch"))
        self._tasks += [asyncio.create_task(timer.run(), name="deferd-timer") for timer in self.timers]
        for task in self._tasks:
            task.add_done_callback(_report_unexpected_end)

    def drain(self) -> None:
        """Answer parked pops empty at once, and keep no new ones waiting."""
        self.dispatcher.drain()

    async def close(self) -> None:
        """Stop timers and consumers. Bounded by the store's time-out."""
        await self.dispatcher.close()
        await cancel_and_wait(self._tasks)
        self._tasks = []
        await asyncio.gather(*self._pings, *(timer.resign() for timer in self.timers))

    async def ping(self) -> None:
        """Return when the engine works and the store answers; of a cluster, any shard. Raises StoreUnavailable."""
        for task in self._tasks:
            if task.done():
                raise StoreUnavailable(f"{task.get_name()} has ended; the service must be restarted")
        if not self._is_cluster:
            await self._scripts.command("PING")
            return
        asking = [asyncio.create_task(self._error_of(shard)) for shard in range(self._keys.shards)]
        self._pings.update(asking)  # those to a node that hangs end by themselves, each at its time-out
        for ping in asking:
            ping.add_done_callback(self._pings.discard)
        error: StoreUnavailable | None = None
        for asked in asyncio.as_completed(asking):
            error = await asked
            if error is None:
                return
        raise error or StoreUnavailable("the store has no shard")

    async def _error_of(self, shard: int) -> StoreUnavailable | None:
        try:
            await self._scripts.command("EXISTS", self._keys.of_shard(shard, "topics"))
        except StoreUnavailable as exc:
            return exc
        return None

    def _follow_promotion(self, topic: str) -> None:
        """Consumers of this process ask right behind a promotion, so that both share a trip and an fsync."""
        if not self._is_cluster:
            self.dispatcher.on_ready(topic)

    def _look_at_topic(self, topic: str, mark: str) -> None:
        if self._is_cluster or all(mark != timer.mark for timer in self.timers):
            self.dispatcher.on_ready(topic)

    def _wake_timers(self, key: str) -> None:
        for timer in self.timers:
            timer.wake(key)

    def _look_everywhere(self) -> None:
        self.dispatcher.on_gap()
        for timer in self.timers:
            timer.wake_anyhow()


def _the_only_part(_topic: str) -> int:
    return 0


def _report_unexpected_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _LOG.critical("%s ended unexpectedly", task.get_name(), exc_info=task.exception())
