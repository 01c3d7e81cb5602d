"""Schedules as the store holds them: reads them, and changes them by compare-and-set (`lua/schedule_apply.lua`)."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec import structs

from deferd.contract import limits
from deferd.contract.fields import PLACING
from deferd.contract.model import PutJob
from deferd.contract.operations.schedules_and_calendars import PutSchedule, ScheduledJob
from deferd.engine import zones
from deferd.engine.caches import BoundedCache
from deferd.engine.metrics import CountedTopics
from deferd.engine.placement import ANY_DEFAULT, ANY_NUMBER, OUTDATED, Terms, members_of, read_terms
from deferd.engine.record import NONCE_BITS
from deferd.engine.recurrence import Recurrence
from deferd.engine.redis_keys import Keys
from deferd.engine.schedule_planning import NOT_MOVED, PlannedRun, RunWindow, RunWindows
from deferd.engine.script_arguments import (
    INSTANT,
    NO_BOUNDS,
    ON_CONFLICT,
    PUT_HEAD,
    EncodedPut,
    PutBounds,
    WindowAndSpread,
    encode_put,
    record_code,
)
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Shelf

_DONE, _FULL, _MORE = 1, -3, -4
_KEEPS_RUN = 2
_DELETE = -1
_PAGE = 100
_ZONES = "schedules/zones"
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
"""What reading a schedule raises when another program has written it."""


class FullError(Exception):
    """The topic has no room for a run. Nothing was changed."""


class Found(NamedTuple):
    """The schedules with one name, the valid one first; more than one while it moves. `now_ms` is the store's time."""

    now_ms: int
    schedules: list[StoredSchedule]


@dataclass(frozen=True, slots=True)
class Change:
    """What to do with a schedule in one step. `rev` None: it must not exist yet.

    `withdraw` is the next run if it is to be cancelled, as topic and id; if that does not wait, nothing is done. With
    `keeps_run` it stays, and the rest is done only if it waits. With `withdraw_earlier`, all earlier runs that wait in
    that topic are cancelled too. `advance_at_ms` None: it makes no runs.
    """

    topic: str
    name: str
    rev: int | None
    advance_at_ms: int | None
    withdraw: tuple[str, str] = ("", "")
    withdraw_earlier: bool = False
    keeps_run: bool = False
    missed: int = 0
    fields: Mapping[str, str | bytes | int] = field(default_factory=dict)
    runs: Sequence[PlannedRun] = ()
    policy: str = ""
    max_jobs: int | None = None
    run_window: RunWindow = NOT_MOVED
    record_code: int = 0
    """That of the job of its runs."""


class DueSchedule(NamedTuple):
    """A schedule that must be advanced, or whose next run must be derived again. Its job has about `rest_bytes`.

    `next_ms` is when its next run was to be due, None for none; `is_next_waiting`: it waits for that, as it was put.
    """

    name: str
    rev: int
    topic: str
    definition: bytes
    state: bytes
    next_id: str
    next_ms: int | None
    runs: int
    waiting: int
    rest_bytes: int
    is_next_waiting: bool


class DueSchedules(NamedTuple):
    """Schedules that must be advanced, and the store's time.

    `zones_progress`: how far the shard's schedules are derived again by another release of the zones, if they are.
    """

    now_ms: int
    zones_progress: ZonesProgress
    looked_to: str
    schedules: list[DueSchedule]


class ZonesProgress(Enum):
    """How far the runs of a shard's schedules are derived again; as in lua/schedules_due.lua."""

    UP_TO_DATE = 0
    MORE = 1
    LAST_STEP = 2


