"""Copies all data of deferd from one store to another: every job in its state, with leases, receipts and settings.
Events and the history of topics, which is kept for two days, are left behind: both begin again. So are the sessions of
the console, what can be undone, and how many deliveries the rates of limits have counted, which begin at 0.

No service may use either store during the copy. Values are read and written by the commands of their types, in bounded
steps, so the two servers may have different versions. Jobs on the shelf of the source become delayed jobs in the memory
of the target. During the copy the target's `deferd:shards` is negative, which every service refuses. An interrupted
copy leaves it so, and the next one starts over.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import orjson
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisError

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import topic_of
from deferd.engine.record import read_record
from deferd.engine.redis_keys import (
    BATCH_PREFIX,
    CONSOLE_PREFIX,
    EVENTS_PREFIX,
    HISTORY_PREFIX,
    ITEMS_PREFIX,
    PUSH_PREFIX,
    RATE_PREFIX,
    READY_CHANNEL,
    SCHEDULE_PREFIX,
    SCHEDULES_MEMBER,
    TAG_PREFIX,
    UNDO_PREFIX,
    Keys,
)
from deferd.engine.schedule_store import read_definition
from deferd.engine.scripts import Scripts, observed
from deferd.engine.shelf import Job, Shelf
from deferd.engine.topic_list import TopicList, Totals
from deferd.store.connection import Store
from deferd.store.preflight import StoreRefused, check
from deferd.store.shard_guard import SHARDS_KEY, Layout, layout_in

_KEYS_AT_ONCE = 16
_STEP_FIRST, _STEP_MOST = 64, 1000
_WRITTEN_MOST = 2 * _STEP_MOST
"""Names and values in one call: `write.lua` takes some thousand arguments."""
_STEP_BYTES_LOW, _STEP_BYTES_HIGH = 1024 * 1024, 4 * 1024 * 1024
_SUBSCRIBE_S = 5.0
_KEYED_BY_TOPIC = frozenset({"settings", "topics", "due", "idle", "push", "partitioned"})
"""Keys of a shard whose elements are topics."""
_OF_SCHEDULES = frozenset({"schedules", "schedule_due", "earlier_runs"})
"""Keys of a shard whose elements are schedules, or of schedules: they begin with the name."""
_LEFT_BEHIND = (CONSOLE_PREFIX, EVENTS_PREFIX, HISTORY_PREFIX, PUSH_PREFIX, RATE_PREFIX, UNDO_PREFIX)
_LOCK = "lock"
_SHELF = "shelf"


class ShelvedJobs(Protocol):
    """The jobs on the shelf of a source that is not served; see `deferd.shelf.unserved`. Calls raise StoreRefused."""

    def counts(self) -> Mapping[str, int]:
        """How many jobs each partition has; partitions without jobs are left out."""
        ...

    def batches(self, topic: str) -> Iterator[list[Job]]:
        """The jobs of a partition, in batches that one script can store."""
        ...


@dataclass
class CopyReport:
    """The source before and after, and the target now. `left_out` are keys that are not deferd's."""

    before: Inventory
    after: Inventory
    target: Inventory
    shards: int
    left_out: list[str] = field(default_factory=list)

    @property
    def source_changed(self) -> bool:
        """Whether the source changed during the copy."""
        return self.before != self.after

    @property
    def adds_up(self) -> bool:
        """Whether the target holds exactly what the source held before and after."""
        return not self.source_changed and self.target == self.before


