"""The fast paths for bodies of puts and of calls on deliveries: from JSON to arguments of scripts, without models.

`deferd.contract.model` and `deferd.api.request_body` are the specification. What is accepted here is stored byte for
byte as they would have it stored; anything else gives None, and then they decide and say what is wrong.

A body is parsed, since it is stored as `json_bytes` writes it: without whitespace, of two members with the same name
only the last. msgspec checks all of it on the way, as the parser of `request_body` does: numbers beyond a float's
range, UTF-8 and surrogate pairs. Its `Raw` would not, and to find out whether raw bytes are in that form takes longer.
Only a member that a later one of the same name replaces may be nested deeper than `limits.JSON_DEPTH_MAX` here.

`key` are the bounds of the API key of a call.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import msgspec
import orjson
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import astuple
from pydantic import TypeAdapter

from deferd.api.auth.api_keys import NO_BOUNDS as NO_KEY_BOUNDS
from deferd.api.auth.api_keys import Bounds
from deferd.api.request_body import PARSED_IN_THE_LOOP_BYTES, has_many_parts, without_collections
from deferd.contract import limits
from deferd.contract.backoff import Backoff
from deferd.contract.ends import OnEnd
from deferd.contract.errors import InvalidInput
from deferd.contract.fields import PLACING, POLICY, Field, Kind
from deferd.contract.json_values import is_deeper
from deferd.contract.model import TRACEPARENT_PATTERN, DurabilityLevel
from deferd.contract.timestamps import parse_instant
from deferd.contract.windows import WindowFields, WindowsFields
from deferd.engine.openings import read_openings
from deferd.engine.record import Receipt, instant_ms, json_bytes, to_ms, to_store
from deferd.engine.script_arguments import (
    DELAY,
    INSTANT,
    NONCE_BYTES,
    ON_CONFLICT,
    PUT_HEAD_END,
    PUT_HEAD_START,
    Args,
    EncodedFinish,
    EncodedPut,
    EncodedRelease,
    PutBounds,
    WindowAndSpread,
    add_put_fields,
    all_tags,
    conflict_code,
    encode_bury,
    encode_release,
    encode_touch,
    new_id,
    new_nonces,
    receipt_bytes,
)

Decoded = TypeVar("Decoded")

SINGLE_MAX_BYTES = 16 * 1024
"""The largest body of a single call: twice the largest request that takes a direct path."""
_ID_MAX = 255
_IDS = re.compile(rf"(?:{limits.ID_PATTERN.strip('^$')}\n)+")
_SHORTEST_DEEP_BYTES = 2 * limits.VALUE_DEPTH_MAX


class UnusualError(Exception):
    """The general path decides."""


def decoded(decode: Callable[..., Decoded], raw: bytes, key: Bounds, *args: Any) -> Decoded | None:
    """The result of `decode` for a body, the bounds of its key and `args`; None when the general path must decide."""
    if has_many_parts(raw):
        return None
    try:
        if not raw.isascii():
            raw.decode()  # of a repeated window or backoff, msgspec checks only the last
        if len(raw) <= PARSED_IN_THE_LOOP_BYTES:
            if key.max_depth is not None:
                _check_depth(raw, key.max_depth)
            return decode(raw, key, *args)
        with without_collections():
            if key.max_depth is not None:
                _check_depth(raw, key.max_depth)
            return decode(raw, key, *args)
    except (msgspec.MsgspecError, UnusualError, ValueError, RecursionError):  # ValueError: invalid UTF-8, an instant
        return None


def _check_depth(raw: bytes, most: int) -> None:
    """As `KeyUsage.check_depth` does. Most bodies have fewer brackets than the bound has levels."""
    if raw.count(b"{") + raw.count(b"[") > most and is_deeper(orjson.loads(raw), most):
        raise UnusualError


def check_ids(ids: Sequence[str]) -> None:
    """Raise UnusualError unless all are valid ids."""
    if "".join(ids).encode().isalnum() and all(ids) and max(map(len, ids)) <= _ID_MAX:
        return  # in a tenth of the time
    lines = "\n".join(ids) + "\n"  # one match for all takes a third of the time
    if _IDS.fullmatch(lines) is None or lines.count("\n") != len(ids):
        raise UnusualError


def stored_json(value: Any) -> bytes:
    """A value as it is stored. Raises UnusualError if it is too deep."""
    try:
        encoded = orjson.dumps(value)  # as json_bytes does, without another call
    except TypeError:
        encoded = json_bytes(value)
    if len(encoded) >= _SHORTEST_DEEP_BYTES and is_deeper(value, limits.VALUE_DEPTH_MAX):
        raise UnusualError
    return encoded


_KEPT_BYTES = 200
"""Windows, backoffs and ends up to this are kept: producers send the same few again and again. It bounds memory."""
_ID = re.compile(limits.ID_PATTERN)
_TOPIC = re.compile(limits.TOPIC_PATTERN)
_TRACEPARENT = re.compile(TRACEPARENT_PATTERN)
_TAG = re.compile(limits.TAG_PATTERN)
_GROUP = re.compile(limits.GROUP_PATTERN)
_BATCH = re.compile(limits.BATCH_NAME_PATTERN)
_HEADER_TEXT = re.compile(limits.HEADER_TEXT_PATTERN)
_DURABILITIES = frozenset((None, *get_args(DurabilityLevel)))


_POLICY = [field for field in POLICY if field.name not in PLACING]


class _PutFields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `model.PutJob` but the policy, with the bounds of numbers. Texts are checked afterwards."""

    topic: str
    body: Any = None
    id: str | None = None
    headers: Annotated[dict[str, str], Meta(max_length=limits.HEADERS_OF_JOB_MAX)] | None = None
    durability: str | None = None
    delay: Annotated[float, Meta(ge=0, le=limits.DELAY_MAX_S)] | None = None
    run_at: str | None = None
    window: Raw | UnsetType = UNSET
    spread: Annotated[float, Meta(ge=0, le=limits.SPREAD_MAX_S)] | UnsetType | None = UNSET
    tags: Annotated[tuple[str, ...], Meta(max_length=limits.TAGS_MAX)] | None = None
    group: str | None = None
    priority: Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX)] | None = None
    on_conflict: Literal["reject", "keep", "replace", "append"] = "reject"
    conflict_with: Literal["any", "live"] = "any"
    if_reserved: Literal["refuse", "after"] = "refuse"
    max_wait: Annotated[float, Meta(ge=0.001, le=limits.DELAY_MAX_S)] | None = None
    max_items: Annotated[int, Meta(ge=1, le=limits.ITEMS_MAX)] | None = None
    unique_for: Annotated[float, Meta(ge=0.001, le=limits.RETAIN_MAX_S)] | None = None
    batch: str | None = None
    traceparent: str | None = None