class ScheduleStore:
    """Every method raises StoreUnavailable when the store does not respond."""

    def __init__(self, scripts: Scripts, keys: Keys, windows: RunWindows, counted: CountedTopics, shelf: Shelf) -> None:
        self._scripts = scripts
        self._shelf = shelf
        self._counted = counted
        self.keys = keys
        self._windows = windows

    async def find(self, name: str) -> Found:
        """All schedules with this name. Raises one of UNREADABLE."""
        replies = await asyncio.gather(*(self._get(shard, name) for shard in range(self.keys.shards)))
        found = [
            replace(
                _read_schedule(name, shard, pairs),
                next_job_due_ms=due_ms or None,
                first_earlier=(earlier_id.decode(), earlier_due_ms) if earlier_id else None,
            )
            for shard, (_, pairs, due_ms, earlier_id, earlier_due_ms) in enumerate(replies)
            if pairs
        ]
        found.sort(key=lambda schedule: (schedule.version, schedule.shard), reverse=True)
        return Found(replies[0][0], found)

    async def now_ms(self) -> int:
        """The store's time."""
        now_ms, *_ = await self._get(0, "")
        return now_ms

    async def _get(self, shard: int, name: str) -> tuple[int, list[bytes], int, bytes, int]:
        now_ms, pairs, due_ms, earlier_id, earlier_due_ms = await self._scripts.run(
            "schedule_get", [self.keys.of_schedule(shard, name)], ()
        )
        return now_ms, pairs, due_ms, earlier_id, earlier_due_ms

    async def apply(self, change: Change, *, shelf_s: float | None = None) -> int | None:
        """Carry out a change; returns the new `rev`, None when the schedule or its topic's defaults have changed.

        `shelf_s`: how long to wait for the shelf.

        Raises:
            FullError: the topic has no room for the runs.
            StoreUnavailable.
        """
        fields = [part for pair in change.fields.items() for part in pair]
        return await self._apply(change, fields, len(change.fields), shelf_s)

    async def delete(self, change: Change) -> bool:
        """Delete a schedule, and withdraw a run; false when it has changed since it was read."""
        return await self._apply(change, [], _DELETE) is not None

    async def _apply(self, change: Change, fields: list[Any], count: int, shelf_s: float | None = None) -> int | None:
        other = change.withdraw[0]
        keys = self.keys.of_topic(change.topic)
        if other and other != change.topic:
            keys = (*keys, *self.keys.of_topic(other))
        runs: list[str | bytes] = []
        run_window = change.run_window
        for run in change.runs:
            head = _run_head(run.due_ms, change.max_jobs, ON_CONFLICT["keep"] + change.record_code)
            moved = members_of(run_window.window, run_window.spread_ms, run.moved_ms)
            runs += (run.id, head, f"{run.following_ms} {change.policy}", moved)
        asked = await self._shelf.ask(change.topic, [run.id for run in change.runs], within_s=shelf_s)
        args = (
            change.topic,
            change.name,
            "" if change.rev is None else change.rev,
            *change.withdraw,
            _KEEPS_RUN if change.keeps_run else int(change.withdraw_earlier),
            "" if change.advance_at_ms is None else change.advance_at_ms,
            change.missed,
            Terms(ANY_DEFAULT, ANY_NUMBER, run_window.topic_defaults, asked).argument(),
            count,
            *fields,
            *runs,
        )
        verb = "schedule_apply" if change.runs or "rest" in change.fields else "schedule_update"
        reply = await self._scripts.run(verb, keys, args)
        while reply[0] == _MORE:
            reply = await self._scripts.run(verb, keys, args)
        if reply[0] == _FULL:
            raise FullError
        if reply[0] == OUTDATED:
            terms = read_terms(reply[1:])
            self._windows.placer.note_defaults(change.topic, terms.due_defaults)
            if terms.asked:
                self._shelf.note_shelved(change.topic, terms.asked)
        if reply[0] != _DONE:
            return None
        self._counted.of(change.topic).put += len(change.runs)
        rev: int = reply[2]
        return rev

    async def due(self, shard: int, most: int, after: str) -> DueSchedules:
        """Up to `most` schedules of a shard that must be advanced.

        If its runs were derived by another release of the zones, also schedules by name, those after `after`.
        """
        keys = [self.keys.of_shard(shard, name) for name in ("schedule_due", "schedules", _ZONES, "due")]
        reply = await self._scripts.run("schedules_due", keys, (most, zones.TZDATA_VERSION, after))
        now_ms, progress, looked_to, *rows = reply
        found = []
        for name, fields in zip(rows[::2], rows[1::2], strict=True):
            rev, topic, definition, state, next_id, next_ms, runs, waiting, rest_bytes, is_next_waiting = fields
            found.append(
                DueSchedule(
                    name.decode(),
                    int(rev or 0),
                    topic.decode(),
                    definition or b"",
                    state or b"",
                    (next_id or b"").decode(),
                    int(next_ms or 0) or None,
                    int(runs or 0),
                    int(waiting or 0),
                    rest_bytes,
                    is_next_waiting == 1,
                )
            )
        return DueSchedules(now_ms, ZonesProgress(progress), looked_to.decode(), found)

    async def note_zones(self, shard: int) -> None:
        """Note that all runs of a shard were derived by this release of the zones."""
        await self._scripts.write("SET", self.keys.of_shard(shard, _ZONES), zones.TZDATA_VERSION)

    async def first_due_ms(self) -> int | None:
        """When the first schedule of all shards must be advanced; None when there is none."""
        firsts = await asyncio.gather(
            *(
                self._scripts.command("ZRANGE", self.keys.of_shard(shard, "schedule_due"), 0, 0, "WITHSCORES")
                for shard in range(self.keys.shards)
            )
        )
        return min((int(float(first[1])) for first in firsts if first), default=None)

    async def page(
        self, shard: int, after: str, prefix: str, *, with_jobs: bool
    ) -> tuple[list[tuple[str, StoredSchedule | None]], bool]:
        """Schedules of a shard after the name `after`, in order, and whether there are more.

        One that cannot be read is None.
        """
        first = f"({after}" if after >= prefix and after else f"[{prefix}" if prefix else "-"
        last = f"({prefix}\x7f" if prefix else "+"  # 0x7f is in no name
        key = self.keys.of_shard(shard, "schedules")
        more, *rows = await self._scripts.run("schedules_page", [key], (first, last, _PAGE, int(with_jobs)))
        found: list[tuple[str, StoredSchedule | None]] = []
        for name, pairs in zip(rows[::2], rows[1::2], strict=True):
            try:
                found.append((name.decode(), _read_schedule(name.decode(), shard, pairs)))
            except UNREADABLE:
                found.append((name.decode(errors="backslashreplace"), None))
        return found, more == 1


