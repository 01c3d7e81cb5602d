"""What may need a person, read in short calls of the store; the alerts that are made of it; topics at a glance.

A topic with several partitions has the sums over them. The bounds of alerts are the same for all topics. They are
chosen so that an alert is worth a look at 3 a.m., not so that there is one whenever a queue works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import orjson

from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable
from deferd.contract.operations.now import ALERT_CODES
from deferd.contract.operations.push import CircuitState
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.caches import SharedReads
from deferd.engine.history import BestRate, FinishRates
from deferd.engine.inspection.acknowledgements import ACKNOWLEDGED_MAX_S, Acknowledgement, Acknowledgements, AlertId
from deferd.engine.inspection.consumers import ConsumerRegistry, Reports
from deferd.engine.inspection.dead_errors import DeadErrors, DeadGroup, DeadJobs
from deferd.engine.inspection.failing import Failing, FailingTopics, Retrying
from deferd.engine.inspection.job_facts import Pause, pause_of
from deferd.engine.inspection.relays import SILENT_MS, Outbox, RelayRegistry
from deferd.engine.partitions import is_first, topic_of, topics_of
from deferd.engine.push_store import OPENS_AFTER, TargetState
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType
from deferd.engine.shelf import OPENING, Shelf, Status
from deferd.engine.topic_list import TopicList, raise_if_none_is_readable, select_topics
from deferd.store.connection import Store
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated, name_of, replicas_of
from deferd.store.store_facts import Given, read_given

RECENT_MS = 3_600_000
"""What "in the last hour" means for dead jobs and missed runs."""
SOON_MS = 3_600_000
MANY_DUE = 1000
"""Topics with fewer delayed jobs are not checked for jobs that are due soon."""
_RATES_READ = 200
_TOPICS_PER_CALL = 50
"""About a millisecond of the store's time."""
_MISSED_PER_SHARD = 200
_TARGETS_READ = 200
_SHELVED_READ = 100
"""Topics, those with the most jobs; each needs two calls of the shelf."""
_SUMMED = ("delayed", "ready", "reserved", "dead", "recently_dead", "overdue", "due_soon")
_DEAD_LOOKED_AT = 2000
"""Enough to name the most frequent error; `GET /dead` lists all errors."""


class TopicState(NamedTuple):
    """One topic that has jobs, or one of its partitions. Times are ms; -1: there is none. `lua/attention.lua` says what
    each is.

    `level` is the durability level that it asks for, `max_jobs` 0 for no limit, `circuit` 0 unless it is pushed,
    `is_limited` 1 while limits hold back all ready jobs.
    """

    topic: str
    delayed: int
    ready: int
    reserved: int
    dead: int
    recently_dead: int
    first_due_ms: int
    overdue: int
    next_due_ms: int
    next_due_jobs: int
    due_soon: int
    oldest_ready_due_ms: int
    live: int
    circuit: int
    is_limited: int
    pause: Pause | None
    level: int
    max_jobs: int

    def plus(self, other: TopicState) -> TopicState:
        """Both partitions together, with the settings of this one."""
        next_due_ms = _first(self.next_due_ms, other.next_due_ms)
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        return self._replace(
            **sums,
            first_due_ms=_first(self.first_due_ms, other.first_due_ms),
            next_due_ms=next_due_ms,
            next_due_jobs=sum(
                one.next_due_jobs for one in (self, other) if one.next_due_ms // 1000 == next_due_ms // 1000
            ),
            oldest_ready_due_ms=_first(self.oldest_ready_due_ms, other.oldest_ready_due_ms),
            live=self.live + other.live if min(self.live, other.live) >= 0 else max(self.live, other.live),
        )


class ShardState(NamedTuple):
    """One shard with its topics: when its timer had work first (-1: it has none), whether one runs, and missed runs.

    `topics` are those with a partition in it. `missed` are schedule, topic, ms at which a run was last missed, and how
    many runs were missed in all.
    """

    shard: int
    now_ms: int
    work_due_ms: int
    has_timer: bool
    missed: list[tuple[str, str, int, int]]
    topics: list[str]


