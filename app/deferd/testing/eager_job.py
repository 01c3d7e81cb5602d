"""A job of EagerJobs: what was put, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from deferd.contract.backoff import ExponentialBackoff
from deferd.contract.fields import POLICY
from deferd.contract.model import JobState

WAITING = ("delayed", "ready")
LIVE = (*WAITING, "reserved")
_NOT_SHOWN = frozenset({"delay", "run_at", "on_conflict", "conflict_with", "if_reserved", "max_wait"})


@dataclass(eq=False)
class EagerJob:
    """A job that was put, and its current state."""

    topic: str
    id: str
    body: Any
    """The JSON value that the consumer receives."""
    fields: Mapping[str, Any]
    """All fields of the put, as JSON: `ttr`, `backoff`, `traceparent` and so on."""
    delay: timedelta | None
    """From the put until the job is due. For a failed job: the delay of its Retry, or None for its backoff."""
    state: str
    """`delayed`, also after a failure that will be retried; `ready`: due, but not run because it has no handler;
    `reserved` while its handler runs; `finished`; `dead`; or `cancelled`."""
    attempts: int = 0
    snoozes: int = 0
    """Deliveries that a handler's Snooze ended, which `attempts` does not include."""
    result: Any = None
    """The return value of the handler, as JSON."""
    error: str | None = None
    """The job's `last_error`: why the last attempt failed or the job is dead."""
    exception: BaseException | None = field(default=None, repr=False)
    """The exception of the last attempt."""


def shown(job: EagerJob) -> dict[str, Any]:
    """The job as a service returns it, with the service's defaults for omitted fields."""
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        **{field.name: field.default for field in POLICY if field.is_always_shown},
        "backoff": ExponentialBackoff().model_dump(),
        **{name: value for name, value in job.fields.items() if name not in _NOT_SHOWN and value is not None},
        "topic": job.topic,
        "id": job.id,
        "state": JobState(job.state),
        "body": job.body,
        "created_at": now.isoformat(),
        "due_at": (now + (job.delay or timedelta())).isoformat(),
        "attempts": job.attempts,
    }
    if job.snoozes:
        fields["snoozes"] = job.snoozes
    if job.error is not None:
        fields["last_error"] = job.error
    if job.state == "reserved":
        until = now + timedelta(seconds=fields["ttr"])
        fields |= {"receipt": "eager", "attempt": job.attempts, "reserved_until": until.isoformat()}
    return fields
