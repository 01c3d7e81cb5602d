"""A job of EagerJobs: what was put, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from deferd.contract.backoff import ExponentialBackoff
from deferd.contract.fields import POLICY
from deferd.contract.model import JobState

FOLLOW_UP = "follow-up"
WAITING = ("delayed", "ready")
LIVE = (*WAITING, "reserved")
_NOT_SHOWN = frozenset(
    {"delay", "run_at", "on_conflict", "conflict_with", "if_reserved", "max_wait", "max_items", "follow_up"}
)


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
    `reserved` while its handler runs; `follow-up`: waits until the job with its id has ended; `finished`; `dead`; or
    `cancelled`."""
    attempts: int = 0
    snoozes: int = 0
    """Deliveries that a handler's Snooze ended, which `attempts` does not include."""
    items: int = 0
    """How many bodies puts with `on_conflict="append"` have collected in its `body`, a list; 0 for other jobs."""
    follow_up: EagerJob | None = field(default=None, repr=False)
    """The job that takes its place when it is finished or dead."""
    result: Any = None
    """The return value of the handler, as JSON."""
    error: str | None = None
    """The job's `last_error`: why the last attempt failed or the job is dead."""
    exception: BaseException | None = field(default=None, repr=False)
    """The exception of the last attempt."""

    @property
    def was_handed_out(self) -> bool:
        """Whether a handler had it: then no items are added to it."""
        return self.attempts > 0 or self.snoozes > 0

    def make_due_in(self, delay: timedelta | None) -> None:
        """Let it wait for so long; 0 or None: it is ready."""
        self.delay = delay
        self.state = "delayed" if delay else "ready"

    def add_item(self, item: Any) -> None:
        """Append to the collected bodies; one that was put otherwise becomes the first."""
        items = self.body if self.items else [self.body]
        self.body = [*items, item]
        self.items = len(self.body)


def shown(job: EagerJob) -> dict[str, Any]:
    """The job as a service returns it, with the service's defaults for omitted fields."""
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        **{field.name: field.default for field in POLICY if field.is_always_shown},
        "backoff": ExponentialBackoff().model_dump(),
        **{name: value for name, value in job.fields.items() if name not in _NOT_SHOWN and value is not None},
        "topic": job.topic,
        "id": job.id,
        "state": JobState.DELAYED if job.state == FOLLOW_UP else JobState(job.state),
        "body": job.body,
        "created_at": now.isoformat(),
        "due_at": (now + (job.delay or timedelta())).isoformat(),
        "attempts": job.attempts,
    }
    if job.state == FOLLOW_UP:
        fields["follow_up"] = True
    if job.items:
        fields["items"] = job.items
    if job.snoozes:
        fields["snoozes"] = job.snoozes
    if job.error is not None:
        fields["last_error"] = job.error
    if job.state == "reserved":
        until = now + timedelta(seconds=fields["ttr"])
        fields |= {"receipt": "eager", "attempt": job.attempts, "reserved_until": until.isoformat()}
    return fields