def _type_of(field: Field) -> Any:
    match field.kind:
        case Kind.SECONDS:
            return Annotated[float, Meta(ge=field.low, le=field.high)] | UnsetType | None
        case Kind.COUNT:
            return Annotated[int, Meta(ge=field.low, le=field.high)] | UnsetType | None
        case Kind.BACKOFF | Kind.ON_END:
            return Raw | UnsetType
    return Annotated[str, Meta(min_length=int(field.low), max_length=int(field.high))] | UnsetType | None


if TYPE_CHECKING:

    class _Put(_PutFields):
        backoff: Raw | UnsetType = UNSET
        on_end: Raw | UnsetType = UNSET

else:
    _Put = msgspec.defstruct(
        "_Put",
        [(field.name, _type_of(field), UNSET) for field in _POLICY],
        bases=(_PutFields,),
        forbid_unknown_fields=True,
        gc=False,
    )
_NAMES = _Put.__struct_fields__
_OPTIONS = slice(_NAMES.index("durability"), None)
"""The fields of a `_Put` that many jobs of a batch have in common, except headers, which are not hashable."""
_RARE = slice(_NAMES.index("tags"), None)
_NO_RARE = _Put.__struct_defaults__[_RARE.start - len(_NAMES) :]
"""Their values in a plain put, which has no headers either."""
_OF_POLICY = slice(len(_PutFields.__struct_fields__), None)
_NO_POLICY = (UNSET,) * len(_POLICY)


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    jobs: Annotated[list[_Put], Meta(min_length=1, max_length=limits.BATCH_MAX)]


class EncodedBatch(msgspec.Struct, frozen=True):
    """Stands for a `model.PutBatch` of these jobs."""

    jobs: list[EncodedPut]


