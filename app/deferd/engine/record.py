"""The record: the Job Pool's value for one job, with its metadata and body.

The scripts write it (`lua/lib/record.lua`), both sides read it::

    created_ms u48 | due_ms u48 | nonce u48 | attempts u32 | length of extra u32 | extra | body

all little-endian. `extra` is empty or a JSON object with short keys for what most jobs do not have: the fields of the
policy that differ from the service's defaults (the keys of `contract.fields`, as `policy_extra` has them), the due
time in ms from which the deadline counts once a retry has another one (`v`), the longest time in ms for which it is
kept when dead (`k`, a limit of the API key that put it), the trace context of the put (`c`), `g` tags and `h` headers
(neither is ever empty), its group (`gr`), its priority (`pr`, from 1), how long its id stays taken after it is finished
in ms (`u`), the latest due ms that its `max_wait` allows (`w`), the number of items that appends have made of its body
(`y`; 0 while they are in a list of their own), 1 while a follow-up waits for it (`o`), the receipt of the delivery that
finished the job whose place it took, as nonce and attempt (`p`), and what happened to the job (`e` last error, `d` why
it is dead, `da` since which ms, `f` finished at ms, `fb` by which consumer, `n` length of the result in bytes, which
then precedes the body, `s` how often it was snoozed, `a` the log of its attempts, `pg` the JSON of the last progress
that was reported, as a string, and `pa` when that was). `wt` is 1 once somebody waits for the job.
The body is kept as the JSON bytes of the put; scripts never parse it.

Of a job with opening hours or a spread, `wi` is the JSON of its `window`, as a string, `sp` its spread in ms, and `sh`
how much later it is due than was asked for, in ms. engine/placement.py computes it.

`attempts` counts the deliveries that have ended; while a job is reserved, one more is under way. The receipt of a
delivery is the pair of `nonce` (random for each job, and incremented when a delivery is returned without counting as
an attempt) and the delivery's number.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import orjson
import pydantic_core
from pydantic import BaseModel

from deferd.contract.ends import OnEnd
from deferd.contract.fields import PLACING, POLICY, Field, Kind
from deferd.contract.flow import limits_to_store, read_limits
from deferd.contract.model import JobPolicy, JobState
from deferd.contract.windows import read_window, window_text
from deferd.engine.partitions import topic_of
from deferd.store.durability_levels import level_named, name_of

_NONCE_DIGITS = 12
_RECEIPT = re.compile(r"[0-9a-f]{12}\.[1-9][0-9]{0,9}").fullmatch
_HEADER = struct.Struct("<IHIHIHII")
_HEADER_SIZE = _HEADER.size
_unpack = _HEADER.unpack_from
_RESERVED = JobState.RESERVED
STATES_BY_NAME = {state.value.encode(): state for state in JobState}
"""By their names in replies of scripts."""
NONCE_BITS = 47
ENOUGH_BYTES = 1024 * 1024
"""Once a pop has as many bytes of jobs, it asks no further topic or partition; pop.lua bounds the reply of one."""
_ATTRIBUTES = {
    "e": "last_error",
    "d": "reason",
    "da": "dead_at_ms",
    "f": "finished_at_ms",
    "fb": "finished_by",
    "c": "traceparent",
    "g": "tags",
    "h": "headers",
    "gr": "group",
    "pr": "priority",
    "u": "unique_for_ms",
    "w": "due_by_ms",
    "y": "items",
    "pg": "progress",
    "pa": "progress_at_ms",
}
"""By key: the attribute of a JobRecord that has its value."""
_KEYS = {field.name: field.key for field in POLICY}
_RARE_KEYS = frozenset({_KEYS["deadline"], _KEYS["backoff"], _KEYS["on_end"], *(_KEYS[name] for name in PLACING)})
"""With these a job shows more than its policy, or an object."""
_DEAD_RETAIN_OF_KEY, _WATCHED = "k", "wt"
"""The bound that the key of its put sets for `dead_retain`, and whether somebody waits for the job: nothing that a job
shows."""
PLAIN_KEYS = frozenset((*_KEYS.values(), _DEAD_RETAIN_OF_KEY, _WATCHED)) - _RARE_KEYS


class Receipt(NamedTuple):
    """Identifies one delivery of a job; see the module's docstring."""

    nonce: int
    attempt: int

    def __str__(self) -> str:
        return receipt_text(self.nonce, self.attempt)

    @classmethod
    def of(cls, text: str | None) -> Receipt:
        """Parse what `str` wrote; None is ANY_RECEIPT, any other text a receipt that no delivery ever has."""
        if text is None:
            return ANY_RECEIPT
        usual = _RECEIPT(text) is not None
        return cls(int(text[:_NONCE_DIGITS], 16), int(text[_NONCE_DIGITS + 1 :])) if usual else IMPOSSIBLE_RECEIPT