async def copy_store(
    source: Store,
    target: Store,
    *,
    shards: int | None = None,
    force: bool = False,
    shelf: ShelvedJobs | None = None,
    on_progress: Callable[[int, int], None] = lambda _copied, _total: None,
) -> CopyReport:
    """Copy everything and compare the counts. If they differ, services keep refusing the target.

    `shards` is the target's number of shards, by default the source's. `force` skips the check for running services.
    `shelf` has the jobs on the source's shelf, whose moves are settled.
    `on_progress(copied, total)` is called with numbers of elements.

    Raises:
        StoreRefused: one of the stores cannot be used or fails, a service uses it, the source has no data of deferd or
            jobs on a shelf that is not given, or the target has data.
    """
    async with _alone(source, force=force), _alone(target, force=force):
        with _named(source):
            layout = await layout_of(source)
        if layout is None:
            raise StoreRefused(f"the store at {source.description} has no data of deferd: nothing was copied")
        from_shards = layout.shards
        await check(source, shards=from_shards)
        shelved = {} if shelf is None else shelf.counts()
        with _named(source):
            check_shelved(shelved, await count_shelved(source, from_shards), is_known=shelf is not None)
        before = await _inventory(source, from_shards)
        with _named(target):
            to_shards = await _prepare(target, shards, layout)
        copy = _Copy(
            source, target, from_shards, to_shards, sum(before.elements.values()) + sum(shelved.values()), on_progress
        )
        await copy.run(from_shards)
        after, copied = await _inventory(source, from_shards), await _inventory(target, to_shards)
        if shelf is not None:
            await copy.add_shelved(shelf, shelved)
            with _named(target):
                copied = replace(copied, jobs=await count_jobs(target, to_shards))
        report = CopyReport(before, after, copied, to_shards, copy.left_out)
        if report.adds_up:
            with _named(target):
                await Scripts(target).write("SET", SHARDS_KEY, str(layout._replace(shards=to_shards)))
        return report


async def layout_of(store: Store) -> Layout | None:
    """How the store is laid out; None when no service has ever used it.

    Raises:
        StoreRefused: a copy into it is unfinished, or it has a format that this release does not know.
        StoreUnavailable.
    """
    stored = await _stored_layout(store)
    if stored is not None and stored.shards < 0:
        raise StoreRefused(f"the store at {store.description} holds an unfinished copy: run the `deferd copy` again")
    return stored


async def clock_ms(store: Store) -> int:
    """The time of the store's clock. Raises StoreUnavailable."""
    targets = {"target_nodes": RedisCluster.RANDOM} if isinstance(store.client, RedisCluster) else {}
    with observed("TIME"):
        seconds, microseconds = await store.client.execute_command("TIME", **targets)
    return int(seconds) * 1000 + int(microseconds) // 1000