_put_decoder = msgspec.json.Decoder(_Put)
_batch_decoder = msgspec.json.Decoder(_Batch)
_OBJECTS: dict[Kind, TypeAdapter[Any]] = {Kind.BACKOFF: TypeAdapter(Backoff), Kind.ON_END: TypeAdapter(OnEnd)}
_NULL = Raw(b"null")
_window_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    WindowFields | WindowsFields | Annotated[str, Meta(pattern=limits.TOPIC_PATTERN.replace("$", r"\Z"))] | None
)


def decode_put(raw: bytes, bounds: PutBounds, key: Bounds, traceparent: str | None = None) -> EncodedPut | None:
    """The put in the body of `POST /jobs`; None when the general path must decide.

    `key` are the bounds of its API key. `traceparent` is that of the request's header, which a put without one takes.
    """
    return decoded(_decode_put, raw, key, bounds, traceparent) if len(raw) <= SINGLE_MAX_BYTES else None


def decode_batch(raw: bytes, bounds: PutBounds, key: Bounds) -> EncodedBatch | None:
    """The puts in the body of `POST /jobs/batch`; None when the general path must decide."""
    return decoded(_decode_batch, raw, key, bounds)


def encode_strings(topic: str, jobs: Sequence[tuple[str, int]], bounds: PutBounds) -> list[EncodedPut]:
    """Puts of strings, each with its delay in ms, without options; `topic` is valid."""
    extra = _extra_of_key(bounds)
    end = PUT_HEAD_END.pack(bounds.max_jobs or 0, len(extra)) + extra
    starts: dict[int, bytes] = {}  # by delay: most jobs of a call have the same
    puts = []
    for (text, delay_ms), nonce in zip(jobs, new_nonces(len(jobs)), strict=True):
        start = starts.get(delay_ms)
        if start is None:
            start = starts[delay_ms] = PUT_HEAD_START.pack(ON_CONFLICT["reject"], DELAY, delay_ms)
        puts.append(
            EncodedPut(topic, new_id(), None, b"".join((start, nonce, end, orjson.dumps(text))), has_new_id=True)
        )
    return puts


def _check_times(put: _Put, key: Bounds) -> None:
    """As `KeyUsage.check_times` does."""
    retain, ttl = put.retain, put.ttl  # type: ignore[attr-defined]  # fields of the policy
    if key.max_retain is not None and retain is not UNSET and retain is not None and retain > key.max_retain:
        raise UnusualError
    if key.max_ttl is not None and ttl is not UNSET and (ttl is None or ttl > key.max_ttl):  # null means no bound
        raise UnusualError


def _decode_put(raw: bytes, key: Bounds, bounds: PutBounds, traceparent: str | None) -> EncodedPut:
    put = _put_decoder.decode(raw)
    if key is not NO_KEY_BOUNDS:
        _check_times(put, key)
    _make_hashable(put)
    start, end, to_place = _encode_options(put, bounds, traceparent)
    has_new_id = put.id is None
    if put.id is None:
        if _needs_id(put):
            raise UnusualError
        put.id = new_id()
    elif _ID.fullmatch(put.id) is None:
        raise UnusualError
    if _TOPIC.fullmatch(put.topic) is None:
        raise UnusualError
    [nonce] = new_nonces(1)
    job = start + nonce + end + stored_json(put.body)
    return EncodedPut(put.topic, put.id, put.durability, job, to_place, all_tags(put), has_new_id, put.batch)


def _decode_batch(raw: bytes, key: Bounds, bounds: PutBounds) -> EncodedBatch:
    puts = _batch_decoder.decode(raw).jobs
    if key is not NO_KEY_BOUNDS:
        for put in puts:
            _check_times(put, key)
    ids = [new_id() if put.id is None else put.id for put in puts]
    check_ids(ids)
    for topic in {put.topic for put in puts}:
        if _TOPIC.fullmatch(topic) is None:
            raise UnusualError
    known: dict[tuple[Any, ...], tuple[bytes, bytes, WindowAndSpread | None]] = {}
    jobs = []
    for put, job_id, nonce in zip(puts, ids, new_nonces(len(puts)), strict=True):
        _make_hashable(put)
        options: tuple[Any, ...] = astuple(put)[_OPTIONS]
        if put.headers:
            options = (*options, *put.headers.items())
        encoded = known.get(options)  # the jobs of a batch often have the same
        if encoded is None:
            encoded = known[options] = _encode_options(put, bounds)
        if put.id is None and _needs_id(put):
            raise UnusualError
        start, end, to_place = encoded
        job = b"".join((start, nonce, end, stored_json(put.body)))
        jobs.append(
            EncodedPut(put.topic, job_id, put.durability, job, to_place, all_tags(put), put.id is None, put.batch)
        )
    return EncodedBatch(jobs)


