"""Reads, in short calls of the store, what may need a person; `alerts.py` decides what does.

A topic with several partitions has the sums over them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from deferd.contract.errors import StoreUnavailable
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.history.finish_rates import FinishRates
from deferd.engine.inspection.consumer_registry import ConsumerRegistry, Reports
from deferd.engine.inspection.dead_errors import DeadErrors, DeadJobs
from deferd.engine.inspection.selected_topics import select_topics
from deferd.engine.inspection.standing import Pause, pause_of
from deferd.engine.partitions import is_first, topic_of, topics_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import TopicList, raise_if_none_is_readable
from deferd.store.connection import Store
from deferd.store.durability_levels import MEMORY
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
_SUMMED = ("delayed", "ready", "reserved", "dead", "recently_dead", "overdue", "due_soon")
_DEAD_LOOKED_AT = 2000
"""Enough to name the most frequent error; `GET /dead` lists all errors."""


class TopicState(NamedTuple):
    """One topic that has jobs, or one of its partitions. Times are ms; -1: there is none. `lua/attention.lua` says what
    each is.

    `level` is the durability level that it asks for, `max_jobs` 0 for no limit, `circuit` 0
    unless it is pushed.
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
    `popped` are the jobs of each
    topic that are handed out per second, None when that is not known; `finished` are jobs per second in the last hour,
    of topics in which many are due soon, as far as that is known.
    `given` is what the store gives to topics that ask for more than memory, as far as that is known.
    `unreadable` are shards that cannot be reached.
    """

    now_ms: int = 0
    names: list[str] = field(default_factory=list)
    is_complete: bool = True
    topics: dict[str, TopicState] = field(default_factory=dict)
    shards: list[ShardState] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    unconsumed: set[str] = field(default_factory=set)
    popped: dict[str, float] | None = None
    finished: dict[str, float] = field(default_factory=dict)
    last_seen: dict[str, int] = field(default_factory=dict)
    dead: DeadErrors | None = None
    given: dict[str, Given] = field(default_factory=dict)


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

    async def _read_rates(self, found: Attention) -> None:
        many = sorted((-state.due_soon, name) for name, state in found.topics.items() if state.due_soon >= MANY_DUE)
        found.finished = await self._finish_rates.of_topics([name for _, name in many[:_RATES_READ]])

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