@dataclass(slots=True)
class Attention:
    """What was read. `now_ms` is the store's clock, `names` are the topics that were read, `topics` those with jobs.

    `unconsumed` are topics with ready jobs of which no consumer was seen within a minute, and which are not pushed;
    `popped` are the jobs of each topic that are handed out per second, None when that is not known; `best` are the best
    rates of two days of topics in which many are due soon, as far as they are known. `given` is what the
    store gives to topics that ask for more than memory, as far as that is known. `targets` are the states of the push
    targets whose circuits are not closed, of the first 200. `failing` are topics in which attempts fail, and `retrying`
    the jobs that wait there for another one, of some. `unreadable` are shards that cannot be reached. `shelf` is None
    without a shelf. `outboxes` are those that relays have reported.
    """

    now_ms: int = 0
    names: list[str] = field(default_factory=list)
    is_complete: bool = True
    topics: dict[str, TopicState] = field(default_factory=dict)
    shards: list[ShardState] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    unconsumed: set[str] = field(default_factory=set)
    popped: dict[str, float] | None = None
    best: dict[str, BestRate] = field(default_factory=dict)
    last_seen: dict[str, int] = field(default_factory=dict)
    dead: DeadErrors | None = None
    given: dict[str, Given] = field(default_factory=dict)
    targets: dict[str, TargetState] = field(default_factory=dict)
    failing: dict[str, Failing] = field(default_factory=dict)
    retrying: dict[str, Retrying] = field(default_factory=dict)
    shelf: Status | None = None
    outboxes: list[Outbox] = field(default_factory=list)