def _make_hashable(put: Any) -> None:
    """Give a put the bytes of its objects, which are compared, in place of their `Raw`."""
    if put.window is not UNSET:
        put.window = bytes(put.window)
    if put.backoff is not UNSET:
        put.backoff = bytes(put.backoff)
    if put.on_end is not UNSET:
        put.on_end = None if put.on_end == _NULL else bytes(put.on_end)


def _encode_options(
    put: _Put, bounds: PutBounds, traceparent: str | None = None
) -> tuple[bytes, bytes, WindowAndSpread | None]:
    """The parts before and after the nonce in the argument of a job, without the body, and `EncodedPut.to_place`.

    It does not check whether the put needs an id.
    """
    if put.durability not in _DURABILITIES:
        raise UnusualError
    when, when_ms = DELAY, 0
    if put.delay is not None:
        when_ms = to_ms(put.delay)
        if put.run_at is not None:
            raise UnusualError
    elif put.run_at is not None:
        when, when_ms = INSTANT, _due_ms(put.run_at)
    values = astuple(put)
    to_place = None if put.window is UNSET and put.spread is UNSET else _to_place(put)
    if put.traceparent is None:
        put.traceparent = traceparent
    if values[_RARE] == _NO_RARE and not put.headers:
        code = 0
        extra = _extra_of_key(bounds) if traceparent is None else _extra(put, _NO_POLICY, bounds)
    else:
        _check_terms(put)
        if put.tags or put.headers or put.group is not None:
            _check_labels(put)
        code = conflict_code(put)
        extra = _extra(put, values[_OF_POLICY], bounds)
    end = PUT_HEAD_END.pack(bounds.max_jobs or 0, len(extra)) + extra
    return PUT_HEAD_START.pack(code, when, when_ms), end, to_place


def _to_place(put: Any) -> WindowAndSpread:
    """`EncodedPut.to_place` of a put with a window, as bytes, or a spread."""
    raw, spread = put.window, put.spread
    window = None if raw is UNSET else (_known_window if len(raw) <= _KEPT_BYTES else _window)(raw)
    return WindowAndSpread(window, None if spread is UNSET else to_ms(spread or 0))


def _needs_id(put: _Put) -> bool:
    """As `deferd.contract.model` says."""
    has_terms = put.max_wait is not None or put.unique_for is not None
    return has_terms or put.on_conflict == "append" or put.if_reserved == "after"


def _check_terms(put: _Put) -> None:
    """As `deferd.contract.model` does, and the trace context."""
    appends, waits = put.on_conflict == "append", put.if_reserved == "after"
    if (waits and put.on_conflict == "reject") or (put.max_items is not None and not appends):
        raise UnusualError
    if put.max_wait is not None and (put.on_conflict in {"reject", "keep"} or put.max_wait < (put.delay or 0)):
        raise UnusualError
    if put.batch is not None and (appends or waits or _BATCH.fullmatch(put.batch) is None):
        raise UnusualError
    if put.traceparent is not None and _TRACEPARENT.fullmatch(put.traceparent) is None:
        raise UnusualError


def _check_labels(put: _Put) -> None:
    """As `deferd.contract.model` does."""
    if put.tags and (len(set(put.tags)) < len(put.tags) or not all(map(_TAG.fullmatch, put.tags))):
        raise UnusualError
    if put.group is not None and _GROUP.fullmatch(put.group) is None:
        raise UnusualError
    if put.headers:
        texts = [text for pair in put.headers.items() for text in pair]
        if not (all(put.headers) and all(map(_HEADER_TEXT.fullmatch, texts))):
            raise UnusualError
        if len("".join(texts).encode()) > limits.HEADERS_OF_JOB_BYTES:
            raise UnusualError