class _Copy:
    def __init__(  # noqa: PLR0917 (what a copy is from, and to)
        self,
        source: Store,
        target: Store,
        from_shards: int,
        to_shards: int,
        total: int,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._source, self._target = source, target
        self._keeps_together = from_shards % to_shards == 0
        """Whether topics that are in one shard of the source are in one of the target."""
        self._source_scripts, self._target_scripts = Scripts(source), Scripts(target)
        self._keys = Keys(to_shards)
        self._copied, self._total = 0, total
        self._on_progress = on_progress
        self.left_out: list[str] = []

    async def run(self, from_shards: int) -> None:
        batch: list[_KeyFound] = []
        with _named(self._source):
            async for found in _keys_of(self._source, from_shards):
                if found.part == "batches" and not found.topic and not self._keeps_together:
                    await self._refuse_open_batches(found)
                is_of_shelf = found.topic and found.part == _SHELF  # the target has none
                if not is_of_shelf and not found.part.startswith(_LEFT_BEHIND):
                    batch.append(found)
                if len(batch) == _KEYS_AT_ONCE:
                    await asyncio.gather(*map(self._copy_key, batch))
                    batch = []
        await asyncio.gather(*map(self._copy_key, batch))

    async def _copy_key(self, found: _KeyFound) -> None:
        match found:
            case _KeyFound(topic="", part="lock" | "schedules/missed" | "schedules/zones"):
                return  # what has happened in the source
            case _KeyFound(topic="", part="clock"):
                raise StoreRefused(
                    f"the store at {self._source.description} is a test store whose clock was moved: its jobs would "
                    "be due at other times"
                )
            case _KeyFound(topic="", part="tally", kind="hash"):
                await self._add_tally(found)
            case _KeyFound(topic="", kind="zset") if found.part in _OF_SCHEDULES:
                await self._copy_list_of_schedules(found)
            case _KeyFound(topic="", kind="hash") if found.part.startswith(SCHEDULE_PREFIX):
                await self._copy_schedule(found)
            case _KeyFound(kind="hash" | "zset"):
                async for elements in self._elements(found):
                    await self._write_elements(found, elements)
                if found.kept_ms > 0:
                    await self._write("PEXPIRE", self._target_key(found), found.kept_ms)
            case _KeyFound(kind="string", part="ends") if found.topic:
                await self._write("SET", self._target_key(found), 1)
            case _KeyFound(kind="list") if found.part.startswith(ITEMS_PREFIX):
                async for elements in self._elements(found):
                    await self._write("RPUSH", self._target_key(found), *elements)
                    self._note_copied(len(elements))
            case _:
                self.left_out.append(found.key)

    async def _refuse_open_batches(self, found: _KeyFound) -> None:
        """Raise StoreRefused if a batch of a shard is not completed: its jobs may belong into several of the target."""
        async for elements in self._elements(found):
            for name in elements[::2]:
                key = f"{found.key.removesuffix(found.part)}{BATCH_PREFIX}{name.decode()}"
                with _named(self._source):
                    fields = await self._source_scripts.command("HMGET", key, "created", "completed")
                if fields[0] is not None and fields[1] is None:
                    raise StoreRefused(
                        f"batch {name.decode()!r} is not completed, and its jobs may belong into several shards of a "
                        "store with another number of them: wait until its jobs have ended, or delete it "
                        "(`deferd batch NAME --delete`), or copy into the same number of shards"
                    )

    async def add_shelved(self, shelf: ShelvedJobs, counts: Mapping[str, int]) -> None:
        """Store the jobs that are on the shelf of the source, so many of each partition."""
        for topic, count in counts.items():
            stored = 0
            for number, jobs in enumerate(shelf.batches(topic), 1):
                args = (topic, number, "", *(value for job in jobs for value in job))
                self._check_ends(topic, [job.record for job in jobs])
                with _named(self._target):
                    await self._target_scripts.run("shelve_in", self._keys.of_topic(topic), args)
                self._note_copied(len(jobs))
                stored += len(jobs)
            if stored != count:
                raise StoreRefused(
                    f"{stored:,} of {count:,} jobs of topic {topic!r} on the shelf can be read: a file is damaged, run "
                    "`deferd audit` on the service"
                )
            await self._write("UNLINK", self._keys.named(topic, _SHELF))

    def _note_copied(self, elements: int) -> None:
        self._copied += elements
        self._on_progress(self._copied, self._total)

    async def _topic_of_schedule(self, key: str) -> str:
        """The topic of a schedule of the source, whose shard it belongs to."""
        with _named(self._source):
            topic: bytes | None = await self._source_scripts.command("HGET", key, "topic")
        return (topic or b"").decode(errors="backslashreplace")

    async def _copy_schedule(self, found: _KeyFound) -> None:
        topic = await self._topic_of_schedule(found.key)
        async for elements in self._elements(found):
            for name, value in zip(elements[::2], elements[1::2], strict=True):
                if name == b"definition":
                    self._check_end(topic, read_definition(value).job.end_topic)
            await self._write("HSET", self._key_for_topic(found, topic), *elements)
            self._note_copied(len(elements) // 2)

    async def _copy_list_of_schedules(self, found: _KeyFound) -> None:
        """Copy a list of schedules, and note for the timer of each shard when it must advance the first of its own."""
        prefix = found.key.removesuffix(found.part) + SCHEDULE_PREFIX
        async for elements in self._elements(found):
            for member, score in zip(elements[::2], elements[1::2], strict=True):
                name = member.partition(b" ")[0].decode(errors="backslashreplace")
                topic = await self._topic_of_schedule(prefix + name)
                await self._write("ZADD", self._key_for_topic(found, topic), score, member)
                if found.part == "schedule_due":
                    due_key = self._keys.of_shard(self._keys.shard_of(topic), "due")
                    await self._write("ZADD", due_key, "LT", score, SCHEDULES_MEMBER)
            self._note_copied(len(elements) // 2)

    def _key_for_topic(self, found: _KeyFound, topic: str) -> str:
        """The key of the same name in the shard that a topic has in the target."""
        return self._keys.of_shard(self._keys.shard_of(topic), found.key.partition("}:")[2])

    async def _add_tally(self, found: _KeyFound) -> None:
        """Add the tally of a shard's forgotten topics to the tally of its new shard, which several shards may share."""
        async for elements in self._elements(found):
            for outcome, count in zip(elements[::2], elements[1::2], strict=True):
                await self._write("HINCRBY", self._target_key(found), outcome, count)

    async def _elements(self, found: _KeyFound) -> AsyncIterator[list[bytes]]:
        cursor: bytes | int = 0
        count = _STEP_FIRST
        while cursor != b"0":
            with _named(self._source):
                reply = await self._source_scripts.run("key_elements", [found.key], (found.kind, cursor, count))
            cursor, elements = reply
            for at in range(0, len(elements), _WRITTEN_MOST):  # a key that is kept packed is read at once
                yield elements[at : at + _WRITTEN_MOST]
            size = sum(map(len, elements))
            if size < _STEP_BYTES_LOW:
                count = min(count * 2, _STEP_MOST)
            elif size > _STEP_BYTES_HIGH:
                count = max(count // 4, 1)

    async def _write_elements(self, found: _KeyFound, elements: Sequence[bytes]) -> None:
        """Write elements as they were read, each to its key in the target."""
        by_key: defaultdict[str, list[bytes]] = defaultdict(list)
        if found.topic and found.part in {"pool", "follow"}:
            self._check_ends(found.topic, elements[1::2])
        elif found.part == "settings":
            for name, value in zip(elements[::2], elements[1::2], strict=True):
                on_end = orjson.loads(value or b"{}").get("po", {}).get("oe")
                self._check_end(name.decode(errors="backslashreplace"), on_end and on_end["topic"])
        is_due = found.part == "due" and not found.topic
        for name, value in zip(elements[::2], elements[1::2], strict=True):
            if is_due and name == SCHEDULES_MEMBER.encode():
                continue
            by_key[self._target_key(found, name)] += (name, value) if found.kind == "hash" else (value, name)
        command = "HSET" if found.kind == "hash" else "ZADD"
        for key, pairs in by_key.items():
            await self._write(command, key, *pairs)
        self._note_copied(sum(map(len, by_key.values())) // 2)

    async def _write(self, command: str, key: str, *args: str | bytes | int) -> None:
        with _named(self._target):
            await self._target_scripts.write(command, key, *args)

    def _check_ends(self, topic: str, records: Sequence[bytes]) -> None:
        """As `_check_end`, for jobs of a topic or partition."""
        for raw in records:
            if b'"oe":{' in raw:  # or its body has that
                on_end = read_record(topic, "", JobState.DELAYED, raw).stored("on_end")
                self._check_end(topic, on_end and on_end["topic"])

    def _check_end(self, topic: str, end_topic: str | None) -> None:
        """Check that the end of a job can put one into `end_topic`, if it is to, in the target, too.

        Raises:
            StoreRefused: the topics would be in different shards.
        """
        if end_topic and self._keys.shard_of(end_topic) != self._keys.shard_of(topic):
            raise StoreRefused(
                f"`on_end` in topic {topic_of(topic)!r} names topic {end_topic!r}, which would be in another one of "
                f"the {self._keys.shards} shards of the target: copy to as many shards as the source has, or first "
                "remove the `on_end` from its jobs, schedules and settings"
            )

    def _target_key(self, found: _KeyFound, element: bytes = b"") -> str:
        """The target's key for a key, or for an element of one that is keyed by topic."""
        topic = found.topic
        if not topic and found.part in _KEYED_BY_TOPIC:
            topic = element.decode(errors="backslashreplace")
        elif not topic and found.part.startswith(TAG_PREFIX):
            topic = element.partition(b" ")[0].decode(errors="backslashreplace")
        shard = self._keys.shard_of(topic) if topic else found.shard % self._keys.shards
        return self._keys.of_shard(shard, found.key.partition("}:")[2])


async def _prepare(target: Store, wanted_shards: int | None, layout: Layout) -> int:
    """Prepare the target for data of this layout, and return its number of shards."""
    stored = await _stored_layout(target)
    if stored is not None and stored.shards < 0:
        await _clear(target, -stored.shards)  # no service has used the data of an unfinished copy
        stored = None
    shards = wanted_shards or (stored or layout).shards
    async for found in _keys_of(target, stored.shards if stored else shards):
        if found.part != _LOCK:
            raise StoreRefused(
                f"the store at {target.description} has jobs or topics of deferd already (key {found.key}): copy into "
                "an empty store, or into another database of the server (redis://host:port/1)"
            )
    await check(target, shards=shards)
    await Scripts(target).write("SET", SHARDS_KEY, str(layout._replace(shards=-shards)))
    return shards


async def _clear(target: Store, shards: int) -> None:
    scripts = Scripts(target)
    async for found in _keys_of(target, shards):
        await scripts.write("UNLINK", found.key)
    await scripts.write("DEL", SHARDS_KEY)


async def _stored_layout(store: Store) -> Layout | None:
    stored = await Scripts(store).command("GET", SHARDS_KEY)
    try:
        return None if stored is None else layout_in(stored.decode(errors="replace"))
    except ValueError as exc:
        raise StoreRefused(f"the store at {store.description} {exc}") from exc


@asynccontextmanager
async def _alone(store: Store, *, force: bool) -> AsyncIterator[None]:
    """Subscribe as a service does, so that a second copy notices this one, and check that nobody else is subscribed.

    Raises:
        StoreRefused: a service or another copy uses the store, or it fails.
    """
    if force:
        yield
        return
    subscription = store.pubsub()
    try:
        with _named(store), observed("SUBSCRIBE"):
            await _stored_layout(store)  # a cluster client knows the nodes only after a first call
            await subscription.subscribe(READY_CHANNEL)
            while (message := await subscription.get_message(timeout=_SUBSCRIBE_S)) is not None:
                if message["type"] == "subscribe":
                    break
            listeners = await _count_listeners(store)
        if listeners > 1:
            raise StoreRefused(
                f"a deferd service, or another copy, uses the store at {store.description}: stop it first, or give "
                "--force if it uses another database of that server"
            )
        yield
    finally:
        with suppress(RedisError, OSError):
            await subscription.aclose()


@contextmanager
def _named(store: Store) -> Iterator[None]:
    """Name the store in its errors: two are in use."""
    try:
        yield
    except StoreUnavailable as exc:
        raise StoreRefused(f"the store at {store.description} failed: {exc}") from exc


async def _inventory(store: Store, shards: int) -> Inventory:
    with _named(store):
        return await take_inventory(store, shards)


async def _count_listeners(store: Store) -> int:
    if not isinstance(store.client, RedisCluster):
        replies: list[Any] = [await store.client.execute_command("PUBSUB NUMSUB", READY_CHANNEL)]
    else:
        nodes = store.client.get_nodes()
        replies = [
            await store.client.execute_command("PUBSUB NUMSUB", READY_CHANNEL, target_nodes=node) for node in nodes
        ]
    return sum(int(count) for reply in replies for _, count in reply)


_PAGE = 500
_TOPICS_AT_ONCE = 32


class _KeyFound(NamedTuple):
    """A key of a shard. `topic` is empty for a key of the whole shard; `part` is the last word of the key's name.

    `kind` is the type, empty when the name is not text. `size` is the number of fields, members or elements. `kept_ms`
    is the time to live, negative without one.
    """

    key: str
    shard: int
    topic: str
    part: str
    kind: str
    size: int
    kept_ms: int


@dataclass(frozen=True)
class Inventory:
    """Jobs by topic and state, and the sum of elements of all keys with one name (`pool`, `delay` ...)."""

    jobs: Mapping[str, Mapping[JobState, int]]
    elements: Mapping[str, int]

    def totals(self) -> dict[JobState, int]:
        """Jobs by state."""
        return {state: sum(counts.get(state, 0) for counts in self.jobs.values()) for state in JobState}


async def take_inventory(store: Store, shards: int) -> Inventory:
    """Count everything, in bounded steps.

    The tag index counts as one key, `tag`, and so do the schedules, `schedule`. Leaves out the shelf, remembered
    requests, what a copy leaves behind, what a repair moved out of the way, the tallies of forgotten topics (which
    shards may share after a copy), and keys whose names are not text.

    Raises:
        StoreUnavailable.
    """
    elements: Counter[str] = Counter()
    async for found in _keys_of(store, shards):
        is_left_out = found.part == (_SHELF if found.topic else "tally") or found.part.startswith(_LEFT_BEHIND)
        part = _counted_as(found)
        if found.kind and found.size and ("/" not in part or part == ITEMS_PREFIX) and not is_left_out:
            elements[part] += found.size
    return Inventory(await count_jobs(store, shards), dict(elements))


def _counted_as(found: _KeyFound) -> str:
    if found.topic:
        return ITEMS_PREFIX if found.part.startswith(ITEMS_PREFIX) else found.part
    prefixes = (TAG_PREFIX, SCHEDULE_PREFIX)
    return next((prefix.rstrip("/") for prefix in prefixes if found.part.startswith(prefix)), found.part)


async def count_shelved(store: Store, shards: int) -> dict[str, int]:
    """How many jobs of each partition are on the shelf, as the store knows; without those that have none.

    Raises:
        StoreUnavailable.
    """
    scripts = Scripts(store)
    counts: dict[str, int] = {}
    async for found in _keys_of(store, shards):
        if found.topic and found.part == _SHELF and found.kind == "hash":
            count = int(await scripts.command("HGET", found.key, "jobs") or 0)
            if count:
                counts[found.topic] = count
    return counts


def check_shelved(found: Mapping[str, int], expected: Mapping[str, int], *, is_known: bool = True) -> None:
    """Check that the shelf has the jobs that the store counts. `is_known`: whether there is access to the shelf at all.

    Raises:
        StoreRefused: it has fewer, or others.
    """
    if expected and not is_known:
        raise StoreRefused(
            f"{sum(expected.values()):,} jobs are on the shelf, which is not in the store: name the data directory of "
            "the service, or start the service once without --shelf-after, wait until they are back, and stop it again"
        )
    for topic in sorted({*found, *expected}):
        if found.get(topic, 0) != expected.get(topic, 0):
            raise StoreRefused(
                f"the shelf has {found.get(topic, 0):,} jobs of topic {topic!r}, but {expected.get(topic, 0):,} as the "
                "store counts them: files of the shelf are missing or damaged, or are not those of this store"
            )


async def count_jobs(store: Store, shards: int) -> dict[str, dict[JobState, int]]:
    """How many jobs each topic that the store knows has in each state. Raises StoreUnavailable."""
    keys, scripts = Keys(shards), Scripts(store)
    await PartitionStore(scripts, keys, Shelf()).load()
    topics = TopicList(scripts, keys, Shelf())
    counts: dict[str, dict[JobState, int]] = {}
    cursor: str | None = None
    while True:
        page = await topics.names(cursor, _PAGE)
        for at in range(0, len(page.names), _TOPICS_AT_ONCE):
            some = page.names[at : at + _TOPICS_AT_ONCE]
            for name, totals in zip(some, await asyncio.gather(*(topics.totals([name]) for name in some)), strict=True):
                whole = Totals()
                for of_shard in totals.values():
                    if of_shard is None or page.unreadable:
                        raise StoreUnavailable("a shard of the store cannot be reached")
                    whole.add(of_shard)
                counts[name] = whole.jobs
        if page.unreadable:
            raise StoreUnavailable("a shard of the store cannot be reached")
        cursor = page.next_cursor
        if cursor is None:
            return counts


async def _keys_of(store: Store, shards: int) -> AsyncIterator[_KeyFound]:
    """All keys of all shards, each once. Keys that are created or deleted during the scan may be missed.

    Raises:
        StoreUnavailable.
    """
    scripts, keys = Scripts(store), Keys(shards)
    seen: set[bytes] = set()
    for shard in range(shards):
        cursor: bytes | int = 0
        while cursor != b"0":
            reply = await scripts.run("shard_keys", [keys.of_shard(shard, "due")], (cursor, _PAGE))
            cursor, *rows = reply
            for key, kind, size, kept_ms in zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
                if key not in seen:
                    seen.add(key)
                    name = key.decode(errors="backslashreplace")
                    is_ours = name.encode() == key
                    topic, part = split_key(name)
                    yield _KeyFound(name, shard, topic, part, kind.decode() if is_ours else "", size, kept_ms)
        seen.clear()


def split_key(key: str) -> tuple[str, str]:
    """The topic and the last word of a key's name, with what follows a `/`."""
    before, slash, after = key.partition("}:")[2].partition("/")
    topic, _, part = before.rpartition(":")
    return topic, f"{part}{slash}{after}"
