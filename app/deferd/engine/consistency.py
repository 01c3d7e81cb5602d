"""Checks the store's consistency on a live service, and repairs it.

Each step is one bounded script that compares data of one instant, so a busy topic raises no false alarm. After each
step the checker pauses for as long as the step took.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.limits import PARTITIONS_MAX, TOPIC_PATTERN
from deferd.contract.model import JobState
from deferd.contract.operations.audits import FindingKind
from deferd.contract.timestamps import instant_text
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import is_partition_name, number_of, topic_of
from deferd.engine.redis_keys import FLOW_KEYS, Keys
from deferd.engine.schedule_store import UNREADABLE, ScheduleState, read_definition
from deferd.engine.scheduler import Schedules
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Shelf, Wanted
from deferd.engine.topics import STATES, UNREADABLE_SETTINGS, read_settings

_STEP_OF_ITEMS = 10
"""Jobs of which one script call reads all collected items."""
_LONGEST_WAIT_S = 20
_TOPIC_KEY_TYPES = (
    *("hash", *["zset"] * 6, "hash", "zset", "hash", "zset", "zset", *["hash"] * 3, "zset"),  # KEYS of lib/topic.lua
    *FLOW_KEYS.values(),
    *["hash"] * 4,
)
_SHARD_KEY_TYPES = {
    "settings": "hash",
    "topics": "zset",
    "due": "zset",
    "schedules": "zset",
    "schedule_due": "zset",
    "earlier_runs": "zset",
    "batches": "zset",
    "push": "hash",
    "partitioned": "hash",
}
_SETS = (
    *("delayed", "ready", "reserved", "dead", "finished", "expiry", "holders", "requests"),
    *("tagged", "taken", "follow", "items", "runs", "cancelled"),
)
_OUTCOMES = ("put", "finished", "cancelled", "dropped", "lost")
_HAS_TIMESTAMPS = frozenset(
    {
        *(FindingKind.IN_NO_PLACE, FindingKind.DUE_DIFFERS, FindingKind.EXPIRY_WRONG),
        *(FindingKind.LEASE_ENDLESS, FindingKind.TOMBSTONE_WRONG, FindingKind.TIMER_LATE),
        FindingKind.TAKEN_WRONG,
    }
)
_EVER_MS = 1 << 53
"""Later than any job is due."""
_EPOCH_MS = re.compile(r"\b\d{13}\b")
_TOPIC_NAME = re.compile(TOPIC_PATTERN)


class ConsistencyChecker:
    """Checks and repairs. One check runs at a time; others wait for up to 20 s and are then refused."""

    def __init__(self, scripts: Scripts, keys: Keys, schedules: Schedules, partitions: PartitionStore) -> None:
        self._scripts = scripts
        self._keys = keys
        self._schedules = schedules
        self._partitions = partitions
        self._lock = asyncio.Lock()

    async def audit_topic(self, topic: str, *, repair: bool = False) -> TopicReport:
        """Check all data of a topic; with `repair`, repair each finding in the script call that found it.

        The report is of all partitions together, and says which of them a finding is in. Takes some tens of
        microseconds for each job, in bounded steps.

        Raises:
            TopicNotFound: the store has no data of the topic.
            StoreUnavailable: the check was not started or not completed; repairs made so far remain.
        """
        async with self._exclusive():
            report = TopicReport(topic, repair)
            partitions = _PartitionCheck(self._scripts, self._keys, self._partitions, report)
            try:
                await self._check_partition(topic, report)
            except TopicNotFound:
                if not await partitions.check_layout():
                    raise
            else:
                if report.unchecked is None:
                    await partitions.check_layout()
            others = self._keys.partitions.of(topic)[1:]
            for partition in others:
                with suppress(TopicNotFound):  # of a partition that has no settings yet
                    await self._check_partition(partition, report)
            if others and report.unchecked is None:
                await partitions.check_settings()
                if repair or FindingKind.PARTITIONS_WRONG not in report.findings.counts:
                    await partitions.check_homes()
            return report

    async def _check_partition(self, partition: str, report: TopicReport) -> None:
        report.add(await _TopicCheck(self._scripts, self._keys, self._partitions.shelf, partition, report).run())

    async def audit_store(self, *, repair: bool = False) -> StoreReport:
        """Check what belongs to no single topic: unlisted topics, keys of the wrong type, stray keys.

        Reads all keys of the store, in bounded steps. `repair` renames keys of the wrong type; unlisted topics are
        repaired by `audit_topic`.

        Raises:
            StoreUnavailable: the check was not started or not completed.
        """
        async with self._exclusive():
            report = StoreReport(repair)
            unlisted: set[str] = set()
            schedules = _ScheduleCheck(self._scripts, self._keys, self._schedules, report)
            for shard in range(self._keys.shards):
                await _check_shard(self._scripts, self._keys, shard, report, unlisted, check_schedules=schedules.check)
            await schedules.run()
            report.unlisted = sorted(set(map(topic_of, unlisted)))
            if repair or FindingKind.WRONG_TYPE not in report.findings.counts:
                await self._check_unknown_partitions(report)
            return report

    async def _check_unknown_partitions(self, report: StoreReport) -> None:
        """Look among the listed topics for partitions that their topics do not have."""
        for shard in range(self._keys.shards):
            cursor: bytes | int = 0
            while cursor != b"0":
                keys = [self._keys.of_shard(shard, name) for name in ("settings", "topics")]
                args = ("partitions", cursor, _STEP)
                cursor, names, *_ = await _paced(self._scripts.run("audit_names", keys, args))
                for name in filter(is_partition_name, map(text, names)):
                    topic = topic_of(name)
                    if name in self._keys.partitions.of(topic):
                        continue
                    await self._partitions.refresh(topic)
                    if name not in self._keys.partitions.of(topic):
                        detail = f"the topic has {self._keys.partitions.count(topic)}"
                        report.findings.add(Finding(FindingKind.PARTITION_UNKNOWN, _in_words(name), detail))

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S):
                await self._lock.acquire()
        except TimeoutError:
            raise StoreUnavailable("other audits are running", retry_after_s=_LONGEST_WAIT_S) from None
        try:
            yield
        finally:
            self._lock.release()


class _TopicCheck:
    """Checks one partition. Findings are added to `whole`, the report of the topic."""

    def __init__(self, scripts: Scripts, keys: Keys, shelf: Shelf, topic: str, whole: TopicReport) -> None:
        self._scripts = scripts
        self._shelf = shelf
        self._topic = topic
        self._repair = whole.repaired
        self._keys = keys.of_consistency_check(topic)
        self._report = TopicReport(topic, whole.repaired, findings=whole.findings)

    async def run(self) -> TopicReport:
        report = self._report
        wrong_types = await self._step("audit_types", *_TOPIC_KEY_TYPES)
        _add_wrong_types(report.findings, wrong_types)
        if wrong_types and not self._repair:
            report.unchecked = f"all else{self._place()}: keys of the wrong type must be repaired first"
            return report
        before = await self._step("audit_sums", "", repair=False)
        if before is None:
            if not wrong_types:
                raise TopicNotFound(self._topic)
            return report
        settings = before[1] or b""
        unreadable = b"" if _are_readable(settings) else settings
        if unreadable:
            shown = text(unreadable[:200])
            report.findings.add(Finding(FindingKind.SETTINGS_UNREADABLE, _in_words(self._topic), shown))
        await self._check_flows()
        await self._check_jobs()
        for name in _SETS:
            await self._check_members(name)
        groups = _GroupCheck(self._step, self._add_findings, self._scripts, self._shelf, self._topic, self._keys)
        try:
            await self._check_shelf()
            await groups.run()
        except StoreUnavailable as exc:
            report.unchecked = f"the jobs on the shelf{self._place()}: {exc}"
        after = await self._step("audit_sums", unreadable)
        if after is not None:
            self._read_sums(after)
        return report

    async def _check_jobs(self) -> None:
        cursor: bytes | int = 0
        while cursor != b"0":
            cursor, checked, found = await self._step("audit_pool", cursor, _STEP)
            self._report.checked += checked
            self._add_findings(found)

    async def _check_flows(self) -> None:
        """Check the places and turns of groups, before the jobs: a repair of these depends on them."""
        flow_at: dict[bytes, bytes] = {}
        for part in ("flows", "turns", "free", "limited"):
            cursor: bytes | int = 0
            while cursor != b"0":
                cursor, found, slots = await self._step("audit_flows", part, cursor, _STEP)
                self._add_findings(found)
                for flow, slot in zip(slots[::2], slots[1::2], strict=True):
                    other = flow_at.setdefault(slot, flow)
                    if other != flow:
                        _, found, _ = await self._step("audit_flows", "same", other, flow)
                        self._add_findings(found)

    async def _check_shelf(self) -> None:
        """Check that no job is both on the shelf and in the store, and how many the store counts there."""
        calls, pool = self._shelf.calls, self._keys[0]
        if calls is None:  # the files are gone, if it counts any
            await self._compare_shelved(0)
            return
        after, has_more = None, True
        while has_more:
            async with calls.still(self._topic):
                page = await calls.page(self._topic, Wanted(), _STEP, after)
                ids = [job.id for job in page.jobs]
                stored = await self._scripts.command("HMGET", pool, *ids) if ids else []
            twins = [job_id for job_id, record in zip(ids, stored, strict=True) if record is not None]
            for job_id in twins:
                self._report.findings.add(
                    Finding(FindingKind.ON_SHELF_TOO, job_id, f"in the store as well{self._place()}")
                )
            if twins and self._repair:
                await calls.load(self._topic, twins)
            for job_id in page.unreadable:
                self._report.findings.add(Finding(FindingKind.SHELF_UNREADABLE, job_id, f"on the shelf{self._place()}"))
            self._report.checked += page.looked_at
            after, has_more = page.end, page.has_more
        async with calls.still(self._topic):
            [jobs] = await calls.counts_before(self._topic, [_EVER_MS])
            await self._compare_shelved(jobs)

    async def _compare_shelved(self, jobs: int) -> None:
        """Compare how many jobs are on the shelf with what the store counts."""
        shelf = self._keys[-2]
        counted = int(await self._scripts.command("HGET", shelf, "jobs") or 0)
        if jobs != counted:
            detail = f"{counted} are counted, {jobs} are there"
            self._report.findings.add(Finding(FindingKind.SHELF_MISCOUNTED, _in_words(self._topic), detail))
            if self._repair:
                await self._scripts.write("HSET", shelf, "jobs", jobs)

    async def _check_members(self, name: str) -> None:
        cursor: bytes | int = 0
        while cursor != b"0":
            step = _STEP_OF_ITEMS if name == "items" else _STEP
            cursor, _, found = await self._step("audit_members", name, cursor, step)
            self._add_findings(found)

    def _add_findings(self, found: list[bytes]) -> None:
        for one in _read_findings(found):
            detail = one.detail
            if one.kind in _HAS_TIMESTAMPS:
                detail = _EPOCH_MS.sub(lambda ms: instant_text(int(ms[0])), detail)
            if one.subject == self._topic:
                self._report.findings.add(Finding(one.kind, _in_words(one.subject), detail))
            else:
                self._report.findings.add(Finding(one.kind, one.subject, detail + self._place()))

    def _place(self) -> str:
        """Which partition it is, if it is not the first."""
        number = number_of(self._topic)
        return f" (partition {number})" if number else ""

    def _read_sums(self, reply: list[Any]) -> None:
        found, _, *counts, now_ms, first_work_ms = reply[: len(STATES) + 4]
        self._add_findings(found)
        report = self._report
        report.counts = dict(zip(STATES, counts, strict=True))
        report.timer_overdue_ms = max(now_ms - first_work_ms, 0) if first_work_ms >= 0 else 0
        live = sum(report.counts[state] for state in (JobState.DELAYED, JobState.READY, JobState.RESERVED))
        report.sums = {
            **dict(zip(_OUTCOMES, reply[len(STATES) + 4 :], strict=True)),
            "dead": report.counts[JobState.DEAD],
            "live": live,
        }

    async def _step(self, verb: str, *args: str | bytes | int, repair: bool | None = None) -> Any:
        does_repair = self._repair if repair is None else repair
        return await _paced(self._scripts.run(verb, self._keys, (self._topic, int(does_repair), *args)))


@dataclass(slots=True)
class _GroupCheck:
    """Checks how many jobs each group of a partition has, how many are held, and which one keeps its place.

    In a partition of up to 2000 jobs and groups all is counted in one step of the store. In a larger one, or if more
    than that are on the shelf, groups are marked, their jobs are counted in steps, and what has changed since it was
    marked is left alone: only groups that rest for so long are checked. A hash that shrinks meanwhile shows some jobs
    twice; so only what is off by the same in two passes is a finding.
    """

    step: Callable[..., Awaitable[Any]]
    add_findings: Callable[[list[bytes]], None]
    scripts: Scripts
    shelf: Shelf
    topic: str
    keys: Sequence[str]

    async def run(self) -> None:
        """Check all groups. Raises StoreUnavailable."""
        if not await self.scripts.command("EXISTS", self.keys[0].removesuffix("pool") + "groups"):
            return
        for _ in range(_TRIES):
            shelved, numbers, is_large = await self._read_shelf(most=_COUNTED_AT_ONCE)
            if not is_large:
                args = [value for pair in shelved.items() for value in pair]
                outcome, *rest = await self.step("audit_groups", "whole", numbers, *args)
                if outcome == _CHECKED:
                    self.add_findings(rest[0])
                    await self._check_holds(rest[1])
                    return
                is_large = outcome == _TOO_LARGE
            if is_large:
                break
        off: dict[bytes, bytes] = {}
        for is_last in (False, True):
            off = await self._count_in_steps(off, is_last=is_last)
            if not off:
                return

    async def _count_in_steps(self, before: Mapping[bytes, bytes], *, is_last: bool) -> dict[bytes, bytes]:
        """Count all jobs; returns the groups that are off, and by how much. `before` is that of the first pass."""
        marked: list[bytes] = []
        cursor: bytes | int = 0
        while cursor != b"0":
            cursor, found, groups, doubtful = await self.step("audit_groups", "mark", cursor, _STEP)
            marked += groups
            self.add_findings(found)
            await self._check_holds(doubtful)
        counts: dict[bytes, list[int]] = {group: [0, 0] for group in marked}
        numbers = await self._shelf_numbers()
        cursor = 0
        while cursor != b"0":
            cursor, rows = await self.step("audit_groups", "count", cursor, _STEP)
            for group, live, held in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
                if group in counts:
                    counts[group][0] += live
                    counts[group][1] += held
        shelved, after, _ = await self._read_shelf()
        for name, jobs in shelved.items():
            if name in counts:
                counts[name][0] += jobs
        has_moved = numbers != after
        off: dict[bytes, bytes] = {}
        for at in range(0, len(marked), _STEP):
            rows = []
            for group in marked[at : at + _STEP]:
                is_judged = not has_moved and (not is_last or group in before)
                rows += [group, *counts[group], before.get(group, b"") if is_judged else b"-"]
            found, some = await self.step("audit_groups", "compare", *rows)
            self.add_findings(found)
            off |= dict(zip(some[::2], some[1::2], strict=True))
        return off

    async def _read_shelf(self, most: int | None = None) -> tuple[dict[bytes, int], bytes, bool]:
        """The jobs on the shelf by group, the numbers of its last batches, and whether there are more than `most`."""
        counts: Counter[bytes] = Counter()
        numbers = await self._shelf_numbers()
        calls, after, has_more, looked_at = self.shelf.calls, None, True, 0
        while has_more and calls is not None:
            async with calls.still(self.topic):
                if await self._shelf_numbers() != numbers:
                    return {}, b"", False  # the caller sees that jobs have moved
                page = await calls.page(self.topic, Wanted(), _STEP, after)
            counts.update(job.group.encode() for job in page.jobs if job.takes_turns)
            after, has_more, looked_at = page.end, page.has_more, looked_at + page.looked_at
            if most is not None and looked_at > most:
                return {}, numbers, True
        return dict(counts), numbers, False

    async def _shelf_numbers(self) -> bytes:
        numbers = await self.scripts.command("HMGET", self.keys[-2], "out", "in")
        return b" ".join(number or b"0" for number in numbers)

    async def _check_holds(self, doubtful: list[bytes]) -> None:
        """Check jobs that may not keep the place of their group. They may be on the shelf: then they are loaded."""
        for at in range(0, len(doubtful), _STEP):
            pairs = doubtful[at : at + _STEP]
            if self.shelf.calls is not None:
                await self.shelf.calls.load(self.topic, list(map(text, pairs[1::2])))
            (found,) = await self.step("audit_groups", "holds", *pairs)
            self.add_findings(found)


async def _check_shard(
    scripts: Scripts,
    keys: Keys,
    shard: int,
    report: StoreReport,
    unlisted: set[str],
    *,
    check_schedules: Callable[[int, list[str]], Awaitable[None]],
) -> None:
    names = [keys.of_shard(shard, name) for name in _SHARD_KEY_TYPES]
    all_names = [*names, keys.of_shard(shard, "aside")]
    wrong_types = await scripts.run("audit_types", all_names, ("", int(report.repaired), *_SHARD_KEY_TYPES.values()))
    _add_wrong_types(report.findings, wrong_types)
    if wrong_types and not report.repaired:
        return
    for where in ("settings", "topics", "keys"):
        cursor: bytes | int = 0
        while cursor != b"0":
            reply = await _paced(scripts.run("audit_names", names[:2], (where, cursor, _STEP)))
            cursor, topics, strays, settings, of_tags, lists, schedules, batches = reply
            if of_tags:
                await _check_tags(scripts, [*map(text, of_tags), all_names[-1]], report)
            if schedules:
                await check_schedules(shard, list(map(text, schedules)))
            await _check_batches(scripts, keys.of_shard(shard, "batches"), batches, report)
            if lists:
                await _check_lists(scripts, keys, shard, list(map(text, lists)), report)
            # Lists of topics leave out those whose settings cannot be read.
            pairs = zip(settings[::2], settings[1::2], strict=True)
            topics += [topic for topic, stored in pairs if not _are_readable(stored)]
            for topic in map(text, topics):
                if _is_at_home(topic, keys, shard):
                    unlisted.add(topic)
                else:
                    strays.append(f"{topic} in {where} of shard {shard}".encode())
            for stray in map(text, strays):
                if stray not in report.stray_keys:
                    report.stray_count += 1
                    if len(report.stray_keys) < _EXAMPLES_MAX:
                        report.stray_keys.append(stray)


async def _check_batches(scripts: Scripts, key: str, names: list[bytes], report: StoreReport) -> None:
    """Check batches by their names; `key` is the list of those of the shard."""
    if names:
        args: list[int | str] = [int(report.repaired), *map(text, names)]
        for one in _read_findings(await _paced(scripts.run("audit_batches", [key], args))):
            report.findings.add(one)


async def _check_tags(scripts: Scripts, keys: list[str], report: StoreReport) -> None:
    """Check keys of the tag index; the last of `keys` is for what a repair moves aside."""
    first, after = 0, ""
    while first >= 0:
        args = (int(report.repaired), after, _STEP)
        at, last, found = await _paced(scripts.run("audit_tags", keys[first:], args))
        for one in _read_findings(found):
            topic, slash, job_id = one.subject.partition("/")
            report.findings.add(replace(one, subject=f"{topic_of(topic)}{slash}{job_id}"))
        first, after = (first + at - 1, text(last)) if at else (-1, "")


async def _check_lists(scripts: Scripts, keys: Keys, shard: int, lists: list[str], report: StoreReport) -> None:
    """Check lists of collected items in a shard: `lists` are the topic and the id of each."""
    of_topics: dict[str, list[str]] = {}
    for topic, job_id in zip(lists[::2], lists[1::2], strict=True):
        if _is_at_home(topic, keys, shard):
            of_topics.setdefault(topic, []).append(job_id)
    for topic, ids in of_topics.items():
        while ids:
            args: tuple[str | int, ...] = (topic, int(report.repaired), *ids)
            checked, found = await _paced(scripts.run("audit_items", keys.of_consistency_check(topic), args))
            del ids[:checked]
            for one in _read_findings(found):
                report.findings.add(replace(one, subject=f"{topic_of(topic)}/{one.subject}"))


def _add_wrong_types(findings: Findings, found: list[bytes]) -> None:
    for key, kind, moved_to in zip(found[::3], found[1::3], found[2::3], strict=True):
        detail = f"a {text(kind)}" + (f", now at {text(moved_to)}" if moved_to else "")
        findings.add(Finding(FindingKind.WRONG_TYPE, text(key), detail))


def _are_readable(settings: bytes) -> bool:
    try:
        read_settings(orjson.loads(settings) if settings else {})
    except UNREADABLE_SETTINGS:
        return False
    return True


def _is_at_home(name: str, keys: Keys, shard: int) -> bool:
    """Whether it is a possible name of a topic or partition and belongs in this shard."""
    topic = topic_of(name) if is_partition_name(name) else name
    return _TOPIC_NAME.fullmatch(topic) is not None and keys.shard_of(name) == shard


_NO_REPAIR, _REPAIR, _WRITE_AGAIN = 0, 1, 2
_IS_BEING_SPREAD = b"!"


def _in_words(partition: str) -> str:
    """A partition as people read it: the topic, and the number of a partition that has not the topic's name."""
    number = number_of(partition)
    return f"{topic_of(partition)}, partition {number}" if number else partition