def receipt_text(nonce: int, attempt: int) -> str:
    """The receipt as consumers see it."""
    return f"{nonce:012x}.{attempt}"


ANY_RECEIPT = Receipt(0, 0)
"""Matches whichever delivery is live (attempts start at 1)."""
IMPOSSIBLE_RECEIPT = Receipt(0, -1)


class Endings(msgspec.Struct, frozen=True, gc=False):
    """How the deliveries of a job ended: what most jobs have nothing of.

    `snoozes` counts the releases that were no attempt. `first_due_at_ms` is the due time that the deadline counts from,
    if a retry has moved that. `attempts_log` has, for each of the last attempts that ended without a finish: its
    number, when it ended (ms), how, by which consumer and with which error; the last two are '' for none.
    """

    snoozes: int = 0
    first_due_at_ms: int | None = None
    attempts_log: Sequence[tuple[int, int, str, str, str]] = ()


NO_ENDINGS = Endings()


class Placement(msgspec.Struct, frozen=True, gc=False):
    """What moves the due times of a job: the JSON of its window, '' for none, and its spread.

    `moved_ms`: how much later than asked for the job is due.
    """

    window: str = ""
    spread_ms: int = 0
    moved_ms: int = 0


NOT_PLACED = Placement()


class JobRecord(msgspec.Struct, gc=False):
    """One job as the store holds it; treat as immutable. Times are ms since the epoch, on the store's clock.

    `body` and `result` are JSON bytes. `attempts` includes the delivery under way. `reserved_until_ms` and
    `reserved_by` are set while reserved. `request_id` is the one of the pop, if it had one. `extra` is the JSON object
    of the record, None without one: it has the policy.
    """

    topic: str
    id: str
    state: JobState
    created_at_ms: int
    due_at_ms: int
    nonce: int
    attempts: int
    body: bytes
    reserved_until_ms: int | None = None
    reserved_by: str | None = None
    request_id: str | None = None
    extra: dict[str, Any] | None = None
    last_error: str | None = None
    reason: str | None = None
    dead_at_ms: int | None = None
    finished_at_ms: int | None = None
    finished_by: str | None = None
    result: bytes | None = None
    traceparent: str | None = None
    tags: list[str] | None = None
    headers: dict[str, str] | None = None
    group: str | None = None
    priority: int = 0
    endings: Endings = NO_ENDINGS
    placement: Placement = NOT_PLACED
    unique_for_ms: int = 0
    due_by_ms: int | None = None
    batch: str | None = None
    items: int = 0
    """How many bodies appends have put into the array that is its body; 0 for other jobs."""
    progress: str | None = None
    """The JSON of the last progress that its consumer reported, at `progress_at_ms`."""
    progress_at_ms: int | None = None
    is_plain: bool = True
    """It has nothing of all this but a policy: responses to most calls need to ask no more."""
    is_follow_up: bool = False
    """It waits until the job with its id has ended."""
    followed_by: JobRecord | None = None
    """The job's follow-up, where a call reads it."""
    reserved_since_ms: int | None = None
    """When a reserved job was handed out, where a call reads it and it is known."""

    @property
    def receipt(self) -> Receipt:
        """The receipt of the live delivery; meaningless unless the job is reserved."""
        return Receipt(self.nonce, self.attempts)

    def stored(self, name: str) -> Any:
        """A field of its policy as it is stored, such as milliseconds; None if it is as by default."""
        return None if self.extra is None else self.extra.get(_KEYS[name])

    @property
    def deadline_at_ms(self) -> int | None:
        """When the deadline passes; None without one."""
        deadline_ms: int | None = self.stored("deadline")
        if not deadline_ms:
            return None
        first_due_at_ms = self.endings.first_due_at_ms
        return (self.due_at_ms if first_due_at_ms is None else first_due_at_ms) + deadline_ms


def read_record(  # noqa: PLR0917 (by position: see below)
    topic: str,
    job_id: str,
    state: JobState,
    raw: bytes,
    lease_end_ms: int | None = None,
    consumer: str | None = None,
    request_id: str | None = None,
) -> JobRecord:
    """Read one record. `lease_end_ms`, `consumer` and `request_id` belong to a reserved job.

    They are given by position, which takes less time.
    """
    created_low, created_high, due_low, due_high, nonce_low, nonce_high, attempts, extra_length = _unpack(raw)
    body_at = _HEADER_SIZE + extra_length
    record = JobRecord(
        topic,
        job_id,
        state,
        created_high << 32 | created_low,
        due_high << 32 | due_low,
        nonce_high << 32 | nonce_low,
        attempts + (state is JobState.RESERVED),
        raw[body_at:],
        lease_end_ms,
        consumer,
        request_id,
    )
    if extra_length:
        read_extra(record, orjson.loads(raw[_HEADER_SIZE:body_at]))
    return record


