"""The audit: whether the store agrees with itself, on a live service, and its repair.

Each step is one bounded script, so what it compares is of one instant and a busy topic raises no false alarm. Between
two steps others have their turn for as long as the step took.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.limits import TOPIC_PATTERN
from deferd.contract.model import JobState
from deferd.engine.consistency.findings import EXAMPLES_MAX, Finding, FindingKind, Findings, Survey, TopicAudit
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import UNREADABLE
from deferd.engine.topics import read_settings

_STEP = 250
"""Jobs, ids or keys that one script call checks: about two milliseconds of the store's time."""
_LONGEST_PAUSE_S = 0.1
_LONGEST_WAIT_S = 20
_TOPIC_KINDS = ("hash", *["zset"] * 6, "hash", "zset", "hash", "zset", "zset", "hash", "hash")
_SHARD_KEYS = {"settings": "hash", "topics": "zset", "due": "zset"}
_SETS = ("delayed", "ready", "reserved", "dead", "finished", "expiry", "holders", "requests", "cancelled")
_STATES = (JobState.DELAYED, JobState.READY, JobState.RESERVED, JobState.DEAD, JobState.FINISHED)
_OUTCOMES = ("put", "finished", "cancelled", "dropped", "lost")
_TELLS_INSTANTS = frozenset(
    {
        *(FindingKind.IN_NO_PLACE, FindingKind.DUE_DIFFERS, FindingKind.EXPIRY_WRONG),
        *(FindingKind.LEASE_ENDLESS, FindingKind.TOMBSTONE_WRONG, FindingKind.TIMER_LATE),
    }
)
_INSTANT_MS = re.compile(r"\b\d{13}\b")
_TOPIC_NAME = re.compile(TOPIC_PATTERN)