class AttentionReader:
    """Reads all topics. `dead_retention_ms`: how long the service keeps dead jobs."""

    def __init__(
        self,
        store: Store,
        scripts: Scripts,
        keys: Keys,
        topics: TopicList,
        *,
        registry: ConsumerRegistry,
        dead_jobs: DeadJobs,
        finish_rates: FinishRates,
        failing: FailingTopics,
        shelf: Shelf,
        relays: RelayRegistry,
        dead_retention_ms: int,
    ) -> None:
        self._store = store
        self._scripts = scripts
        self._keys = keys
        self._topics = topics
        self._registry = registry
        self._dead_jobs = dead_jobs
        self._dead_retention_ms = dead_retention_ms
        self._finish_rates = finish_rates
        self._failing = failing
        self._shelf = shelf
        self._relays = relays

    async def read(self) -> Attention:
        """Read everything. Raises StoreUnavailable when no shard of the store can be reached."""
        selected = await select_topics(self._topics, self._keys, None)
        found = Attention(is_complete=selected.is_complete, unreadable=set(selected.unreadable))
        of_shard = {shard: selected.partitions.get(shard, []) for shard in range(self._keys.shards)}
        await asyncio.gather(
            *(
                self._read_shard(shard, names, found)
                for shard, names in of_shard.items()
                if shard not in found.unreadable
            )
        )
        raise_if_none_is_readable(self._keys, found.unreadable)
        await asyncio.gather(
            self._read_consumers(found),
            self._read_dead(found),
            self._read_durability(found),
            self._read_rates(found),
            self._read_targets(found),
            self._read_failing(found),
            self._read_shelf(found),
            self._read_outboxes(found),
        )
        return found

    async def _read_shard(self, shard: int, names: list[str], found: Attention) -> None:
        keys = [self._keys.of_shard(shard, name) for name in ("due", "lock", "schedules/missed")]
        try:
            now_ms, work_due_ms, has_timer, missed, is_complete = await self._scripts.run(
                "attention_shard", keys, (RECENT_MS, _MISSED_PER_SHARD)
            )
            found.is_complete &= is_complete == 1
            found.now_ms = max(found.now_ms, now_ms)
            rows = [missed[at : at + 4] for at in range(0, len(missed), 4)]
            found.shards.append(
                ShardState(
                    shard,
                    now_ms,
                    work_due_ms,
                    has_timer == 1,
                    [(name.decode(), topic.decode(), at_ms, count) for name, topic, at_ms, count in rows],
                    topics_of(names),
                )
            )
            at = 0
            while at < len(names):
                at += await self._read_topics(shard, names[at : at + _TOPICS_PER_CALL], found)
        except StoreUnavailable:
            found.unreadable.add(shard)

    async def _read_topics(self, shard: int, names: list[str], found: Attention) -> int:
        """Read some partitions; returns how many."""
        keys = [self._keys.of_shard(shard, name) for name in ("settings", "due")]
        args: tuple[str | int, ...] = (self._dead_retention_ms, RECENT_MS, SOON_MS, MANY_DUE, *names)
        now_ms, count, *rows = await self._scripts.run("attention", keys, args)
        found.now_ms = max(found.now_ms, now_ms)
        names = names[:count]
        found.names += filter(is_first, names)
        for name, row in zip(names, rows, strict=True):
            if row == [-1]:
                found.is_complete = False
            elif row:
                topic = topic_of(name)
                state, before = _topic_state(topic, row), found.topics.get(topic)
                if before is None:
                    found.topics[topic] = state
                else:
                    found.topics[topic] = state.plus(before) if is_first(name) else before.plus(state)
        return len(names)

    async def _read_consumers(self, found: Attention) -> None:
        """Who consumes; nothing is known while shard 0 cannot be reached, or when there are too many consumers."""
        if 0 in found.unreadable:
            return
        try:
            reports = await self._registry.read()
        except StoreUnavailable:
            found.is_complete = False
            return
        found.popped = dict(reports.popped)
        if reports.left_out:
            return
        named, patterns = _topics_of(reports, self._registry)
        for at, (name, state) in enumerate(found.topics.items()):
            needs_consumer = state.ready and state.pause is None and not state.circuit
            if needs_consumer and name not in named and not patterns.match(name):
                found.unconsumed.add(name)
            if at % _TOPICS_PER_CALL == 0:
                await asyncio.sleep(0)
        try:
            largest_first = sorted(found.unconsumed, key=lambda name: -found.topics[name].ready)
            found.last_seen = await self._registry.last_seen(largest_first)
        except StoreUnavailable:
            found.is_complete = False

    async def _read_shelf(self, found: Attention) -> None:
        """How it is doing, and what is due next in topics whose delayed jobs are all there."""
        found.shelf = await self._shelf.status()
        shelved = sorted((-one.delayed, name) for name, one in found.topics.items() if one.delayed and _is_shelved(one))
        await asyncio.gather(*(self._read_first_on_shelf(name, found) for _, name in shelved[:_SHELVED_READ]))

    async def _read_first_on_shelf(self, topic: str, found: Attention) -> None:
        calls, partitions = self._shelf.calls, self._keys.partitions.of(topic)
        if calls is None:
            return
        jobs = 0
        try:
            firsts = [await self._shelf.for_page(partial(calls.first_due, one)) for one in partitions]
            first_ms = min((one for one in firsts if one is not None), default=None)
            if first_ms is None:  # they have been loaded
                return
            second = [first_ms, first_ms - first_ms % 1000 + 1000]
            for partition in partitions:
                before, within = await self._shelf.for_page(partial(calls.counts_before, partition, second))
                jobs += within - before
        except StoreUnavailable:
            found.is_complete = False
            return
        due_ms = max(first_ms, found.now_ms)  # what is late on the shelf is not late because of the timer
        state = found.topics[topic]
        found.topics[topic] = state._replace(first_due_ms=due_ms, next_due_ms=due_ms, next_due_jobs=jobs)

    async def _read_outboxes(self, found: Attention) -> None:
        """Nothing is known of them while shard 0 cannot be reached."""
        if 0 in found.unreadable:
            return
        try:
            found.outboxes = list((await self._relays.read()).outboxes())
        except StoreUnavailable:
            found.is_complete = False

    async def _read_rates(self, found: Attention) -> None:
        many = sorted((-state.due_soon, name) for name, state in found.topics.items() if state.due_soon >= MANY_DUE)
        found.best = await self._finish_rates.best_of([name for _, name in many[:_RATES_READ]])

    async def _read_failing(self, found: Attention) -> None:
        of_topic: dict[str, list[Failing]] = {}

        async def read(shard: int) -> None:
            try:
                for partition, one in (await self._failing.read(shard, found.now_ms)).items():
                    of_topic.setdefault(topic_of(partition), []).append(one)
            except StoreUnavailable:
                found.is_complete = False

        await asyncio.gather(*(read(one.shard) for one in found.shards if one.shard not in found.unreadable))
        for topic, counts in of_topic.items():
            whole = Failing(
                max(one.window_ms for one in counts),
                sum(one.finished for one in counts),
                sum(one.released for one in counts),
            )
            if topic in found.topics and whole.released >= FAILING_LEAST and whole.released > whole.finished:
                found.failing[topic] = whole
        most_first = sorted(found.failing, key=lambda topic: -found.failing[topic].released)
        found.retrying = await self._failing.retrying(most_first)

    async def _read_targets(self, found: Attention) -> None:
        failing = sorted((-state.ready, name) for name, state in found.topics.items() if state.circuit > _CLOSED)
        await asyncio.gather(*(self._read_target(name, found) for _, name in failing[:_TARGETS_READ]))

    async def _read_target(self, topic: str, found: Attention) -> None:
        try:
            fields = await self._scripts.command("HGETALL", self._keys.named(topic, "push/state"))
            found.targets[topic] = TargetState.read_reply(fields, found.now_ms)
        except (StoreUnavailable, WrongType, ValueError):  # the latter: another program has damaged it
            found.is_complete = False

    async def _read_dead(self, found: Attention) -> None:
        """The errors of jobs that died lately. With many dead ones, only topics where some did are read."""
        dead = {name: state.dead for name, state in found.topics.items() if state.dead}
        if sum(dead.values()) > _DEAD_LOOKED_AT:
            dead = {name: count for name, count in dead.items() if found.topics[name].recently_dead}
        if not dead:
            return
        try:
            found.dead = await self._dead_jobs.by_error(
                list(dead), lambda _topic: True, since_ms=found.now_ms - RECENT_MS, look_at=_DEAD_LOOKED_AT
            )
        except StoreUnavailable:
            found.is_complete = False

    async def _read_durability(self, found: Attention) -> None:
        """The durability that the store gives, for topics that ask for more than memory."""
        asking: dict[int, list[str]] = {}
        for topic, state in found.topics.items():
            if state.level > MEMORY:
                for partition in self._keys.partitions.of(topic) if self._store.cluster else ():
                    asking.setdefault(self._keys.shard_of(partition), []).append(topic)
                if not self._store.cluster:
                    asking.setdefault(0, []).append(topic)
        await asyncio.gather(*(self._read_given(shard, topics, found) for shard, topics in asking.items()))

    async def _read_given(self, shard: int, topics: list[str], found: Attention) -> None:
        try:
            given = await read_given(self._store.calls_of(self._keys.of_shard(shard, "topics")))
        except Exception:  # noqa: BLE001 (any error of the store: then it is not known)
            return
        for topic in topics:
            before = found.given.get(topic)
            found.given[topic] = given if before is None else _weaker(before, given)