class _PartitionCheck:
    """Checks how one topic is partitioned, and whether its jobs are where calls look.

    Findings go into `report`, which says whether to repair them. The methods raise StoreUnavailable, and go in this
    order; those after the first need a topic of several partitions.
    """

    def __init__(self, scripts: Scripts, keys: Keys, partitions: PartitionStore, report: TopicReport) -> None:
        self._scripts = scripts
        self._keys = keys
        self._partitions = partitions
        self._topic = report.topic
        self._report = report

    async def check_layout(self) -> bool:
        """Check the stored layout; returns whether it, or the settings, say that there are several partitions."""
        settings, layout, found = await self._read(_REPAIR if self._report.repaired else _NO_REPAIR)
        for one in _read_findings(found):
            self._report.findings.add(replace(one, subject=self._topic))
        await self._partitions.refresh(self._topic)
        return bool(layout or _number(settings, "n") > 1)

    async def check_settings(self) -> None:
        """Check that all partitions have the settings of the topic; a repair gives them these."""
        settings, layout, _ = await self._read(_NO_REPAIR)
        is_repair = self._report.repaired
        if not settings or (layout.endswith(_IS_BEING_SPREAD) and not is_repair):
            return
        latest = -1
        for partition in self._keys.partitions.of(self._topic)[1:]:
            key = self._keys.of_shard(self._keys.shard_of(partition), "settings")
            copy = await self._scripts.command("HGET", key, partition) or b""
            if copy == settings:
                continue
            again, layout, _ = await self._read(_NO_REPAIR)  # they may have changed since
            if again != settings:
                break
            latest = max(latest, _number(copy, "rv"))
            if not layout.endswith(_IS_BEING_SPREAD):
                detail = f"{_in_short(copy)}, those of the topic are {_in_short(settings)}"
                self._report.findings.add(Finding(FindingKind.PARTITION_SETTINGS, _in_words(partition), detail))
        if is_repair:
            if latest >= _number(settings, "rv"):  # else a copy replaces what the partition has
                await self._read(_WRITE_AGAIN, latest)
            await self._partitions.spread(self._topic)

    async def check_homes(self) -> None:
        """Check that each job is in a partition where calls look for it, and in one only."""
        are_lost = False
        for partition in self._keys.partitions.of(self._topic):
            async for ids in self._ids_of(partition):
                for job_id in ids:
                    if self._keys.partitions.home(self._topic, job_id) != partition:
                        are_lost |= await self._check_job(partition, job_id)
        if are_lost and self._report.repaired:
            await self._read(_WRITE_AGAIN)
            await self._partitions.spread(self._topic)

    async def _check_job(self, partition: str, job_id: str) -> bool:
        """Check a job that is not where its id belongs now; returns whether no call finds it."""
        homes = self._keys.partitions.homes(self._topic, job_id)
        if partition not in homes:  # others may have changed the layout since the check began
            await self._partitions.refresh(self._topic)
            homes = self._keys.partitions.homes(self._topic, job_id)
        holders = [home for home in homes if home != partition and await self._has(home, job_id)]
        # In this order: an id that a former partition does not hold any more is never put there again.
        if not await self._has(partition, job_id):
            return False
        if holders:
            where = " and ".join(str(number_of(one)) for one in sorted({partition, *holders}, key=number_of))
            self._report.findings.add(Finding(FindingKind.IN_TWO_PARTITIONS, job_id, f"partitions {where}"))
        elif partition not in homes:
            detail = f"in partition {number_of(partition)}, and belongs in partition {number_of(homes[0])}"
            self._report.findings.add(Finding(FindingKind.MISPLACED, job_id, detail))
            return True
        return False

    async def _ids_of(self, partition: str) -> AsyncIterator[list[str]]:
        cursor: bytes | int = 0
        while cursor != b"0":
            run = self._scripts.run("pool_ids", (self._keys.named(partition, "pool"),), (cursor, _STEP))
            cursor, *ids = await _paced(run)
            yield [text(job_id) for job_id in ids]

    async def _has(self, partition: str, job_id: str) -> bool:
        return bool(await self._scripts.command("HEXISTS", self._keys.named(partition, "pool"), job_id))

    async def _read(self, repair: int, latest: int = 0) -> tuple[bytes, bytes, list[bytes]]:
        """Settings and layout of the topic, and findings. `latest` is the latest revision that any partition has."""
        shard = self._keys.shard_of(self._topic)
        keys = (*self._keys.of_topic(self._topic), self._keys.of_shard(shard, "partitioned"))
        args = (self._topic, repair, PARTITIONS_MAX, latest)
        settings, layout, found = await self._scripts.run("audit_partitions", keys, args)
        return settings, layout, found