class ConsistencyChecker:
    """The verbs of the audit. One audit runs at a time; further ones wait for up to 20 s, and are refused then."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._turn = asyncio.Lock()

    async def audit(self, topic: str, *, repair: bool = False) -> TopicAudit:
        """Check all that the store holds of a topic; with `repair`, mend what is found, each at the instant it is.

        Takes some tens of microseconds for each job, in bounded steps.

        Raises:
            TopicNotFound: the store holds nothing of it.
            StoreUnavailable: the audit is not finished, or not begun; what was mended stays so.
        """
        async with self._my_turn():
            return await _TopicCheck(self._scripts, self._keys, topic, repair).run()

    async def survey(self, *, repair: bool = False) -> Survey:
        """Look for what belongs to no single topic: topics that are not listed, keys of the wrong kind, strays.

        It goes through all keys of the store, in bounded steps. With `repair` keys of the wrong kind are moved out of
        the way; unlisted topics are mended by their own audits.

        Raises:
            StoreUnavailable: it is not finished.
        """
        async with self._my_turn():
            survey = Survey(repair)
            unlisted: set[str] = set()
            for shard in range(self._keys.shards):
                await _survey_shard(self._scripts, self._keys, shard, survey, unlisted)
            survey.unlisted = sorted(unlisted)
            return survey

    @asynccontextmanager
    async def _my_turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            raise StoreUnavailable("other audits are under way", retry_after_s=_LONGEST_WAIT_S) from None
        try:
            yield
        finally:
            self._turn.release()


class _TopicCheck:
    def __init__(self, scripts: Scripts, keys: Keys, topic: str, repair: bool) -> None:
        self._scripts = scripts
        self._topic = topic
        self._repair = repair
        self._keys = keys.of_consistency_check(topic)
        self._audit = TopicAudit(topic, repair)

    async def run(self) -> TopicAudit:
        audit = self._audit
        wrong_types = await self._step("audit_types", *_TOPIC_KINDS)
        _note_types(audit.findings, wrong_types)
        if wrong_types and not self._repair:
            audit.unchecked = "all else: keys of the wrong kind must be repaired first"
            return audit
        before = await self._step("audit_sums", "", repair=False)
        if before is None:
            if not wrong_types:
                raise TopicNotFound(self._topic)
            return audit
        settings = before[1] or b""
        unreadable = b"" if _are_readable(settings) else settings
        if unreadable:
            shown = _text(unreadable[:200])
            audit.findings.add(Finding(FindingKind.SETTINGS_UNREADABLE, self._topic, shown))
        await self._check_jobs()
        for name in _SETS:
            await self._check_members(name)
        after = await self._step("audit_sums", unreadable)
        if after is not None:
            self._note_sums(after)
        return audit

    async def _check_jobs(self) -> None:
        """All jobs of the pool."""
        cursor: bytes | int = 0
        while cursor != b"0":
            cursor, checked, found = await self._step("audit_pool", cursor, _STEP)
            self._audit.checked += checked
            self._note(found)

    async def _check_members(self, name: str) -> None:
        cursor: bytes | int = 0
        while cursor != b"0":
            cursor, _, found = await self._step("audit_members", name, cursor, _STEP)
            self._note(found)

    def _note(self, found: list[bytes]) -> None:
        for name, subject, detail in zip(found[::3], found[1::3], found[2::3], strict=True):
            kind, shown = FindingKind[_text(name).upper()], _text(detail)
            if kind in _TELLS_INSTANTS:
                shown = _INSTANT_MS.sub(_rfc_3339, shown)
            self._audit.findings.add(Finding(kind, _text(subject), shown))

    def _note_sums(self, reply: list[Any]) -> None:
        found, _, *counts, now_ms, first_work_ms = reply[: len(_STATES) + 4]
        self._note(found)
        audit = self._audit
        audit.counts = dict(zip(_STATES, counts, strict=True))
        audit.timer_overdue_ms = max(now_ms - first_work_ms, 0) if first_work_ms >= 0 else 0
        live = sum(audit.counts[state] for state in (JobState.DELAYED, JobState.READY, JobState.RESERVED))
        audit.sums = {
            **dict(zip(_OUTCOMES, reply[len(_STATES) + 4 :], strict=True)),
            "dead": audit.counts[JobState.DEAD],
            "live": live,
        }

    async def _step(self, verb: str, *args: str | bytes | int, repair: bool | None = None) -> Any:
        does_repair = self._repair if repair is None else repair
        began_s = time.monotonic()
        reply = await self._scripts.run(verb, self._keys, (self._topic, int(does_repair), *args))
        await _give_way(began_s)
        return reply


async def _survey_shard(scripts: Scripts, keys: Keys, shard: int, survey: Survey, unlisted: set[str]) -> None:
    names = [keys.of_shard(shard, name) for name in _SHARD_KEYS]
    all_names = [*names, keys.of_shard(shard, "aside")]
    wrong_types = await scripts.run("audit_types", all_names, ("", int(survey.repaired), *_SHARD_KEYS.values()))
    _note_types(survey.findings, wrong_types)
    if wrong_types and not survey.repaired:
        return
    for where in ("settings", "topics", "keys"):
        cursor: bytes | int = 0
        while cursor != b"0":
            began_s = time.monotonic()
            reply = await scripts.run("audit_names", names[:2], (where, cursor, _STEP))
            await _give_way(began_s)
            cursor, topics, strays, settings = reply
            # A list of topics leaves out those with settings that cannot be read.
            pairs = zip(settings[::2], settings[1::2], strict=True)
            topics += [topic for topic, text in pairs if not _are_readable(text)]
            for topic in map(_text, topics):
                if _TOPIC_NAME.fullmatch(topic) and keys.shard_of(topic) == shard:
                    unlisted.add(topic)
                else:
                    strays.append(f"{topic} in {where} of shard {shard}".encode())
            for stray in map(_text, strays):
                if stray not in survey.stray_keys:
                    survey.stray_count += 1
                    if len(survey.stray_keys) < EXAMPLES_MAX:
                        survey.stray_keys.append(stray)


def _note_types(findings: Findings, found: list[bytes]) -> None:
    for key, kind, moved_to in zip(found[::3], found[1::3], found[2::3], strict=True):
        detail = f"a {_text(kind)}" + (f", now at {_text(moved_to)}" if moved_to else "")
        findings.add(Finding(FindingKind.WRONG_TYPE, _text(key), detail))


async def _give_way(began_s: float) -> None:
    """Let others have the store for as long as a step took."""
    await asyncio.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))


def _are_readable(settings: bytes) -> bool:
    try:
        read_settings(orjson.loads(settings) if settings else {})
    except UNREADABLE:
        return False
    return True


def _rfc_3339(ms: re.Match[str]) -> str:
    at = datetime.fromtimestamp(int(ms[0]) / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