def _is_shelved(state: TopicState) -> bool:
    """Whether all delayed jobs of the topic are on the shelf."""
    return state.first_due_ms < 0


def _topics_of(reports: Reports, registry: ConsumerRegistry) -> tuple[set[str], TopicPatterns]:
    """Topics and patterns of all consumers, including consumers of this process that are not published yet."""
    consumers = (*reports.consumers, *registry.sample().consumers)
    topics = {topic for consumer in consumers for topic in consumer.topics.split(",")}
    return topics, TopicPatterns(filter(is_pattern, topics))


def _topic_state(name: str, row: Sequence[Any]) -> TopicState:
    raw, *facts = row
    settings = _settings(raw)
    asked = (pause_of(settings), _whole(settings.get("du")), _whole(settings.get("j")))
    return TopicState._make((name, *facts, *asked))


def _first(at_ms: int, other_ms: int) -> int:
    """The earlier of two instants, of which either may be none: -1."""
    return min(at_ms, other_ms) if min(at_ms, other_ms) >= 0 else max(at_ms, other_ms)


def _weaker(given: Given, other: Given) -> Given:
    """The durability that both of two servers give which have partitions of one topic."""
    lowest = min(given, other, key=lambda one: one.level)
    replicas = [one.replicas for one in (given, other) if one.replicas is not None]
    return lowest._replace(replicas=min(replicas, default=None))


def _settings(raw: bytes) -> dict[str, Any]:
    try:
        settings = orjson.loads(raw) if raw else {}
    except ValueError:  # something other than deferd has written it; `deferd audit` finds it
        return {}
    return settings if isinstance(settings, dict) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


Severity = Literal["critical", "warning"]

