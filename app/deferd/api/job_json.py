"""Jobs and topics as the JSON that the contract shows: seconds, RFC 3339 instants, and bodies as they came.

The engine speaks in milliseconds and in JSON bytes; nothing here parses a body again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from orjson import Fragment

from deferd.engine.record import JobRecord
from deferd.engine.topics import TopicView
from deferd.model import JobState


def instant(at_ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC, always with three decimals."""
    epoch_s, ms = divmod(at_ms, 1000)
    return f"{_to_the_second(epoch_s)}.{ms:03d}Z"


@lru_cache(maxsize=4096)
def _to_the_second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat()[:19]


def seconds(duration_ms: int) -> int | float:
    """Milliseconds as seconds; a whole number of seconds has no decimals."""
    return duration_ms / 1000 if duration_ms % 1000 else duration_ms // 1000


def job(record: JobRecord) -> dict[str, Any]:
    """The job, without those of its fields that only some jobs have when it has none."""
    shown: dict[str, Any] = {
        "topic": record.topic,
        "id": record.id,
        "state": record.state,
        "body": Fragment(record.body),
        "created_at": instant(record.created_at_ms),
        "due_at": instant(record.due_at_ms),
        "ttr": seconds(record.ttr_ms),
        "attempts": record.attempts,
        "max_attempts": record.max_attempts or None,
        "backoff": _whole_numbers(record.backoff) if record.backoff else record.effective_backoff,
        "ttl": seconds(record.ttl_ms) if record.ttl_ms else None,
        "retain": seconds(record.retain_ms),
    }
    if record.last_error is not None:
        shown["last_error"] = record.last_error
    if record.reason is not None:
        shown["reason"] = record.reason
    if record.reserved_until_ms is not None:
        shown["reserved_until"] = instant(record.reserved_until_ms)
    if record.reserved_by is not None:
        shown["reserved_by"] = record.reserved_by
    if record.finished_at_ms is not None:
        shown["finished_at"] = instant(record.finished_at_ms)
    if record.result is not None:
        shown["result"] = Fragment(record.result)
    return shown


def delivery(record: JobRecord) -> dict[str, Any]:
    """A reserved job with what its consumer needs: `receipt` and `attempt`."""
    shown = job(record)
    shown["receipt"] = str(record.receipt)
    shown["attempt"] = record.attempts
    return shown


def topic(view: TopicView) -> dict[str, Any]:
    """The topic; a setting that is `null` leaves the matter to the service's default."""
    age_ms, next_due_ms = view.oldest_ready_age_ms, view.next_due_at_ms
    settings = view.settings
    return {
        "topic": view.topic,
        "paused": view.paused,
        "counts": {state.value: view.counts.get(state, 0) for state in JobState},
        "oldest_ready_age": None if age_ms is None else seconds(age_ms),
        "next_due_at": None if next_due_ms is None else instant(next_due_ms),
        "settings": {
            "ttr": _whole_number(settings.ttr),
            "max_attempts": settings.max_attempts,
            "backoff": None if settings.backoff is None else _whole_numbers(settings.backoff.model_dump()),
            "ttl": _whole_number(settings.ttl),
            "retain": _whole_number(settings.retain),
            "max_jobs": settings.max_jobs,
        },
    }


def _whole_numbers(backoff: dict[str, Any]) -> dict[str, Any]:
    return {name: _whole_number(value) for name, value in backoff.items()}


def _whole_number(value: Any) -> Any:
    """60 for 60.0, since people wrote it so; everything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_whole_number(item) for item in value]
    return value
