"""Encodes jobs as arguments of scripts, as the headers of these define them.

They are `lua/put.lua`, `change.lua`, `finish.lua`, `release.lua`, `touch.lua` and `bury.lua`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import orjson

from deferd.contract import limits
from deferd.contract.fields import PLACING
from deferd.contract.model import ChangeJob, JobPolicy, Labelled, PutJob
from deferd.engine.record import NONCE_BITS, Receipt, instant_ms, json_bytes, policy_extra, to_ms

Args = tuple[str, bytes | int]
"""A job's id, and what a script is to do with it."""

PUT_HEAD = struct.Struct("<BBQQII")
"""The fixed part of a job's argument in lua/put.lua; extra and body follow."""
PUT_HEAD_START, PUT_HEAD_END = struct.Struct("<BBQ"), struct.Struct("<II")
"""The same, without the nonce between them."""
NONCE_IN_HEAD_BYTES = 8
ON_CONFLICT = {"reject": 0, "keep": 1, "replace": 2, "append": 3}
_ONLY_LIVE, _AFTER, _HAS_MAX_WAIT, _HAS_FLOW, _HAS_END = 4, 8, 16, 32, 64
"""Added to the code of `on_conflict`, see lua/put.lua."""
DELAY, INSTANT = 0, 1
NONCE_BYTES = 6
_ATTEMPT_BYTES = 4
RECEIPT_BYTES = NONCE_BYTES + _ATTEMPT_BYTES
"""The bytes of a receipt as scripts read it."""
_RELEASE, _PLACED_RETRY, _TTR = struct.Struct("<qBd"), struct.Struct("<QQI"), struct.Struct("<Q")
"""What follows the receipt in the arguments of lua/release.lua, in two parts, and of lua/touch.lua."""
_HAS_ERROR, _COUNTS = 1, 2
_BY_BACKOFF = -1
_NO_ATTEMPT = 2**32 - 1
"""An attempt number that no delivery ever has."""
_EXTRA_FIELDS = frozenset(
    (*JobPolicy.model_fields, *Labelled.model_fields, "traceparent", "unique_for", "max_wait", "max_items", "batch")
)

_LABEL_KEYS = {"tags": "g", "headers": "h", "group": "gr", "priority": "pr"}


class PutBounds(NamedTuple):
    """Limits of the caller's API key on its puts. None: only the limits of topic and service apply.

    `max_jobs`: a put is refused when its topic has this many live jobs. `dead_retain_ms`: the longest time for which
    its jobs are kept when dead. `body_bytes` is the service's limit, of the array that appends make.
    """

    max_jobs: int | None = None
    dead_retain_ms: int | None = None
    body_bytes: int = limits.BODY_DEFAULT_BYTES


NO_BOUNDS = PutBounds()


class WindowAndSpread(NamedTuple):
    """How to place the due time of a put: the JSON of its window, '' for none, and its spread in ms, 0 for none.

    None means the value of the topic.
    """

    window: str | None
    spread_ms: int | None


class EncodedPut(msgspec.Struct, frozen=True, gc=False):
    """A put that is ready to be sent: `job` is the argument of lua/put.lua, unless it is still to be placed."""

    topic: str
    id: str
    durability: str | None
    job: bytes
    to_place: WindowAndSpread | None = None
    """If set, engine/placement.py must place the due time and add this to the record."""
    tags: Sequence[str] = ()
    """They are in `job`, too; here for quotas, which count their entries in the index."""
    has_new_id: bool = False
    """Whether the service made the id, which no other job can have."""
    batch: str | None = None
    """Its batch. It is in `job`, too; here for permissions, and to say in which shard it is."""

    @property
    def has_flow(self) -> bool:
        """Whether the job has a group or a priority."""
        return self.job[0] & _HAS_FLOW > 0

    @property
    def end_topic(self) -> str | None:
        """The topic into which its end puts a job; None for a put without `on_end`."""
        on_end = self.extra.get("oe") if self.job[0] & _HAS_END else None
        return on_end["topic"] if on_end else None  # False stands for null

    @property
    def extra(self) -> dict[str, Any]:
        """The `extra` of its record, without window and spread."""
        *_, length = PUT_HEAD.unpack_from(self.job)
        extra: dict[str, Any] = orjson.loads(self.job[PUT_HEAD.size : PUT_HEAD.size + length] or b"{}")
        return extra


class EncodedFinish(msgspec.Struct, frozen=True, gc=False):
    """A finish that is ready to be sent: `argument` follows the id in the arguments of lua/finish.lua."""

    id: str
    argument: bytes

    @property
    def result_bytes(self) -> int:
        """How long its result is; 0 without one."""
        return len(self.argument) - RECEIPT_BYTES

    @property
    def args(self) -> Args:
        """The arguments for this job."""
        return self.id, self.argument