NO_CONSUMER_CRITICAL_MS = 60_000
"""A shorter wait may only mean that the consumer is not connected all the time."""
BEHIND_MS = 60_000
"""A ready job that has waited for a minute: consumers that keep up take jobs within seconds."""
BEHIND_CRITICAL_MS = 600_000
BEHIND_WAIT_S = 300.0
"""At the present rate the last ready job waits this long: more jobs become ready than are taken, even though the oldest
is still young."""
LATE_MS = 5_000
"""A timer that works promotes within milliseconds, and takes over from a dead one within 3 seconds."""
LATE_CRITICAL_MS = 60_000
TIMER_OVERDUE_MS = 5_000
"""Work is overdue and no timer holds the lock, which lasts 2.5 seconds."""
TIMER_HELD_OVERDUE_MS = 60_000
"""A timer holds the lock but does not process the due work: it fails, or there is too much."""
FULL_SHARE = 0.9
"""At this part of `max_jobs` there is time left to act before puts fail."""
OVERLOAD_SHARE = 1.2
"""Consumers can usually handle a fifth more than they did."""
OVERLOAD_JOBS = MANY_DUE
"""Fewer due jobs in an hour raise no alert."""
FAILING_LEAST = 20
"""Fewer failed attempts raise no alert; nor do as many as jobs were finished: then retries help."""
FAILING_CRITICAL = 100
"""So many failed, and nothing at all was finished."""
SHELF_BEHIND_S = 1.0
"""The shelf looks for jobs to load at least once a second."""
SHELF_CRITICAL_SHARE = 0.1
"""Of the time for loading: if less than this is left, jobs may soon be late."""
OUTBOX_BEHIND_S = 60.0
"""A relay that keeps up sends a row within milliseconds."""
OUTBOX_CRITICAL_S = 600.0
_OF_OUTBOXES = frozenset({"outbox_stopped", "outbox_behind", "outbox_refused"})
_KEPT_S, _KEPT_LEAST_S = 5.0, 0.5
_TOPICS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that needs a person. `jobs` is the number of jobs concerned, for sorting.

    `facts` are plain values; a name that ends with `_at_ms` is an instant, with `_ms` a duration. `topic` None: it
    concerns the store.
    """

    severity: Severity
    code: str
    topic: str | None = None
    jobs: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Now:
    """The alerts, most urgent first, and what comes next: when jobs are due, and how many in that second.

    Those that somebody has acknowledged are apart, in the same order.
    """

    now_ms: int
    alerts: list[Alert]
    next_due_ms: int | None
    next_due_jobs: int
    looked_at: int
    is_complete: bool
    acknowledged: list[tuple[Alert, Acknowledgement]] = field(default_factory=list)


async def _alerts_of(found: Attention) -> list[Alert]:
    """The alerts of the store and of all topics, the most urgent first. Lets others run in between."""
    alerts = [*_of_shards(found), *_of_shelf(found), *_of_outboxes(found), *_dying(found)]
    timers_down = {alert.facts["shard"] for alert in alerts if alert.code == "timer"}
    stalled = {name for shard in found.shards if shard.shard in timers_down for name in shard.topics}
    for at, state in enumerate(found.topics.values()):
        alerts += _of_topic(found, state, has_timer=state.topic not in stalled)
        if at % _TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)
    alerts.sort(key=lambda one: (one.severity != "critical", ALERT_CODES.index(one.code), -one.jobs, one.topic or ""))
    return alerts


def _of_shards(found: Attention) -> Iterator[Alert]:
    if found.unreadable:
        yield Alert("critical", "shard_unavailable", facts={"shards": sorted(found.unreadable)})
    for shard in found.shards:
        overdue_ms = shard.now_ms - shard.work_due_ms if shard.work_due_ms >= 0 else 0
        if overdue_ms > (TIMER_HELD_OVERDUE_MS if shard.has_timer else TIMER_OVERDUE_MS):
            facts: dict[str, Any] = {"shard": shard.shard, "running": shard.has_timer, "overdue_ms": overdue_ms}
            yield Alert("critical", "timer", facts=facts)
        for schedule, topic, at_ms, missed in shard.missed:
            facts = {"schedule": schedule, "missed": missed, "last_missed_at_ms": at_ms}
            yield Alert("warning", "schedules_missed", topic, missed, facts)


def _of_shelf(found: Attention) -> Iterator[Alert]:
    """Jobs that are due within half of the time for loading are on the shelf, or cannot be read, or it is not known."""
    shelf = found.shelf
    if shelf is None:
        return
    if shelf.fault is not None:
        severity: Severity = "warning" if shelf.fault == OPENING else "critical"
        yield Alert(severity, "shelf_behind", facts={"why": shelf.fault})
    elif shelf.unreadable:  # they will not come back, however long one waits
        why = f"{shelf.unreadable:,} jobs on the shelf or more cannot be read, as a file is damaged; see `deferd audit`"
        yield Alert("critical", "shelf_behind", facts={"why": why})
    elif shelf.jobs_behind and shelf.behind_s >= SHELF_BEHIND_S:
        severity = "critical" if shelf.first_due_in_s <= SHELF_CRITICAL_SHARE * shelf.ahead_s else "warning"
        facts: dict[str, Any] = {
            "jobs": shelf.jobs_behind,
            "first_due_at_ms": found.now_ms + round(shelf.first_due_in_s * 1000),
        }
        facts |= {"within_ms": round(shelf.ahead_s * 500), "rate": shelf.moved_in_per_s}
        yield Alert(severity, "shelf_behind", jobs=shelf.jobs_behind, facts=facts)


def _of_outboxes(found: Attention) -> Iterator[Alert]:
    for database, worker, last, stopped_ms in found.outboxes:
        report = last.report
        facts: dict[str, Any] = {"database": database, "rows": report.rows}
        if worker is None:
            if found.now_ms - stopped_ms > SILENT_MS:  # another relay takes over in less
                yield Alert("critical", "outbox_stopped", jobs=report.rows, facts={**facts, "since_at_ms": stopped_ms})
            continue
        if report.lag_s > OUTBOX_BEHIND_S:
            severity: Severity = "critical" if report.lag_s > OUTBOX_CRITICAL_S else "warning"
            facts["lag_ms"] = round(report.lag_s * 1000)
            yield Alert(severity, "outbox_behind", jobs=report.rows, facts=facts)
        if report.refused:
            facts = {"database": database, "refused": report.refused}
            yield Alert("warning", "outbox_refused", jobs=report.refused, facts=facts)


def _dying(found: Attention) -> Iterator[Alert]:
    if found.dead is None:
        return
    of_topic: dict[str, list[DeadGroup]] = {}
    for group in found.dead.groups:  # the largest first
        of_topic.setdefault(group.topic, []).append(group)
    for topic, groups in of_topic.items():
        if topic not in found.topics:
            continue
        top, read = groups[0], sum(group.count for group in groups)
        # Not all dead jobs were read: then their number is taken from the ends of retentions, which a `dead_retain`
        # shifts.
        jobs = read if found.dead.is_complete else max(read, found.topics[topic].recently_dead)
        facts = {
            "dead": jobs,
            "top_error": top.error,
            "top_reason": top.reason,
            "top_dead": round(jobs * top.count / read),
            "exact": found.dead.is_complete,
        }
        yield Alert("warning", "dying", topic, jobs, facts)


def _of_topic(found: Attention, state: TopicState, *, has_timer: bool) -> Iterator[Alert]:
    yield from _durability(found, state)
    if state.max_jobs and state.live >= FULL_SHARE * state.max_jobs:
        severity: Severity = "critical" if state.live >= state.max_jobs else "warning"
        yield Alert(severity, "topic_full", state.topic, state.live, {"jobs": state.live, "max_jobs": state.max_jobs})
    if has_timer and state.first_due_ms >= 0 and (late_ms := found.now_ms - state.first_due_ms) > LATE_MS:
        severity = "critical" if late_ms > LATE_CRITICAL_MS else "warning"
        yield Alert(severity, "late", state.topic, state.overdue, {"jobs": state.overdue, "overdue_ms": late_ms})
    if state.pause is not None:
        if state.ready or state.overdue:
            facts = {"ready": state.ready, "due": state.overdue or None, "by": state.pause.by}
            facts |= {"since_at_ms": state.pause.since_ms, "why": state.pause.reason}
            yield Alert("warning", "paused", state.topic, state.ready + state.overdue, facts)
        return
    target = _failing_target(found, state)
    failing = found.failing.get(state.topic)
    if failing is not None and target is None:
        yield _failing_work(found, state, failing)
    if target is not None:
        yield _failing_push(found, state, target)
    elif state.ready:
        yield from _waiting(found, state)
    yield from _overload(found, state)


def _failing_work(found: Attention, state: TopicState, failing: Failing) -> Alert:
    retrying = found.retrying.get(state.topic)
    facts: dict[str, Any] = {
        "released": failing.released,
        "finished": failing.finished,
        "window_ms": failing.window_ms,
    }
    if retrying is not None:
        facts |= {"retrying": retrying.jobs, "exact": retrying.is_exact}
        facts |= {"top_error": retrying.top_error, "top_retrying": retrying.top_jobs or None}
    is_critical = not failing.finished and failing.released >= FAILING_CRITICAL
    return Alert("critical" if is_critical else "warning", "failing", state.topic, failing.released, facts)


def _failing_target(found: Attention, state: TopicState) -> TargetState | None:
    """The target of a topic with work whose circuit is not closed.

    A target that only asks for a pause, by `Retry-After`, does not fail, unless jobs wait too long for it.
    """
    target = found.targets.get(state.topic)
    if target is None or not (state.ready or state.reserved or state.delayed):
        return None
    fails = target.failures >= OPENS_AFTER or _oldest_age_ms(found, state) > BEHIND_MS
    return target if fails else None


def _failing_push(found: Attention, state: TopicState, target: TargetState) -> Alert:
    """In place of what is said of consumers: nobody but the target takes the jobs."""
    age_ms = _oldest_age_ms(found, state)
    facts: dict[str, Any] = {
        "ready": state.ready,
        "oldest_age_ms": age_ms,
        "circuit": target.circuit,
        "failures": target.failures,
        "last_error": target.last_error,
        "last_error_at_ms": target.last_error_at_ms,
        "next_try_at_ms": target.open_until_ms,
    }
    severity: Severity = "critical" if state.ready and age_ms > NO_CONSUMER_CRITICAL_MS else "warning"
    return Alert(severity, "push_failing", state.topic, state.ready, facts)


def _oldest_age_ms(found: Attention, state: TopicState) -> int:
    return max(found.now_ms - state.oldest_ready_due_ms, 0) if state.oldest_ready_due_ms >= 0 else 0


def _waiting(found: Attention, state: TopicState) -> Iterator[Alert]:
    age_ms = _oldest_age_ms(found, state)
    facts: dict[str, Any] = {"ready": state.ready, "oldest_age_ms": age_ms}
    if state.topic in found.unconsumed and not state.reserved:
        severity: Severity = "critical" if age_ms > NO_CONSUMER_CRITICAL_MS else "warning"
        facts["last_consumer_at_ms"] = found.last_seen.get(state.topic)
        yield Alert(severity, "no_consumer", state.topic, state.ready, facts)
        return
    rate = None if found.popped is None else found.popped.get(state.topic, 0.0)
    wait_s = state.ready / rate if rate else None
    if age_ms > BEHIND_MS or (wait_s is not None and wait_s > BEHIND_WAIT_S):
        facts["rate"] = None if rate is None else round(rate, 3)
        facts["estimated_wait_ms"] = None if wait_s is None else round(wait_s * 1000)
        facts["reserved"] = state.reserved
        facts["limited"] = True if state.is_limited else None
        # More consumers would not help, and somebody has set the limits.
        severity = "critical" if age_ms > BEHIND_CRITICAL_MS and not state.is_limited else "warning"
        yield Alert(severity, "behind", state.topic, state.ready, facts)


def _durability(found: Attention, state: TopicState) -> Iterator[Alert]:
    """Puts without a durability level are refused while the store cannot give the level of their topic."""
    asked, given = state.level, found.given.get(state.topic)
    if asked == MEMORY or given is None:
        return
    facts: dict[str, Any] = {"durability": name_of(asked)}
    if is_replicated(asked):
        if given.replicas is None or given.replicas >= replicas_of(asked):
            return
        why = f"{given.replicas} of {replicas_of(asked)} replicas are connected"
    elif asked == FSYNC and given.level < FSYNC:
        why = given.why_not
    else:
        return
    yield Alert("critical", "durability", state.topic, facts={**facts, "available": name_of(given.level), "why": why})


def _overload(found: Attention, state: TopicState) -> Iterator[Alert]:
    """More is due in the next hour than consumers handled at their best of two days, or do now where that is not known.

    The last hour tells nothing after a quiet night, and consumers that handled nothing tell nothing about their rate.
    """
    if state.due_soon < OVERLOAD_JOBS:
        return
    best = found.best.get(state.topic) or BestRate((found.popped or {}).get(state.topic, 0.0), None)
    handled = round(best.per_s * 3600)
    if handled > 0 and state.due_soon > OVERLOAD_SHARE * handled:
        facts = {"due": state.due_soon, "handled": handled, "handled_at_ms": best.at_ms}
        yield Alert("warning", "overload", state.topic, state.due_soon, facts)


def _id_of(one: Alert) -> AlertId:
    return one.code, one.topic or ""


class Alerts:
    """What needs a person now. Reads are shared and cached for up to 5 s; larger reads are cached longer."""

    def __init__(self, reader: AttentionReader, acknowledgements: Acknowledgements) -> None:
        self._reader = reader
        self._acknowledgements = acknowledgements
        self._reads: SharedReads[tuple[Attention, list[Alert]]] = SharedReads(_KEPT_S, 1, least_s=_KEPT_LEAST_S)

    async def read(self) -> Attention:
        """The data from which alerts are made. Raises StoreUnavailable when no shard of the store can be reached."""
        found, _ = await self._reads.get(None, self._read)
        return found

    async def now(self, is_visible: Callable[[str], bool], *, with_outboxes: bool = True) -> Now:
        """The alerts of visible topics and of the store, and when the next job of a visible topic is due.

        Those of outboxes name a database: with `with_outboxes` false they are left out.

        Raises StoreUnavailable when no shard of the store can be reached.
        """
        found, alerts = await self._reads.get(None, self._read)
        acknowledgements = await self._acknowledgements.at(found.now_ms)
        needing, acknowledged = list[Alert](), list[tuple[Alert, Acknowledgement]]()
        for one in alerts:
            if one.code in _OF_OUTBOXES and not with_outboxes:
                continue
            if one.topic is None or is_visible(one.topic):
                noted = acknowledgements.get(_id_of(one))
                has_worsened = noted is not None and one.severity == "critical" and noted.severity != "critical"
                if noted is None or has_worsened:
                    needing.append(one)
                else:
                    acknowledged.append((one, noted))
        next_due_ms, jobs = None, 0
        visible = [state for state in found.topics.values() if state.next_due_ms >= 0 and is_visible(state.topic)]
        if visible:
            next_due_ms = min(state.next_due_ms for state in visible)
            second = next_due_ms // 1000
            jobs = sum(state.next_due_jobs for state in visible if state.next_due_ms // 1000 == second)
        return Now(
            found.now_ms,
            needing,
            next_due_ms,
            jobs,
            sum(map(is_visible, found.names)),
            found.is_complete and not found.unreadable,
            acknowledged,
        )

    async def acknowledge(self, is_meant: Callable[[Alert], bool], reason: str, by: str | None, until_ms: int) -> int:
        """Acknowledge the alerts that there are now until an end, also those that are acknowledged already.

        An end that is past ends their acknowledgements. Returns how many alerts.

        Raises:
            InvalidInput: the end is too far, or these are too many.
            StoreUnavailable.
        """
        now = await self.now(lambda _topic: True)
        if until_ms > now.now_ms + ACKNOWLEDGED_MAX_S * 1000:
            message = f"must be at most {ACKNOWLEDGED_MAX_S // 86_400} days ahead"
            raise InvalidInput([FieldError(("body", "until"), message)])
        meant = [one for one in (*now.alerts, *(one for one, _ in now.acknowledged)) if is_meant(one)]
        if until_ms <= now.now_ms:
            meant = [one for one, _ in now.acknowledged if is_meant(one)]
            await self._acknowledgements.remove([_id_of(one) for one in meant])
        elif meant:
            new = {_id_of(one): Acknowledgement(one.severity, reason, by, until_ms) for one in reversed(meant)}
            await self._acknowledgements.add(new, now.now_ms)
        return len(meant)

    async def _read(self) -> tuple[Attention, list[Alert]]:
        found = await self._reader.read()
        return found, await _alerts_of(found)


SORTS: Final = ("topic", "delayed", "ready", "reserved", "dead", "oldest", "due", "rate")
STATES: Final = ("delayed", "ready", "reserved", "dead")
_CLOSED: Final = 1
_CIRCUITS: Final[tuple[CircuitState | None, ...]] = (None, "closed", "open", "half_open")
"""By `TopicState.circuit`."""
_NEVER: Final = 1 << 62


class OverviewRow(NamedTuple):
    """One topic. `oldest_ready_ms` is when its first ready job was due, `next_due_ms` when the first delayed one is.

    `rate`: jobs handed out per second; None when that is not known. `circuit` is the circuit of a pushed topic with
    jobs.
    """

    topic: str
    counts: tuple[int, int, int, int]
    oldest_ready_ms: int | None
    next_due_ms: int | None
    rate: float | None
    pause: Pause | None
    circuit: CircuitState | None = None


class Overview(NamedTuple):
    """Some topics of `matching`, and the sums of jobs by state over all that match."""

    now_ms: int
    rows: list[OverviewRow]
    matching: int
    totals: tuple[int, ...]
    is_complete: bool


def overview_of(found: Attention, is_wanted: Callable[[str], bool], *, sort: str, offset: int, limit: int) -> Overview:
    """The topics that are wanted, most (or soonest, or oldest) first, and by name where they are equal."""
    names = sorted(filter(is_wanted, found.names))
    if sort != "topic":
        names.sort(key=lambda name: _place(found, name, sort))
    states = [state for name in names if (state := found.topics.get(name)) is not None]
    totals = tuple(sum(getattr(state, name) for state in states) for name in STATES)
    rows = [_row(found, name) for name in names[offset : offset + limit]]
    return Overview(found.now_ms, rows, len(names), totals, found.is_complete and not found.unreadable)


def _row(found: Attention, name: str) -> OverviewRow:
    state = found.topics.get(name)
    rate = None if found.popped is None else found.popped.get(name, 0.0)
    if state is None:
        return OverviewRow(name, (0, 0, 0, 0), None, None, rate, None)
    return OverviewRow(
        name,
        (state.delayed, state.ready, state.reserved, state.dead),
        _known(state.oldest_ready_due_ms),
        _known(state.first_due_ms),
        rate,
        state.pause,
        _CIRCUITS[state.circuit],
    )


def _known(at_ms: int) -> int | None:
    return None if at_ms < 0 else at_ms


def _place(found: Attention, name: str, sort: str) -> float:
    state = found.topics.get(name)
    if sort == "rate":
        return -(found.popped or {}).get(name, 0.0)
    if sort in {"oldest", "due"}:
        at_ms = -1 if state is None else state.oldest_ready_due_ms if sort == "oldest" else state.first_due_ms
        return _NEVER if at_ms < 0 else at_ms
    count: int = 0 if state is None else getattr(state, sort)
    return -count
