"""Deliveries as a client reads them, for tests without a service."""

from __future__ import annotations

from typing import Any

from msgspec import convert

from deferd.client import Delivery

FIELDS: dict[str, Any] = {
    "topic": "t",
    "id": "a",
    "state": "reserved",
    "body": None,
    "created_at": "2030-01-31T09:30:00.000Z",
    "due_at": "2030-01-31T09:30:01.500Z",
    "attempts": 1,
    "ttr": 60,
    "max_attempts": None,
    "backoff": {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0},
    "ttl": None,
    "retain": 0,
    "reserved_until": "2030-01-31T09:31:01.500Z",
    "receipt": "0000075bcd15.1",
    "attempt": 1,
}


def delivery_of(**fields: Any) -> Delivery:
    """The delivery of a job that has these fields in JSON, and usual ones."""
    return convert({**FIELDS, **fields}, Delivery)