def read_deliveries(
    topic: str, deliveries: Sequence[Any], consumer: str | None, request_id: str | None
) -> list[JobRecord]:
    """The jobs in a reply of `lua/pop.lua`: id, record and lease end of each, one after the other.

    `topic` is their topic or partition.
    """
    topic = topic_of(topic)
    if len(deliveries) == 3:  # one job, as usual: without slices, in half of the time
        job_id, raw, lease_end_ms = deliveries
        return [read_record(topic, job_id.decode(), _RESERVED, raw, lease_end_ms, consumer, request_id)]
    return [
        read_record(topic, job_id.decode(), _RESERVED, raw, lease_end_ms, consumer, request_id)
        for job_id, raw, lease_end_ms in zip(deliveries[::3], deliveries[1::3], deliveries[2::3], strict=True)
    ]


def read_reply(topic: str, job_id: str, reply: Sequence[Any]) -> JobRecord:
    """The job in a script's reply `state, record, score, consumer`; the score is the lease end while reserved.

    Some scripts add since when it is held, 0 if that is not known. `topic` is its topic or partition.
    """
    topic = topic_of(topic)
    raw_state, raw, score, consumer, *since = reply
    state = STATES_BY_NAME[raw_state]
    if state is not JobState.RESERVED:
        return read_record(topic, job_id, state, raw)
    job = read_record(topic, job_id, state, raw, int(score), consumer.decode() or None)
    job.reserved_since_ms = (since[0] or None) if since else None
    return job


def read_extra(record: JobRecord, extra: dict[str, Any]) -> None:
    """Set what the JSON object of a record says of the job."""
    record.extra = extra
    if PLAIN_KEYS.issuperset(extra):
        return
    record.is_plain = False
    for key, value in extra.items():  # mostly one or two
        attribute = _ATTRIBUTES.get(key)
        if attribute is not None:
            setattr(record, attribute, value)
    get = extra.get
    if "ba" in extra:
        record.batch = extra["ba"].partition(" ")[0]  # which batch of this name: see lua/lib/batches.lua
    if "wi" in extra or "sp" in extra or "sh" in extra:
        record.placement = Placement(get("wi", ""), get("sp", 0), get("sh", 0))
    if "s" in extra or "v" in extra or "a" in extra:
        record.endings = Endings(get("s", 0), get("v"), get("a", ()))
    if "n" in extra:
        record.result, record.body = record.body[: extra["n"]], record.body[extra["n"] :]


def body_bytes(jobs: Sequence[JobRecord]) -> int:
    """The bytes of the jobs' bodies."""
    return sum(len(job.body) for job in jobs)


def instant_ms(at: datetime) -> int:
    """Convert an instant to the nearest whole millisecond since the epoch; 0 for any before it."""
    return max(round(at.timestamp() * 1000), 0)


def json_bytes(value: Any) -> bytes:
    """Encode a JSON value as compact bytes; integers of any size stay exact."""
    try:
        return orjson.dumps(value)
    except TypeError:  # orjson stops at 64-bit numbers
        return pydantic_core.to_json(value)


def to_ms(seconds: float) -> int:
    """Convert seconds to the nearest whole millisecond."""
    return round(seconds * 1000)


_TO_STORE: dict[Kind, Callable[[Any], Any]] = {
    Kind.SECONDS: to_ms,
    Kind.COUNT: int,
    Kind.BACKOFF: BaseModel.model_dump,
    Kind.WINDOW: window_text,
    Kind.TEXT: str,
    Kind.ON_END: OnEnd.to_store,
    Kind.DURABILITY: level_named,
    Kind.LIMITS: limits_to_store,
}
_NONE = {Kind.SECONDS: 0, Kind.COUNT: 0, Kind.WINDOW: "", Kind.TEXT: "", Kind.ON_END: False}
"""What stands for null."""
_FROM_STORE: dict[Kind, Callable[[Any], Any]] = {
    Kind.SECONDS: lambda ms: ms / 1000,
    Kind.WINDOW: read_window,
    Kind.DURABILITY: name_of,
    Kind.LIMITS: read_limits,
}


def to_store(field: Field, value: Any) -> Any:
    """A value of a model; None is null."""
    return _NONE[field.kind] if value is None else _TO_STORE[field.kind](value)


def from_store(field: Field, stored: Any) -> Any:
    """The value for the field of a model. None: null."""
    if field.null_is_none and field.kind in _NONE and stored == _NONE[field.kind]:
        return None
    read = _FROM_STORE.get(field.kind)
    return stored if read is None else read(stored)


def policy_extra(policy: JobPolicy) -> dict[str, Any]:
    """The fields that are set in `policy`, by their keys. Null counts only where it is a value."""
    extra: dict[str, Any] = {}
    for field in POLICY:
        value = getattr(policy, field.name)
        if value is not None or (field.null_is_none and field.name in policy.model_fields_set):
            extra[field.key] = to_store(field, value)
    return extra
