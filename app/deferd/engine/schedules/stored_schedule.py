"""A schedule as the store holds it; `lua/lib/schedules.lua` lists the fields of its hash."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from msgspec import structs

from deferd.contract import limits
from deferd.contract.fields import PLACING
from deferd.contract.model import PutJob
from deferd.contract.schedules import PutSchedule, ScheduledJob
from deferd.engine.bounded_cache import BoundedCache
from deferd.engine.record import NONCE_BITS
from deferd.engine.script_arguments import (
    INSTANT,
    NO_BOUNDS,
    ON_CONFLICT,
    PUT_HEAD,
    EncodedPut,
    Placing,
    PutBounds,
    encode_put,
)
from deferd.engine.timing.recurrence import Recurrence

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
    """A schedule, its counters, and where it is. `body` is JSON, None when it was not read.

    `next_job_due_ms`: when the job of its next run is due, None when that does not wait any more. `first_earlier`: id
    and due time of the earlier run that is due first, if some wait because somebody postponed them. Both are only known
    of a schedule that was read alone.
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
        head = run_head(now_ms, bounds.max_jobs, on_conflict="reject")
        durability = self.definition.job.durability
        return EncodedPut(self.topic, job_id, durability, head + (self.rest or b""), Placing("", 0))


def read_schedule(name: str, shard: int, pairs: Sequence[bytes]) -> StoredSchedule:
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
    except (AttributeError, KeyError, TypeError):  # it is that of a backoff, or the definition is damaged
        return stored


def definition_to_store(definition: PutSchedule) -> bytes:
    """The field `definition`: what was given, without the body of the job."""
    given = definition.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=_NOT_IN_DEFINITION)
    return orjson.dumps(given, option=orjson.OPT_SORT_KEYS)


def rest_to_store(definition: PutSchedule, bounds: PutBounds) -> bytes:
    """The field `rest`: the job of each run, as lua/put.lua reads it after the head."""
    return encode_put(put_of(definition), bounds).job[_RUN_HEAD.size :]


def put_of(definition: PutSchedule) -> PutJob:
    """The job of a run as a put that names no due time."""
    job = definition.job
    given = {name: getattr(job, name) for name in job.model_fields_set.difference(PLACING)}
    return PutJob.model_construct(topic=definition.topic, id="-", **given)


def body_of(rest: bytes) -> bytes:
    """The body in the field `rest`, JSON."""
    return rest[_LENGTH_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "little") :]


def run_head(due_ms: int, max_jobs: int | None, on_conflict: str = "keep") -> bytes:
    """The head of a run's job: due at an instant; a job that has its id stays."""
    nonce = random.getrandbits(NONCE_BITS)
    return _RUN_HEAD.pack(ON_CONFLICT[on_conflict], INSTANT, due_ms, nonce, max_jobs or 0)


def job_fields(job: ScheduledJob) -> dict[str, Any]:
    """The fields that were given of a schedule's job, but its body, as JSON values."""
    return job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"body": True})
