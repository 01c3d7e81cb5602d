"""The fast path for the bodies of calls on deliveries; see `fast_decoding`.

`key` are the bounds of the API key of a call.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from deferd.api.auth.api_keys import Bounds
from deferd.api.fast_decoding import SINGLE_MAX_BYTES, UnusualError, check_ids, decoded, stored_json
from deferd.contract import limits
from deferd.contract.fields import POLICY
from deferd.engine.record import Receipt
from deferd.engine.script_arguments import (
    NONCE_BYTES,
    Args,
    EncodedFinish,
    EncodedRelease,
    PutBounds,
    encode_bury,
    encode_release,
    encode_touch,
    receipt_bytes,
)
from deferd.engine.stored_fields import to_ms

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
    return encode_touch(job_id, Receipt.of(touch.receipt), None if touch.ttr is None else to_ms(touch.ttr))


def _decode_bury(raw: bytes, _key: Bounds, job_id: str) -> Args:
    bury = _bury_decoder.decode(raw)
    return encode_bury(job_id, Receipt.of(bury.receipt), bury.error)