def _number(settings: bytes, name: str) -> int:
    """A whole number of stored settings, 0 if they have none or cannot be read."""
    try:
        number = orjson.loads(settings).get(name, 0) if settings else 0
    except (ValueError, AttributeError):
        return 0
    return number if isinstance(number, int) else 0


def _in_short(settings: bytes) -> str:
    if not settings:
        return "none"
    return f"revision {_number(settings, 'rv')} for {_number(settings, 'n')} partitions"


class _ScheduleCheck:
    """Checks the schedules of all shards; findings go into `report`, which says whether to repair them."""

    def __init__(self, scripts: Scripts, keys: Keys, schedules: Schedules, report: StoreReport) -> None:
        self._scripts = scripts
        self._keys = keys
        self._schedules = schedules
        self._report = report

    async def run(self) -> None:
        """Check all schedules that are in a list. Raises StoreUnavailable."""
        seen: dict[str, int] = {}
        for shard in range(self._keys.shards):
            for where in ("schedules", "schedule_due", "earlier_runs"):
                cursor: bytes | int = 0
                while cursor != b"0":
                    cursor, names = await self._step(shard, where, cursor)
                    for name in names:
                        if seen.setdefault(name, shard) != shard:
                            await self._check_twice(name)

    async def check(self, shard: int, names: list[str]) -> None:
        """Check schedules of a shard by their names. Raises StoreUnavailable."""
        await self._step(shard, "names", 0, *names)

    async def _check_twice(self, name: str) -> None:
        found = await self._schedules.shards_of(name)
        if len(found) < 2:
            return
        shards = " and ".join(map(str, sorted(found)))
        self._report.findings.add(Finding(FindingKind.SCHEDULE_TWICE, name, f"in shards {shards}"))
        if self._report.repaired:
            await self._schedules.settle_move(name)

    async def _step(self, shard: int, where: str, cursor: bytes | int, *names: str) -> tuple[bytes, list[str]]:
        """One step; returns the next cursor and the names of the schedules that were read."""
        keys = [
            self._keys.of_shard(shard, name) for name in ("schedules", "schedule_due", "due", "aside", "earlier_runs")
        ]
        report = self._report
        args = (where, int(report.repaired), cursor, _STEP, *names)
        next_cursor, found, texts = await _paced(self._scripts.run("audit_schedules", keys, args))
        for one in _read_findings(found):
            report.findings.add(one)
        unreadable = [
            text(name)
            for name, definition, state in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
            if not _is_readable(definition, state)
        ]
        for name in unreadable:
            report.findings.add(Finding(FindingKind.SCHEDULE_UNREADABLE, name, f"in shard {shard}"))
        if unreadable and report.repaired:
            await _paced(self._scripts.run("audit_schedules", keys, ("unreadable", 1, 0, _STEP, *unreadable)))
        readable = [text(name) for name in texts[::3]]
        return next_cursor, [name for name in readable if name not in unreadable]


