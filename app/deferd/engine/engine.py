"""The engine of one process: jobs, topics, timers and waiting consumers over one store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from deferd.contract.errors import StoreUnavailable
from deferd.engine import metrics
from deferd.engine.activity_list import ActivityList
from deferd.engine.batches import Batches
from deferd.engine.bulk_actions import BulkActions
from deferd.engine.calendars import Calendars
from deferd.engine.cancels import Cancels
from deferd.engine.chained_puts import ChainedPuts
from deferd.engine.consistency import ConsistencyChecker
from deferd.engine.console_store import ConsoleSessions
from deferd.engine.deliveries import Deliveries, HeldJobs
from deferd.engine.dispatcher import Dispatcher
from deferd.engine.event_streams import EventHub
from deferd.engine.events import EventReader
from deferd.engine.groups import Groups
from deferd.engine.history import FinishRates, Histories, HistoryPublisher, ReadyHistories
from deferd.engine.inspection.acknowledgements import Acknowledgements
from deferd.engine.inspection.attention import Alerts, AttentionReader
from deferd.engine.inspection.consumers import ConsumerList, ConsumerRegistry, Sample
from deferd.engine.inspection.dead_errors import DeadJobs
from deferd.engine.inspection.failing import FailingTopics
from deferd.engine.inspection.forecast import Forecasts, ScheduledRuns
from deferd.engine.inspection.redriven_jobs import RedrivenJobs
from deferd.engine.inspection.relays import RelayRegistry
from deferd.engine.inspection.system import SystemReader
from deferd.engine.job_batches import BulkThrottle
from deferd.engine.job_waits import JobWaits
from deferd.engine.movable_clock import MovableClock
from deferd.engine.notifications import Notifications
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import Partitions
from deferd.engine.placement import DueTimePlacer
from deferd.engine.push_store import PushListener, PushStore
from deferd.engine.puts import Puts, PutSender
from deferd.engine.queue import JobQueue
from deferd.engine.redis_keys import Keys
from deferd.engine.schedule_planning import RunWindows
from deferd.engine.schedule_store import ScheduleStore
from deferd.engine.scheduler import Scheduler, Schedules
from deferd.engine.scripts import DurableCalls, Scripts, observed
from deferd.engine.shelf import Shelf, ShelfCalls
from deferd.engine.store_clock import RequestClock, StoreClock
from deferd.engine.store_processes import StoreProcesses
from deferd.engine.store_watch import StoreWatch
from deferd.engine.tasks import TaskActions, TaskRunner, TaskStore
from deferd.engine.timer import Timer
from deferd.engine.topic_list import TopicList
from deferd.engine.topic_search import TopicSearch
from deferd.engine.topic_sweeps import TopicSweeps
from deferd.engine.topic_usage import TopicUsage
from deferd.engine.topics import Topics
from deferd.engine.undos import Undos
from deferd.store.connection import Store
from deferd.store.store_facts import StoreFacts, read_store_facts
from deferd.store.task_cancellation import cancel_and_wait

_LOG = logging.getLogger(__name__)
_LISTEN_TIMEOUT_S = 5.0


class Engine:
    """All work on the store, independent of HTTP. The caller closes the store.

    `shards` must be the number that the store was first used with. `tick_s` is the longest sleep of a timer,
    `dead_retention_ms` how long dead jobs are kept, `max_topic_labels` how many topics have their own metric series.
    `movable_clock`, for tests, adds a `clock` that can be moved. `embedded`: the store is the service's own, which has
    no replicas. `sample_consumers` returns the consumers that this process has seen within a minute.
    `shelf` has the delayed jobs that are far away, if there is one.
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
        sample_consumers: Callable[[], Sample] = lambda: Sample([]),
        shelf: ShelfCalls | None = None,
    ) -> None:
        self.shelf = Shelf(shelf)
        keys = Keys(shards, Partitions(on_change=self._on_other_partitions))
        self._store, self._keys, self._is_cluster = store, keys, store.cluster
        self._watch = StoreWatch(
            store,
            shards,
            exclusive=embedded,
            on_mismatch=self._on_mismatch,
            may_be_raised=self._may_be_raised,
        )
        self._scripts = Scripts(store, movable_clock=movable_clock, watch=self._watch, on_late_run=self._on_late_run)
        self.processes = StoreProcesses(self._scripts, exclusive=embedded)
        self.topic_list = TopicList(self._scripts, keys, self.shelf)
        labels = metrics.TopicLabels(max_topic_labels, on_change=self.topic_list.known_topics.add)
        self.calendars = Calendars(self._scripts, keys)
        self.store_clock = StoreClock(self._scripts, keys, is_movable=movable_clock)
        self.request_clock = RequestClock(self._scripts, keys)
        self.console_sessions = ConsoleSessions(self._scripts, keys)
        self.placer = DueTimePlacer(self.store_clock, self.calendars, keys)
        self.partitions = PartitionStore(self._scripts, keys, self.shelf)
        self.usage = TopicUsage(self._scripts, keys)
        failure_domain = keys.shard_of if store.cluster else lambda _topic: 0
        throttle = BulkThrottle(failure_domain)
        durable_calls = DurableCalls(store, keys, embedded=embedded)
        self.bulk = BulkActions(self._scripts, keys, labels, throttle, usage=self.usage, partitions=self.partitions)
        self.batches = Batches(self._scripts, keys, self.bulk)
        self.puts = Puts(
            PutSender(self._scripts, keys, self.placer, self.partitions, durable_calls),
            labels,
            throttle,
            why_no_batch=self.batches.why_not_here,
        )
        self.cancels = Cancels(
            self._scripts, keys, labels, throttle, partitions=self.partitions, durable_calls=durable_calls
        )
        self.deliveries = Deliveries(
            self._scripts, keys, labels, self.partitions, self.placer, dead_retention_ms=dead_retention_ms
        )
        self.held_jobs = HeldJobs(self._scripts, keys, labels, self.partitions, throttle)
        self.queue = JobQueue(
            self._scripts,
            keys,
            labels,
            puts=self.puts,
            chained=ChainedPuts(
                self._scripts,
                keys,
                self.placer,
                self.partitions,
                durable_calls,
                why_no_batch=self.batches.why_not_here,
            ),
            placer=self.placer,
            partitions=self.partitions,
            bulk_throttle=throttle,
            dead_retention_ms=dead_retention_ms,
        )
        self.waits = JobWaits(self.queue, self._scripts, keys, self.partitions)
        self.push = PushStore(self._scripts, keys, self.queue, labels.label)
        self.undos = Undos(self._scripts, keys, labels, throttle, self.partitions)
        self.activity = ActivityList(self._scripts, keys)
        run_windows = RunWindows(self.placer)
        schedule_store = ScheduleStore(self._scripts, keys, run_windows, labels.counted, self.shelf)
        self.schedules = Schedules(schedule_store, self.puts, run_windows)
        scheduler = Scheduler(schedule_store, run_windows, move=self.schedules.settle_move)
        self.event_reader = EventReader(self._scripts, keys)
        self.events = EventHub(self.event_reader, keys)
        self._init_inspection(
            labels,
            ScheduledRuns(schedule_store, run_windows),
            sample_consumers=sample_consumers,
            dead_retention_ms=dead_retention_ms,
        )
        self.sweeps = TopicSweeps(self._scripts, keys, labels, self.dead_jobs, self.partitions)
        self.topics = Topics(self._scripts, keys, self.placer, self.partitions)
        self.redriven_jobs = RedrivenJobs(self._scripts, keys, self.partitions, self.sweeps)
        self.task_actions = TaskActions(self._scripts, keys, self.bulk, self.sweeps, throttle)
        self.tasks = TaskStore(self._scripts, keys)
        self.task_runner = TaskRunner(self.tasks, self.task_actions, self.activity)
        self.consistency = ConsistencyChecker(self._scripts, keys, self.schedules, self.partitions)
        self.dispatcher = Dispatcher(
            self.queue, self.held_jobs, failure_domain, TopicSearch(self._scripts, keys, by_shard=store.cluster), keys
        )
        self.timers = [
            Timer(
                self._scripts,
                keys,
                shard,
                labels,
                tick_s=tick_s,
                dead_retention_ms=dead_retention_ms,
                on_promoting=self._on_promoting,
                advance_schedules=scheduler.advance_due,
            )
            for shard in range(shards)
        ]
        self.clock = (
            MovableClock(
                self._scripts,
                keys,
                self.timers,
                self.schedules,
                first_schedule_ms=schedule_store.first_due_ms,
                before_move=self.history_publisher.try_publish,
                shelf=self.shelf,
            )
            if movable_clock
            else None
        )
        self._notifications = Notifications(
            store,
            on_ready=self._on_ready,
            on_due=self._on_due,
            on_push=self._on_push,
            on_partitions=self.partitions.on_message,
            on_ended=self.waits.on_message,
            on_gap=self._on_gap,
        )
        self._pushers: PushListener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pings: set[asyncio.Task[StoreUnavailable | None]] = set()

    def _init_inspection(
        self,
        labels: metrics.TopicLabels,
        scheduled_runs: ScheduledRuns,
        *,
        sample_consumers: Callable[[], Sample],
        dead_retention_ms: int,
    ) -> None:
        """Make the parts for operators: what they look at, and what publishes it."""
        store, scripts, keys = self._store, self._scripts, self._keys
        self.consumer_registry = ConsumerRegistry(scripts, keys, self.queue.pop_counts.take_popped, sample_consumers)
        self.consumers = ConsumerList(scripts, keys, self.topic_list, self.consumer_registry)
        self.history_publisher = HistoryPublisher(scripts, keys, labels.counted)
        self.histories = Histories(scripts, keys)
        self.finish_rates = FinishRates(scripts, keys)
        self.ready_histories = ReadyHistories(scripts, keys)
        self.failing = FailingTopics(scripts, keys)
        self.forecasts = Forecasts(scripts, keys, self.topic_list, scheduled_runs, self.shelf)
        self.dead_jobs = DeadJobs(scripts, keys, self.topic_list)
        self.relays = RelayRegistry(scripts, keys)
        self.alerts = Alerts(
            AttentionReader(
                store,
                scripts,
                keys,
                self.topic_list,
                registry=self.consumer_registry,
                dead_jobs=self.dead_jobs,
                finish_rates=self.finish_rates,
                failing=self.failing,
                shelf=self.shelf,
                relays=self.relays,
                dead_retention_ms=dead_retention_ms,
            ),
            Acknowledgements(scripts, keys),
        )
        self.system = SystemReader(store, scripts, keys, self.shelf)
        self.groups = Groups(scripts, keys, self.shelf)

    async def start(self) -> None:
        """Start the timers and the subscription to the store's messages.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        await self.ping()
        await self._scripts.load()
        await self.processes.begin()
        await self._notifications.check_publishing()
        self._tasks = [asyncio.create_task(self._notifications.run(), name="deferd-notifications")]
        try:
            await self._notifications.listening(_LISTEN_TIMEOUT_S)
        except TimeoutError as exc:
            await self.close()
            raise StoreUnavailable("the store does not send messages (PUBLISH and SUBSCRIBE)") from exc
        await self.partitions.load()
        self._tasks.append(asyncio.create_task(self._watch.run(), name="deferd-store-watch"))
        self._tasks.append(asyncio.create_task(self.processes.run(), name="deferd-processes"))
        self._tasks.append(asyncio.create_task(self.partitions.run(), name="deferd-partitions"))
        self._tasks.append(asyncio.create_task(self.dispatcher.empty_partitions.run(), name="deferd-empty-partitions"))
        self._tasks.append(asyncio.create_task(self.waits.run(), name="deferd-job-waits"))
        self._tasks += [asyncio.create_task(timer.run(), name="deferd-timer") for timer in self.timers]
        self._tasks.append(asyncio.create_task(self.consumer_registry.run(), name="deferd-consumers"))
        self._tasks.append(asyncio.create_task(self.history_publisher.run(), name="deferd-history"))
        self._tasks.append(asyncio.create_task(self.events.run(), name="deferd-events"))
        self._tasks.append(asyncio.create_task(self.task_runner.run(), name="deferd-tasks"))
        for task in self._tasks:
            task.add_done_callback(_report_unexpected_end)

    def tell_pushers(self, pushers: PushListener) -> None:
        """From now on tell `pushers` what they need to know."""
        self._pushers = pushers

    def drain(self) -> None:
        """End waiting pops, waits for jobs and streams of events at once; new ones do not wait."""
        self.dispatcher.drain()
        self.waits.drain()
        self.events.drain()

    async def close(self) -> None:
        """Stop timers and consumers. Takes at most the store's time-out."""
        await self.dispatcher.close()
        await self.task_runner.close()
        await self.activity.close()
        await cancel_and_wait(self._tasks)
        self._tasks = []
        await asyncio.gather(
            *self._pings,
            self.history_publisher.close(),
            self.processes.leave(),
            *(timer.resign() for timer in self.timers),
        )

    async def ping(self) -> None:
        """Check that the engine runs and the store responds; in a cluster, any shard is enough.

        Raises StoreUnavailable.
        """
        for task in self._tasks:
            if task.done():
                raise StoreUnavailable(f"{task.get_name()} has ended; the service must be restarted")
        if not self._is_cluster:
            await self._scripts.command("PING")
            return
        pings = [asyncio.create_task(self._ping_shard(shard)) for shard in range(self._keys.shards)]
        self._pings.update(pings)  # a ping of a node that hangs ends at its time-out
        for ping in pings:
            ping.add_done_callback(self._pings.discard)
        error: StoreUnavailable | None = None
        for result in asyncio.as_completed(pings):
            error = await result
            if error is None:
                return
        raise error or StoreUnavailable("the store has no shard")

    def admit(self) -> None:
        """Raise StoreUnavailable while calls of the store are refused. For what makes none at its beginning."""
        self._watch.admit()

    async def store_facts(self) -> StoreFacts:
        """What the store is and supports now. Raises StoreUnavailable."""
        with observed("INFO"):
            return await read_store_facts(self._store)

    async def _ping_shard(self, shard: int) -> StoreUnavailable | None:
        try:
            await self._scripts.command("EXISTS", self._keys.of_shard(shard, "topics"))
        except StoreUnavailable as exc:
            return exc
        return None

    def _on_promoting(self, topic: str) -> None:
        """Poll for waiting consumers right behind the promotion, so that both share a round trip and an fsync."""
        if not self._is_cluster:
            self._announce(topic)

    def _on_ready(self, topic: str, mark: str) -> None:
        if self._is_cluster or all(mark != timer.mark for timer in self.timers):
            self._announce(topic)

    def _announce(self, topic: str) -> None:
        self.dispatcher.on_ready(topic)
        if self._pushers is not None:
            self._pushers.on_ready(topic)

    def _on_push(self, payload: str) -> None:
        if self._pushers is not None:
            topic, _, job_id = payload.partition(" ")
            if job_id:
                self._pushers.on_removed(topic, job_id)
            else:
                self._pushers.on_change(topic)

    def _on_other_partitions(self, topic: str) -> None:
        self.dispatcher.on_other_partitions(topic)

    def _on_late_run(self) -> None:
        """Polls may have run before the call whose jobs they were to find."""
        self.dispatcher.on_gap()
        if self._pushers is not None:
            self._pushers.on_gap()

    def _on_mismatch(self, error: StoreUnavailable) -> None:
        self.dispatcher.on_refusal(error)
        self.waits.wake_all()
        self.events.end_all()

    def _may_be_raised(self) -> bool:
        return self.processes.is_one_later()

    def _on_due(self, key: str) -> None:
        for timer in self.timers:
            timer.wake(key)

    def _on_gap(self) -> None:
        self._on_late_run()
        self.waits.on_gap()
        self.partitions.on_gap()
        for timer in self.timers:
            timer.wake_always()


def _report_unexpected_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _LOG.critical("%s ended unexpectedly", task.get_name(), exc_info=task.exception())