_RUN_HEAD = struct.Struct("<BBQQI")
"""The head of a job's argument in lua/put.lua without the length of `extra`, with which `rest` begins."""
_LENGTH_BYTES = PUT_HEAD.size - _RUN_HEAD.size


class ScheduleState(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The part of a schedule that only this package reads and writes; times are ms since the epoch.

    `occurrence_ms` is the last occurrence that was dealt with: the one of the next run, if there is one. `before_ms` is
    the one before it. If the schedule goes by local time, each has how far the zone was ahead of UTC then: so both keep
    their local times when another release of the zones has other rules. `max_jobs` and `dead_retain_ms` are the bounds
    of the key that put the schedule. `is_moving`: it was put into another shard and makes no runs until its name is
    only there.
    """

    created_ms: int = msgspec.field(name="c")
    updated_ms: int = msgspec.field(name="u")
    occurrence_ms: int | None = msgspec.field(default=None, name="o")
    is_paused: bool = msgspec.field(default=False, name="p")
    is_ended: bool = msgspec.field(default=False, name="e")
    is_moving: bool = msgspec.field(default=False, name="m")
    max_jobs: int | None = msgspec.field(default=None, name="j")
    dead_retain_ms: int | None = msgspec.field(default=None, name="k")
    offset_ms: int | None = msgspec.field(default=None, name="f")
    before_ms: int | None = msgspec.field(default=None, name="b")
    before_offset_ms: int | None = msgspec.field(default=None, name="g")

    def going_on_from(self, occurrence_ms: int, before_ms: int | None, recurrence: Recurrence) -> ScheduleState:
        """The state with these occurrences."""
        return structs.replace(
            self,
            occurrence_ms=occurrence_ms,
            offset_ms=recurrence.offset_ms(occurrence_ms),
            before_ms=before_ms,
            before_offset_ms=None if before_ms is None else recurrence.offset_ms(before_ms),
        )

    def dealt_with_ms(self, recurrence: Recurrence, *, but_next: bool) -> int | None:
        """The last occurrence that was dealt with, by the present rules of the zone.

        None if there was none. With `but_next` the occurrence of the next run does not count, as the run is put again.
        """
        at_ms, offset_ms = self.occurrence_ms, self.offset_ms
        if but_next:
            at_ms, offset_ms = self.before_ms, self.before_offset_ms
        return None if at_ms is None else recurrence.by_new_rules(at_ms, offset_ms)

    @property
    def is_active(self) -> bool:
        """Whether it makes runs."""
        return not (self.is_paused or self.is_ended)

    @property
    def bounds(self) -> PutBounds:
        """The bounds of its runs."""
        return NO_BOUNDS._replace(max_jobs=self.max_jobs, dead_retain_ms=self.dead_retain_ms)

    def stored(self) -> bytes:
        """As the field `state`."""
        return msgspec.json.encode(self)

    @staticmethod
    def read(stored: bytes) -> ScheduleState:
        """Read the field `state`. Raises ValueError when another program has written it."""
        return msgspec.json.decode(stored, type=ScheduleState)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule, its counters, and where it is; `lua/lib/schedules.lua` lists the fields of its hash.

    `body` is JSON, None when it was not read. `next_job_due_ms`: when the job of its next run is due, None when
    that does not wait any more. `first_earlier`: id and due time of the earlier run that is due first, if some wait
    because somebody postponed them. Both are only known of a schedule that was read alone.
    """

    name: str
    shard: int
    rev: int
    version: int
    definition: PutSchedule
    state: ScheduleState
    body: bytes | None
    next_id: str
    next_due_ms: int | None
    runs: int
    skips: int
    missed: int
    waiting: int
    last_due_ms: int | None
    last_id: str
    rest: bytes | None
    next_job_due_ms: int | None = None
    first_earlier: tuple[str, int] | None = None

    @property
    def topic(self) -> str:
        """The topic of its runs."""
        return self.definition.topic

    def job_now(self, job_id: str, now_ms: int, bounds: PutBounds) -> EncodedPut:
        """Its job as a put that is due at `now_ms`, also outside opening hours; only for a schedule that was read
        whole.
        """
        job = self.definition.job
        head = _run_head(now_ms, bounds.max_jobs, ON_CONFLICT["reject"] + record_code(job))
        return EncodedPut(self.topic, job_id, job.durability, head + (self.rest or b""), WindowAndSpread("", 0))


def _read_schedule(name: str, shard: int, pairs: Sequence[bytes]) -> StoredSchedule:
    """Read a schedule's hash, given as fields and values in turn.

    Raises:
        ValueError, KeyError: another program has written it.
    """
    fields: Mapping[bytes, bytes] = dict(zip(pairs[::2], pairs[1::2], strict=True))
    get = fields.get
    rest = get(b"rest")
    return StoredSchedule(
        name,
        shard,
        int(fields[b"rev"]),
        int(fields[b"version"]),
        read_definition(fields[b"definition"]),
        ScheduleState.read(fields[b"state"]),
        None if rest is None else body_of(rest),
        get(b"next_id", b"").decode(),
        int(get(b"next") or 0) or None,
        int(get(b"runs", 0)),
        int(get(b"skips", 0)),
        int(get(b"missed", 0)),
        int(get(b"waiting", 0)),
        int(get(b"last") or 0) or None,
        get(b"last_id", b"").decode(),
        rest,
    )


_definitions: BoundedCache[bytes, PutSchedule] = BoundedCache(16 * 1024 * 1024)
_NOT_IN_DEFINITION: Mapping[str, bool | Mapping[str, bool]] = {"paused": True, "job": {"body": True}}
_MODEL_BYTES = 2500
"""What a model needs for each object in its JSON, without the values."""
_BYTES_OF_A_BYTE = 6


def read_definition(stored: bytes) -> PutSchedule:
    """Read the field `definition`, which has no body. Raises ValueError."""
    definition = _definitions.get(stored)
    if definition is None:
        definition = PutSchedule.model_validate_json(_without_jitter(stored))
        _definitions.put(stored, definition, _MODEL_BYTES * stored.count(b"{") + _BYTES_OF_A_BYTE * len(stored))
    return definition


def _without_jitter(stored: bytes) -> bytes:
    """The JSON of a definition, with a spread of its job in place of the `jitter` that an earlier service stored."""
    if b'"jitter":' not in stored:
        return stored
    try:
        fields = orjson.loads(stored)
        if jitter := fields.pop("jitter"):
            job = fields.setdefault("job", {})
            job["spread"] = min((job.get("spread") or 0) + jitter, limits.SPREAD_MAX_S)
        return orjson.dumps(fields)
    except (AttributeError, KeyError, TypeError):  # it is the jitter of a backoff, or the definition is damaged
        return stored


def definition_to_store(definition: PutSchedule) -> bytes:
    """The field `definition`: what was given, without the body of the job."""
    given = definition.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=_NOT_IN_DEFINITION)
    return orjson.dumps(given, option=orjson.OPT_SORT_KEYS)


def rest_to_store(definition: PutSchedule, bounds: PutBounds) -> bytes:
    """The field `rest`: the job of each run, as lua/put.lua reads it after the head."""
    return encode_put(_put_of(definition), bounds).job[_RUN_HEAD.size :]


def _put_of(definition: PutSchedule) -> PutJob:
    """The job of a run as a put that names no due time."""
    job = definition.job
    given = {name: getattr(job, name) for name in job.model_fields_set.difference(PLACING)}
    return PutJob.model_construct(topic=definition.topic, id="-", **given)


def body_of(rest: bytes) -> bytes:
    """The body in the field `rest`, JSON."""
    return rest[_LENGTH_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "little") :]


def _run_head(due_ms: int, max_jobs: int | None, options: int) -> bytes:
    """The head of a run's job, which is due at an instant."""
    nonce = random.getrandbits(NONCE_BITS)
    return _RUN_HEAD.pack(options, INSTANT, due_ms, nonce, max_jobs or 0)


def job_fields(job: ScheduledJob) -> dict[str, Any]:
    """The fields that were given of a schedule's job, but its body, as JSON values."""
    return job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"body": True})
