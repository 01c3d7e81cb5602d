"""Signatures of Standard Webhooks, version 1: https://www.standardwebhooks.com

The signed content is ``id.timestamp.body``; a signature is its HMAC-SHA256 in base64. A request has one for each
secret, so that a receiver that knows either of them can verify it while secrets are rotated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping

from deferd.contract import limits

SECRET_PREFIX = "whsec_"  # noqa: S105 (precedes a secret)
TOLERANCE_S = 300
"""How far the time of a request may be from the receiver's clock; the specification leaves it to the receiver."""
_VERSION = "v1"


class BadSecret(ValueError):
    """The text is not a secret; the message does not quote it."""


class BadSignature(ValueError):
    """The request is not signed by one of the secrets, or is too old or too new."""


def secret_key(secret: str) -> bytes:
    """The key of a secret: ``whsec_`` and the base64 of 24 to 64 bytes.

    Raises:
        BadSecret.
    """
    low, high = limits.PUSH_SECRET_BYTES_MIN, limits.PUSH_SECRET_BYTES_MAX
    wanted = f"must be {SECRET_PREFIX} and the base64 of {low} to {high} bytes"
    if not secret.startswith(SECRET_PREFIX):
        raise BadSecret(f"{wanted}; it does not begin with {SECRET_PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSecret(f"{wanted}; what follows {SECRET_PREFIX} is not base64") from None
    if not low <= len(key) <= high:
        raise BadSecret(f"{wanted}; it has {len(key)} bytes")
    return key


def signatures(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header ``webhook-signature``: one signature for each key, separated by spaces."""
    content = f"{message_id}.{timestamp}.".encode() + body
    return " ".join(f"{_VERSION},{_signature(key, content)}" for key in keys)


def verify(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, now_s: float) -> None:
    """Check that one of the secrets signed a request; the names of `headers` are in lower case.

    Raises:
        BadSecret: one of the secrets is not a secret.
        BadSignature.
    """
    try:
        message_id, timestamp, given = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise BadSignature(f"the request has no header {missing.args[0]}") from None
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise BadSignature("the header webhook-timestamp is not a time in seconds")
    if abs(now_s - int(timestamp)) > TOLERANCE_S:
        raise BadSignature(f"the request was signed more than {TOLERANCE_S} seconds before or after now")
    content = f"{message_id}.{timestamp}.".encode() + body
    offered = [one.partition(",")[2] for one in given.split(" ") if one.partition(",")[0] == _VERSION]
    for secret in secrets:
        expected = _signature(secret_key(secret), content)
        if any(hmac.compare_digest(expected.encode(), one.encode()) for one in offered):
            return
    raise BadSignature("none of the signatures is right")


def _signature(key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