def _window(raw: bytes) -> str:
    """The JSON of a window as it is stored, '' for null. It is checked, but for whether a calendar exists."""
    spec = _window_decoder.decode(raw)
    if spec is None:
        return ""
    text = msgspec.json.encode(spec).decode()  # as `window_text` writes it
    try:
        if not isinstance(spec, str):
            read_openings(text)
    except InvalidInput:
        raise UnusualError from None
    return text


def _due_ms(run_at: str) -> int:
    at = parse_instant(run_at)
    if at.timestamp() > time.time() + limits.DELAY_MAX_S:
        raise UnusualError
    return instant_ms(at)


def _extra(put: _Put, policy: Sequence[Any], bounds: PutBounds) -> bytes:
    """As `script_arguments` makes it."""
    extra: dict[str, Any] = {}
    for field, value in () if policy == _NO_POLICY else zip(_POLICY, policy, strict=True):
        if type(value) is bytes:
            extra |= (_known_object if len(value) <= _KEPT_BYTES else _object)(field, value)
        elif value is not UNSET and (value is not None or field.null_is_none):
            extra[field.key] = to_store(field, value)
    add_put_fields(extra, put, bounds)
    return json_bytes(extra) if extra else b""


@lru_cache(maxsize=256)
def _extra_of_key(bounds: PutBounds) -> bytes:
    """The value for a put without any of these fields."""
    return _extra(_Put(topic=""), _NO_POLICY, bounds)


def _object(field: Field, raw: bytes) -> dict[str, Any]:
    value = msgspec.json.decode(raw)
    return {} if value is None else {field.key: to_store(field, _OBJECTS[field.kind].validate_python(value))}


_known_object = lru_cache(maxsize=256)(_object)
_known_window = lru_cache(maxsize=256)(_window)
"""Producers send the same few again and again. Longer ones are not kept, to bound the memory."""


_NONCE, _ATTEMPT = slice(0, 12), slice(12, None)
"""The parts of a receipt as `record.receipt_text` writes it."""
_DOT_AND_ATTEMPT = re.compile(r"\.[1-9][0-9]{0,8}")
_TTR = next(field for field in POLICY if field.name == "ttr")
_ReceiptText = Annotated[str, Meta(max_length=limits.RECEIPT_MAX)]
_ErrorText = Annotated[str, Meta(max_length=limits.ERROR_TEXT_MAX)]