class EncodedRelease(msgspec.Struct, frozen=True, gc=False):
    """A release that is ready to be sent: its parts follow the id in the arguments of lua/release.lua, in one.

    `counts`: the delivery counts as an attempt.
    """

    id: str
    start: bytes
    error: bytes
    counts: bool
    placed: bytes = _PLACED_RETRY.pack(0, 0, 0)

    @property
    def args(self) -> Args:
        """The arguments for this job."""
        return self.id, self.start + self.placed + self.error

    def with_retry_at(self, window_and_spread: bytes, due_ms: int, moved_ms: int) -> EncodedRelease:
        """The release with the due time of the retry, as its window and spread have moved it."""
        placed = _PLACED_RETRY.pack(due_ms, moved_ms, len(window_and_spread)) + window_and_spread
        return EncodedRelease(self.id, self.start, self.error, self.counts, placed)


def encode_put(spec: PutJob, bounds: PutBounds = NO_BOUNDS) -> EncodedPut:
    """Encode a put; it gets an id if it has none."""
    extra = _put_extra(spec, bounds)
    if spec.delay is not None:
        when, when_ms = DELAY, to_ms(spec.delay)
    elif spec.run_at is not None:
        when, when_ms = INSTANT, instant_ms(spec.run_at)
    else:
        when, when_ms = DELAY, 0
    nonce = random.getrandbits(NONCE_BITS)
    head = PUT_HEAD.pack(conflict_code(spec), when, when_ms, nonce, bounds.max_jobs or 0, len(extra))
    # One argument, not two: bytes from orjson occupy a kilobyte until they are copied.
    job = head + extra + json_bytes(spec.body)
    to_place = None
    if not spec.model_fields_set.isdisjoint(PLACING):
        policy = policy_extra(spec)
        to_place = WindowAndSpread(policy.get("wi"), policy.get("sp"))
    return EncodedPut(
        spec.topic,
        spec.id or new_id(),
        spec.durability,
        job,
        to_place,
        all_tags(spec),
        has_new_id=spec.id is None,
        batch=spec.batch,
    )


def all_tags(put: Any) -> Sequence[str]:
    """The tags of a put, with that of its batch. `put` has the fields of a PutJob."""
    if put.batch is None:
        return put.tags or ()
    tag = limits.BATCH_TAG + put.batch
    return [*(one for one in put.tags or () if one != tag), tag]


def conflict_code(put: Any) -> int:
    """The options of a put, see lua/put.lua. `put` has the fields of a PutJob."""
    code = ON_CONFLICT[put.on_conflict]
    if put.conflict_with == "live":
        code += _ONLY_LIVE
    if put.if_reserved == "after":
        code += _AFTER
    if put.max_wait is not None:
        code += _HAS_MAX_WAIT
    if put.batch is not None and not put.on_end:
        code += _HAS_END
    return code + record_code(put)


def record_code(job: Any) -> int:
    """What the options of a put have in addition for fields that concern more than the job's own record."""
    return flow_code(job) + (_HAS_END if job.on_end else 0)


def flow_code(job: Any) -> int:
    """What the options of a put have in addition if the job has a group or a priority, see lua/put.lua."""
    return _HAS_FLOW if job.group is not None or job.priority else 0


def _put_extra(spec: PutJob, bounds: PutBounds) -> bytes:
    """The record's `extra`, without window and spread; empty for a job without any other of its fields."""
    if (
        bounds.dead_retain_ms is None
        and spec.on_conflict != "append"
        and spec.model_fields_set.isdisjoint(_EXTRA_FIELDS)
    ):
        return b""
    extra = policy_extra(spec)
    for key in ("wi", "sp"):
        extra.pop(key, None)
    add_put_fields(extra, spec, bounds)
    return json_bytes(extra) if extra else b""


def add_put_fields(extra: dict[str, Any], put: Any, bounds: PutBounds) -> None:
    """Add the fields that are not part of the policy to the `extra` of a record. `put` has the fields of a PutJob."""
    if put.on_conflict == "append":
        extra["z"] = bounds.body_bytes
        if put.max_items is not None:
            extra["y"] = put.max_items
    if bounds.dead_retain_ms is not None:
        extra["k"] = bounds.dead_retain_ms
    if put.traceparent is not None:
        extra["c"] = put.traceparent
    if put.batch is not None:
        extra["ba"] = put.batch
    if tags := all_tags(put):
        extra["g"] = tags
    if put.headers:
        extra["h"] = put.headers
    if put.group is not None:
        extra["gr"] = put.group
    if put.priority:
        extra["pr"] = put.priority
    if put.unique_for is not None:
        extra["u"] = to_ms(put.unique_for)
    if put.max_wait is not None:
        extra["w"] = to_ms(put.max_wait)


