"""Checks the store's consistency on a live service, and repairs it.

Each step is one bounded script that compares data of one instant, so a busy topic raises no false alarm. After each
step the checker pauses for as long as the step took.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.limits import TOPIC_PATTERN
from deferd.contract.model import JobState
from deferd.engine.consistency.findings import EXAMPLES_MAX, Finding, FindingKind, Findings, StoreReport, TopicReport
from deferd.engine.consistency.schedule_check import ScheduleCheck
from deferd.engine.redis_keys import Keys
from deferd.engine.schedules.schedules import Schedules
from deferd.engine.scripts import Scripts
from deferd.engine.topic_settings import UNREADABLE_SETTINGS, read_settings
from deferd.engine.topic_view import STATES

_STEP = 250
"""Jobs, ids or keys that one script call checks: about two milliseconds of the store's time."""
_STEP_OF_ITEMS = 10
"""Jobs of which one script call reads all collected items."""
_LONGEST_PAUSE_S = 0.1
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
    "push": "hash",
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

    def __init__(self, scripts: Scripts, keys: Keys, schedules: Schedules) -> None:
        self._scripts = scripts
        self._keys = keys
        self._schedules = schedules
        self._lock = asyncio.Lock()

    async def check_topic(self, topic: str, *, repair: bool = False) -> TopicReport:
        """Check all data of a topic; with `repair`, repair each finding in the script call that found it.

        Takes some tens of microseconds for each job, in bounded steps.

        Raises:
            TopicNotFound: the store has no data of the topic.
            StoreUnavailable: the check was not started or not completed; repairs made so far remain.
        """
        async with self._exclusive():
            return await _TopicCheck(self._scripts, self._keys, topic, repair).run()

    async def check_store(self, *, repair: bool = False) -> StoreReport:
        """Check what belongs to no single topic: unlisted topics, keys of the wrong type, stray keys.

        Reads all keys of the store, in bounded steps. `repair` renames keys of the wrong type; unlisted topics are
        repaired by `check_topic`.

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
            report.unlisted = sorted(unlisted)
            return report

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
    def __init__(self, scripts: Scripts, keys: Keys, topic: str, repair: bool) -> None:
        self._scripts = scripts
        self._topic = topic
        self._repair = repair
        self._keys = keys.of_consistency_check(topic)
        self._report = TopicReport(topic, repair)

    async def run(self) -> TopicReport:
        report = self._report
        wrong_types = await self._step("audit_types", *_TOPIC_KEY_TYPES)
        _add_wrong_types(report.findings, wrong_types)
        if wrong_types and not self._repair:
            report.unchecked = "all else: keys of the wrong type must be repaired first"
            return report
        before = await self._step("audit_sums", "", repair=False)
        if before is None:
            if not wrong_types:
                raise TopicNotFound(self._topic)
            return report
        settings = before[1] or b""
        unreadable = b"" if _are_readable(settings) else settings
        if unreadable:
            shown = _text(unreadable[:200])
            report.findings.add(Finding(FindingKind.SETTINGS_UNREADABLE, self._topic, shown))
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
            cursor, checked, found = await self._step("audit_pool", cursor, _STEP)
            self._report.checked += checked
            self._add_findings(found)

    async def _check_members(self, name: str) -> None:
        cursor: bytes | int = 0
        while cursor != b"0":
            step = _STEP_OF_ITEMS if name == "items" else _STEP
            cursor, _, found = await self._step("audit_members", name, cursor, step)
            self._add_findings(found)

    def _add_findings(self, found: list[bytes]) -> None:
        for name, subject, detail in zip(found[::3], found[1::3], found[2::3], strict=True):
            kind, shown = FindingKind[_text(name).upper()], _text(detail)
            if kind in _HAS_TIMESTAMPS:
                shown = _EPOCH_MS.sub(_to_rfc_3339, shown)
            self._report.findings.add(Finding(kind, _text(subject), shown))

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
        began_s = time.monotonic()
        reply = await self._scripts.run(verb, self._keys, (self._topic, int(does_repair), *args))
        await _pause(began_s)
        return reply


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
            began_s = time.monotonic()
            reply = await scripts.run("audit_names", names[:2], (where, cursor, _STEP))
            await _pause(began_s)
            cursor, topics, strays, settings, of_tags, lists, schedules = reply
            if of_tags:
                await _check_tags(scripts, [*map(_text, of_tags), all_names[-1]], report)
            if schedules:
                await check_schedules(shard, list(map(_text, schedules)))
            if lists:
                await _check_lists(scripts, keys, shard, list(map(_text, lists)), report)
            # Lists of topics leave out those whose settings cannot be read.
            pairs = zip(settings[::2], settings[1::2], strict=True)
            topics += [topic for topic, text in pairs if not _are_readable(text)]
            for topic in map(_text, topics):
                if _TOPIC_NAME.fullmatch(topic) and keys.shard_of(topic) == shard:
                    unlisted.add(topic)
                else:
                    strays.append(f"{topic} in {where} of shard {shard}".encode())
            for stray in map(_text, strays):
                if stray not in report.stray_keys:
                    report.stray_count += 1
                    if len(report.stray_keys) < EXAMPLES_MAX:
                        report.stray_keys.append(stray)


async def _check_tags(scripts: Scripts, keys: list[str], report: StoreReport) -> None:
    """Check keys of the tag index; the last of `keys` is for what a repair moves aside."""
    first, after = 0, ""
    while first >= 0:
        began_s = time.monotonic()
        at, last, found = await scripts.run("audit_tags", keys[first:], (int(report.repaired), after, _STEP))
        await _pause(began_s)
        for name, subject, detail in zip(found[::3], found[1::3], found[2::3], strict=True):
            report.findings.add(Finding(FindingKind[_text(name).upper()], _text(subject), _text(detail)))
        first, after = (first + at - 1, _text(last)) if at else (-1, "")


async def _check_lists(scripts: Scripts, keys: Keys, shard: int, lists: list[str], report: StoreReport) -> None:
    """Check lists of collected items in a shard: `lists` are the topic and the id of each."""
    of_topics: dict[str, list[str]] = {}
    for topic, job_id in zip(lists[::2], lists[1::2], strict=True):
        if _TOPIC_NAME.fullmatch(topic) and keys.shard_of(topic) == shard:
            of_topics.setdefault(topic, []).append(job_id)
    for topic, ids in of_topics.items():
        while ids:
            began_s = time.monotonic()
            checked, found = await scripts.run(
                "audit_items", keys.of_consistency_check(topic), [topic, int(report.repaired), *ids]
            )
            await _pause(began_s)
            del ids[:checked]
            for name, subject, detail in zip(found[::3], found[1::3], found[2::3], strict=True):
                named = f"{topic}/{_text(subject)}"
                report.findings.add(Finding(FindingKind[_text(name).upper()], named, _text(detail)))


def _add_wrong_types(findings: Findings, found: list[bytes]) -> None:
    for key, kind, moved_to in zip(found[::3], found[1::3], found[2::3], strict=True):
        detail = f"a {_text(kind)}" + (f", now at {_text(moved_to)}" if moved_to else "")
        findings.add(Finding(FindingKind.WRONG_TYPE, _text(key), detail))


async def _pause(began_s: float) -> None:
    """Leave the store to others for as long as the step took."""
    await asyncio.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))


def _are_readable(settings: bytes) -> bool:
    try:
        read_settings(orjson.loads(settings) if settings else {})
    except UNREADABLE_SETTINGS:
        return False
    return True


def _to_rfc_3339(ms: re.Match[str]) -> str:
    at = datetime.fromtimestamp(int(ms[0]) / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