class _Finish(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `model.FinishJob`."""

    receipt: _ReceiptText | None = None
    result: Any = None


class _FinishItem(_Finish, forbid_unknown_fields=True, gc=False, kw_only=True):
    """The fields of `model.FinishItem`."""

    id: str


class _Finishes(msgspec.Struct, forbid_unknown_fields=True):
    jobs: Annotated[list[_FinishItem], Meta(min_length=1, max_length=limits.BATCH_MAX)]


class EncodedFinishes(msgspec.Struct, frozen=True):
    """Stands for a `model.FinishBatch` of these jobs."""

    jobs: list[EncodedFinish]


class _Release(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `model.ReleaseJob`."""

    receipt: _ReceiptText | None = None
    count: bool = True
    delay: Annotated[float, Meta(ge=0, le=limits.DELAY_MAX_S)] | None = None
    error: _ErrorText | None = None


class _Touch(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `model.TouchJob`."""

    receipt: _ReceiptText | None = None
    ttr: Annotated[float, Meta(ge=_TTR.low, le=_TTR.high)] | None = None
    progress: Any = None


class _Bury(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `model.BuryJob`."""

    receipt: _ReceiptText | None = None
    error: _ErrorText | None = None


_finish_decoder = msgspec.json.Decoder(_Finish)
_finishes_decoder = msgspec.json.Decoder(_Finishes)
_release_decoder = msgspec.json.Decoder(_Release)
_touch_decoder = msgspec.json.Decoder(_Touch)
_bury_decoder = msgspec.json.Decoder(_Bury)


def decode_finish(raw: bytes, key: Bounds, job_id: str) -> EncodedFinish | None:
    """The finish in the body of `POST /jobs/{topic}/{id}/finish`; None when the general path must decide."""
    return decoded(_decode_finish, raw, key, job_id) if len(raw) <= SINGLE_MAX_BYTES else None


def decode_finishes(raw: bytes, _bounds: PutBounds, key: Bounds) -> EncodedFinishes | None:
    """The finishes in the body of `POST /topics/{topic}/finish`; None when the general path must decide."""
    return decoded(_decode_finishes, raw, key)


def decode_release(raw: bytes, key: Bounds, job_id: str) -> EncodedRelease | None:
    """The release in the body of `POST /jobs/{topic}/{id}/release`; None when the general path must decide."""
    return decoded(_decode_release, raw, key, job_id) if len(raw) <= SINGLE_MAX_BYTES else None


def decode_touch(raw: bytes, key: Bounds, job_id: str) -> Args | None:
    """The touch in the body of `POST /jobs/{topic}/{id}/touch`; None when the general path must decide."""
    return decoded(_decode_touch, raw, key, job_id) if len(raw) <= SINGLE_MAX_BYTES else None


def decode_bury(raw: bytes, key: Bounds, job_id: str) -> Args | None:
    """The burial in the body of `POST /jobs/{topic}/{id}/bury`; None when the general path must decide."""
    return decoded(_decode_bury, raw, key, job_id) if len(raw) <= SINGLE_MAX_BYTES else None


def _decode_finish(raw: bytes, _key: Bounds, job_id: str) -> EncodedFinish:
    finish = _finish_decoder.decode(raw)
    return _encode_finish(job_id, receipt_bytes(Receipt.of(finish.receipt)), finish.result)


def _encode_finish(job_id: str, receipt: bytes, result: Any) -> EncodedFinish:
    return EncodedFinish(job_id, receipt if result is None else receipt + stored_json(result))


def _decode_finishes(raw: bytes, _key: Bounds) -> EncodedFinishes:
    items = _finishes_decoder.decode(raw).jobs
    ids = [item.id for item in items]
    check_ids(ids)
    receipts = _usual_receipts([item.receipt or "" for item in items])
    if receipts is None:
        receipts = [receipt_bytes(Receipt.of(item.receipt)) for item in items]
    return EncodedFinishes(
        [
            EncodedFinish(item.id, receipt if item.result is None else receipt + stored_json(item.result))
            for item, receipt in zip(items, receipts, strict=True)
        ]
    )


def _usual_receipts(texts: list[str]) -> list[bytes] | None:
    """Receipts as scripts read them; None if one is not as `record.receipt_text` writes it.

    The nonces are converted together. Both their order and that of their bytes is reversed twice.
    """
    nonces = "".join([text[_NONCE] for text in reversed(texts)])
    try:
        together = bytes.fromhex(nonces)
    except ValueError:
        return None
    if together.hex() != nonces or len(together) != NONCE_BYTES * len(texts):  # upper case, spaces, too short
        return None
    together = together[::-1]
    attempts = {}
    for text in {text[_ATTEMPT] for text in texts}:
        if _DOT_AND_ATTEMPT.fullmatch(text) is None:
            return None
        attempts[text] = receipt_bytes(Receipt(0, int(text[1:])))[NONCE_BYTES:]
    starts = range(0, len(together), NONCE_BYTES)
    return [
        together[start : start + NONCE_BYTES] + attempts[text[_ATTEMPT]]
        for start, text in zip(starts, texts, strict=True)
    ]


def _decode_release(raw: bytes, _key: Bounds, job_id: str) -> EncodedRelease:
    release = _release_decoder.decode(raw)
    delay = release.delay
    if not release.count and (delay is None or delay < limits.SNOOZE_MIN_S):
        raise UnusualError
    delay_ms = None if delay is None else to_ms(delay)
    return encode_release(
        job_id, Receipt.of(release.receipt), delay_ms=delay_ms, error=release.error, counts=release.count
    )


def _decode_touch(raw: bytes, _key: Bounds, job_id: str) -> Args:
    touch = _touch_decoder.decode(raw)
    if touch.progress is not None and len(stored_json(touch.progress)) > limits.PROGRESS_BYTES:
        raise UnusualError
    ttr_ms = None if touch.ttr is None else to_ms(touch.ttr)
    return encode_touch(job_id, Receipt.of(touch.receipt), ttr_ms, touch.progress)


def _decode_bury(raw: bytes, _key: Bounds, job_id: str) -> Args:
    bury = _bury_decoder.decode(raw)
    return encode_bury(job_id, Receipt.of(bury.receipt), bury.error)
