"""Checks the store's consistency on a live service, and repairs it.

Each step is one bounded script that compares data of one instant, so a busy topic raises no false alarm. After each
step the checker pauses for as long as the step took.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.finding_kinds import FindingKind
from deferd.contract.limits import TOPIC_PATTERN
from deferd.contract.model import JobState
from deferd.contract.timestamps import instant_text
from deferd.engine.consistency.findings import (
    EXAMPLES_MAX,
    STEP,
    Finding,
    Findings,
    StoreReport,
    TopicReport,
    paced,
    read_findings,
    text,
)
from deferd.engine.consistency.partition_check import PartitionCheck, in_words
from deferd.engine.consistency.schedule_check import ScheduleCheck
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import is_partition_name, number_of, topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.schedules.schedules import Schedules
from deferd.engine.scripts import Scripts
from deferd.engine.topic_settings import UNREADABLE_SETTINGS, read_settings
from deferd.engine.topic_view import STATES

_STEP_OF_ITEMS = 10
"""Jobs of which one script call reads all collected items."""
_LONGEST_WAIT_S = 20
_TOPIC_KEY_TYPES = (
    *("hash", *["zset"] * 6, "hash", "zset", "hash", "zset", "zset", *["hash"] * 3, "zset"),  # KEYS of lib/topic.lua
    *("hash", "hash", "hash"),
)
_SHARD_KEY_TYPES = {
    "settings": "hash",
    "topics": "zset",
    "due": "zset",
    "schedules": "zset",
    "schedule_due": "zset",
    "earlier_runs": "zset",
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
            partitions = PartitionCheck(self._scripts, self._keys, self._partitions, report)
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
        report.add(await _TopicCheck(self._scripts, self._keys, partition, report).run())

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
            schedules = ScheduleCheck(self._scripts, self._keys, self._schedules, report)
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
                args = ("partitions", cursor, STEP)
                cursor, names, *_ = await paced(self._scripts.run("audit_names", keys, args))
                for name in filter(is_partition_name, map(text, names)):
                    topic = topic_of(name)
                    if name in self._keys.partitions.of(topic):
                        continue
                    await self._partitions.refresh(topic)
                    if name not in self._keys.partitions.of(topic):
                        detail = f"the topic has {self._keys.partitions.count(topic)}"
                        report.findings.add(Finding(FindingKind.PARTITION_UNKNOWN, in_words(name), detail))

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

    def __init__(self, scripts: Scripts, keys: Keys, topic: str, whole: TopicReport) -> None:
        self._scripts = scripts
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
            report.findings.add(Finding(FindingKind.SETTINGS_UNREADABLE, in_words(self._topic), shown))
        await self._check_jobs()
        for name in _SETS:
            await self._check_members(name)
        after = await self._step("audit_sums", unreadable)
        if after is not None:
            self._read_sums(after)
        return report

    async def _check_jobs(self) -> None:
        cursor: bytes | int = 0
        while cursor != b"0":
            cursor, checked, found = await self._step("audit_pool", cursor, STEP)
            self._report.checked += checked
            self._add_findings(found)

    async def _check_members(self, name: str) -> None:
        cursor: bytes | int = 0
        while cursor != b"0":
            step = _STEP_OF_ITEMS if name == "items" else STEP
            cursor, _, found = await self._step("audit_members", name, cursor, step)
            self._add_findings(found)

    def _add_findings(self, found: list[bytes]) -> None:
        for one in read_findings(found):
            detail = one.detail
            if one.kind in _HAS_TIMESTAMPS:
                detail = _EPOCH_MS.sub(lambda ms: instant_text(int(ms[0])), detail)
            if one.subject == self._topic:
                self._report.findings.add(Finding(one.kind, in_words(one.subject), detail))
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
        return await paced(self._scripts.run(verb, self._keys, (self._topic, int(does_repair), *args)))


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
            reply = await paced(scripts.run("audit_names", names[:2], (where, cursor, STEP)))
            cursor, topics, strays, settings, of_tags, lists, schedules = reply
            if of_tags:
                await _check_tags(scripts, [*map(text, of_tags), all_names[-1]], report)
            if schedules:
                await check_schedules(shard, list(map(text, schedules)))
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
                    if len(report.stray_keys) < EXAMPLES_MAX:
                        report.stray_keys.append(stray)


async def _check_tags(scripts: Scripts, keys: list[str], report: StoreReport) -> None:
    """Check keys of the tag index; the last of `keys` is for what a repair moves aside."""
    first, after = 0, ""
    while first >= 0:
        args = (int(report.repaired), after, STEP)
        at, last, found = await paced(scripts.run("audit_tags", keys[first:], args))
        for one in read_findings(found):
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
            checked, found = await paced(scripts.run("audit_items", keys.of_consistency_check(topic), args))
            del ids[:checked]
            for one in read_findings(found):
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