def _is_readable(definition: bytes, state: bytes) -> bool:
    try:
        read_definition(definition)
        ScheduleState.read(state)
    except UNREADABLE:
        return False
    return True


_EXAMPLES_MAX = 100
"""Most examples in a report; its counts include all findings."""
_DEDUPLICATED_MAX = 10_000
_TRIES = 5
_COUNTED_AT_ONCE = 2000
_TOO_LARGE, _CHECKED = 0, 1
_STEP = 250
"""Jobs, ids or keys that one script call checks: about two milliseconds of the store's time."""
_LONGEST_PAUSE_S = 0.1


def text(value: bytes) -> str:
    """Any value of the store as text."""
    return value.decode(errors="backslashreplace")


async def _paced(step: Awaitable[Any]) -> Any:
    """Run a step, then leave the store to other callers for as long as the step took. Returns the step's reply."""
    began_s = time.monotonic()
    reply = await step
    await asyncio.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))
    return reply


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency: `subject` is the job's id, the topic or the key, `detail` what was found."""

    kind: FindingKind
    subject: str
    detail: str


def _read_findings(reply: Sequence[bytes]) -> list[Finding]:
    """The findings in a script's reply, a flat list of kind, subject and detail."""
    parts = [text(part) for part in reply]
    return [Finding(FindingKind[kind.upper()], *rest) for kind, *rest in zip(*[iter(parts)] * 3, strict=True)]


