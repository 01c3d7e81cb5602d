"""What makes a put safe to repeat: an id from before its first try, and knowing one's own job again."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from deferd.client.jobs import Job, read_backoff
from deferd.client.requests import as_json, job_fields
from deferd.contract.timestamps import parse_instant

TRACEPARENT: ContextVar[str | None] = ContextVar("deferd_traceparent", default=None)
"""The W3C trace context that goes with puts that name none: a worker sets it to that of the job in hand."""

_SAME_AS_PUT = ("max_attempts", "traceparent")
_DURATIONS = ("ttr", "ttl", "retain")
_ROUNDING_S = 0.0015


def new_id() -> str:
    """An id that nobody else makes, in this process or in one that was forked from it."""
    return uuid.uuid4().hex


def with_id(fields: dict[str, Any]) -> dict[str, Any]:
    """The job with an id, and with the trace that its put is a part of.

    An id that is made here can only meet its own earlier try, so to keep what is there is right.
    """
    if fields.get("id") is None:
        fields["id"] = new_id()
        fields.setdefault("on_conflict", "keep")
    traceparent = TRACEPARENT.get()
    if traceparent is not None:
        fields.setdefault("traceparent", traceparent)
    return fields


def is_as_put(stored: Job, fields: Mapping[str, Any]) -> bool:
    """Whether a stored job is in everything what a put says: then it counts as put by it."""
    wanted = as_json(job_fields(fields))
    if stored.body != wanted.get("body"):
        return False
    if "run_at" in wanted:
        run_at = parse_instant(wanted["run_at"])
        differs = abs((run_at - stored.due_at).total_seconds()) > _ROUNDING_S
        if not stored.attempts and run_at > stored.created_at and differs:
            return False
    elif not stored.attempts:  # once it was handed out and given back, it is due at another time
        waits_s = (stored.due_at - stored.created_at).total_seconds()
        if abs(waits_s - wanted.get("delay", 0)) > _ROUNDING_S:
            return False
    if "backoff" in wanted and stored.backoff != read_backoff(wanted["backoff"]):
        return False
    if any(_differ(stored.fields.get(name), wanted[name]) for name in _DURATIONS if name in wanted):
        return False
    return all(stored.fields.get(name) == wanted[name] for name in _SAME_AS_PUT if name in wanted)


def _differ(stored_s: float | None, wanted_s: float | None) -> bool:
    if stored_s is None or wanted_s is None:
        return stored_s is not wanted_s
    return abs(stored_s - wanted_s) > _ROUNDING_S