def change_extra(change: ChangeJob) -> dict[str, Any]:
    """The keys of the record's `extra` that a change sets; None removes one."""
    extra = policy_extra(change)
    for key in ("wi", "sp"):
        if key in extra:
            extra[key] = extra[key] or None
    for name, key in _LABEL_KEYS.items():
        if name in change.model_fields_set:
            extra[key] = getattr(change, name) or None
    return extra


def when_args(change: ChangeJob) -> tuple[str, int]:
    """The new due time of a change: its kind, and the value in ms; ("", 0) to leave it as it is."""
    if change.delay is not None:
        return "delay", to_ms(change.delay)
    if change.run_at is not None:
        return "at", instant_ms(change.run_at)
    return "", 0


def encode_finish(job_id: str, receipt: Receipt, result: Any) -> EncodedFinish:
    """Encode a finish. A `result` of None is none."""
    return EncodedFinish(job_id, receipt_bytes(receipt) + (b"" if result is None else json_bytes(result)))


def encode_release(
    job_id: str, receipt: Receipt, *, delay_ms: int | None, error: str | None, counts: bool
) -> EncodedRelease:
    """Encode a release. A `delay_ms` of None: after the job's backoff."""
    flags = (error is not None) * _HAS_ERROR + counts * _COUNTS
    jitter = 2 * random.random() - 1  # noqa: S311 (spreads retries; nothing to guess)
    start = receipt_bytes(receipt) + _RELEASE.pack(_BY_BACKOFF if delay_ms is None else delay_ms, flags, jitter)
    return EncodedRelease(job_id, start, (error or "").encode(), counts)


def encode_touch(job_id: str, receipt: Receipt, ttr_ms: int | None, progress: Any = None) -> Args:
    """Encode a touch. A `ttr_ms` of None means the job's own. A `progress` of None is none."""
    return job_id, receipt_bytes(receipt) + _TTR.pack(ttr_ms or 0) + (b"" if progress is None else json_bytes(progress))


def progress_bytes(touch: Args) -> int:
    """How long the progress of an encoded touch is; 0 without one."""
    return size(touch) - len(touch[0]) - RECEIPT_BYTES - _TTR.size


def encode_bury(job_id: str, receipt: Receipt, error: str | None) -> Args:
    """Encode the burial of a job."""
    return job_id, b"%b%c%b" % (receipt_bytes(receipt), error is not None, (error or "").encode())


def receipt_bytes(receipt: Receipt) -> bytes:
    """A receipt as scripts read it: nonce u48 | attempt u32.

    An invalid receipt becomes one that matches no delivery.
    """
    nonce, attempt = receipt
    if not 0 <= attempt < _NO_ATTEMPT or nonce >> NONCE_BYTES * 8:
        nonce, attempt = 0, _NO_ATTEMPT
    return nonce.to_bytes(NONCE_BYTES, "little") + attempt.to_bytes(_ATTEMPT_BYTES, "little")


def new_nonces(count: int) -> list[bytes]:
    """Random nonces as they are in PUT_HEAD."""
    size = NONCE_IN_HEAD_BYTES * count
    together = (random.getrandbits(8 * size) & _nonce_bits(count)).to_bytes(size, "little")
    return [together[at : at + NONCE_IN_HEAD_BYTES] for at in range(0, size, NONCE_IN_HEAD_BYTES)]


@lru_cache(maxsize=16)
def _nonce_bits(count: int) -> int:
    """Random bits for a number of nonces, one after the other."""
    one: int = (1 << NONCE_BITS) - 1
    return int.from_bytes(one.to_bytes(NONCE_IN_HEAD_BYTES, "little") * count, "little")


def size_of_put(put: EncodedPut) -> int:
    """The approximate size of its arguments in bytes."""
    return len(put.id) + len(put.job)


def size(args: Args) -> int:
    """The approximate size of arguments in bytes."""
    job_id, argument = args
    return len(job_id) + (0 if isinstance(argument, int) else len(argument))


def size_of_release(release: EncodedRelease) -> int:
    """The approximate size of its arguments in bytes."""
    return len(release.id) + len(release.start) + len(release.placed) + len(release.error)


def new_id() -> str:
    """A random id for a job that was put without one."""
    return f"{random.getrandbits(128):032x}"