class Findings:
    """Counts findings by kind and keeps examples. A repeated finding counts once, among the first 10,000."""

    def __init__(self) -> None:
        self.counts: dict[FindingKind, int] = {}
        self.examples: list[Finding] = []
        self._seen: set[tuple[str, str, str]] = set()

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        # An id can lack its record in several sorted sets: each counts.
        identity = (finding.kind, finding.subject, finding.detail if finding.kind is FindingKind.NO_RECORD else "")
        if identity in self._seen:
            return
        if len(self._seen) < _DEDUPLICATED_MAX:
            self._seen.add(identity)
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(finding)


@dataclass(slots=True)
class TopicReport:
    """The result of checking a topic. After a repair: the findings that were repaired, and all else as it is now.

    `checked` is the number of jobs checked. `sums` counts what became of all jobs ever put (see `lua/lib/topic.lua`);
    it and `counts` are empty when they could not be read. `unchecked` says what could not be checked and why; None:
    everything was. `timer_overdue_ms` is how long the timer's first work has been due.
    """

    topic: str
    repaired: bool
    checked: int = 0
    counts: Mapping[JobState, int] = field(default_factory=dict)
    timer_overdue_ms: int = 0
    sums: Mapping[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    unchecked: str | None = None

    def add(self, other: TopicReport) -> None:
        """Add all but the findings of a report on another partition of the topic."""
        self.checked += other.checked
        self.timer_overdue_ms = max(self.timer_overdue_ms, other.timer_overdue_ms)
        self.unchecked = self.unchecked or other.unchecked
        self.counts = {state: self.counts.get(state, 0) + count for state, count in other.counts.items()}
        self.sums = {name: self.sums.get(name, 0) + count for name, count in other.sums.items()}

    @property
    def clean(self) -> bool:
        """Whether everything was checked and nothing was found."""
        return not self.findings.counts and self.unchecked is None


@dataclass(slots=True)
class StoreReport:
    """The result of checking what belongs to no single topic.

    `unlisted` are topics with data that lists of topics leave out; `ConsistencyChecker.audit_topic` repairs them.
    `stray_keys` are up to 100 of the `stray_count` keys under deferd's prefix that belong to no topic; they are
    harmless.
    """

    repaired: bool
    findings: Findings = field(default_factory=Findings)
    unlisted: list[str] = field(default_factory=list)
    stray_keys: list[str] = field(default_factory=list)
    stray_count: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing was found; stray keys do not count."""
        return not self.findings.counts and not self.unlisted
