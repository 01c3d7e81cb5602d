"""Jobs as the client returns them: typed views of the JSON in a response.

A view keeps the parsed JSON object and converts a field when it is read. A pop may return a thousand jobs of which the
consumer reads only the body: building a validated object for each would take longer than the rest of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from deferd.contract.endings import AttemptEnd
from deferd.contract.model import (
    Backoff,
    DeadReason,
    ExponentialBackoff,
    FixedBackoff,
    JobState,
    ScheduleBackoff,
)
from deferd.contract.timestamps import parse_instant

_BACKOFF: TypeAdapter[ExponentialBackoff | FixedBackoff | ScheduleBackoff] = TypeAdapter(Backoff)


def read_backoff(value: Any) -> ExponentialBackoff | FixedBackoff | ScheduleBackoff:
    """A backoff from its JSON object, with the defaults filled in."""
    return _BACKOFF.validate_python(value)


class JsonView:
    """A typed view of a JSON object. `fields` is that object, as it was received."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def _instant(self, name: str) -> datetime | None:
        value = self.fields.get(name)
        return None if value is None else parse_instant(value)


class EndedAttempt(NamedTuple):
    """An attempt that ended without a finish. `by` is its consumer and `error` its error text, if it gave them."""

    attempt: int
    ended_at: datetime
    how: AttemptEnd
    by: str | None
    error: str | None


class Job(JsonView):
    """A job as the service returned it. `fields` is its JSON object, as it was received."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic."""
        return str(self.fields["topic"])

    @property
    def id(self) -> str:
        """The id, unique within the topic."""
        return str(self.fields["id"])

    @property
    def state(self) -> JobState:
        """The state when the response was sent."""
        return JobState(self.fields["state"])

    @property
    def body(self) -> Any:
        """The JSON value that the producer put."""
        return self.fields["body"]

    @property
    def created_at(self) -> datetime:
        """When it was put."""
        return parse_instant(self.fields["created_at"])

    @property
    def due_at(self) -> datetime:
        """When it is, or was, due."""
        return parse_instant(self.fields["due_at"])

    @property
    def ttr(self) -> float:
        """Time to run: the length of a lease in seconds."""
        return float(self.fields["ttr"])

    @property
    def attempts(self) -> int:
        """Deliveries so far, including the current one."""
        return int(self.fields["attempts"])

    @property
    def snoozes(self) -> int:
        """Releases with ``count=False`` so far, which `attempts` does not include."""
        return int(self.fields.get("snoozes", 0))

    @property
    def max_attempts(self) -> int | None:
        """Deliveries after which the job is dead. None: no limit."""
        limit: int | None = self.fields["max_attempts"]
        return limit

    @property
    def backoff(self) -> ExponentialBackoff | FixedBackoff | ScheduleBackoff:
        """How long the job waits after a release."""
        return read_backoff(self.fields["backoff"])

    @property
    def ttl(self) -> float | None:
        """Seconds after `due_at` within which the first delivery must happen. None: no limit."""
        ttl: float | None = self.fields["ttl"]
        return ttl

    @property
    def retain(self) -> float:
        """Seconds for which the finished job is kept. 0: not kept."""
        return float(self.fields["retain"])

    @property
    def dead_retain(self) -> float | None:
        """Seconds for which the dead job is kept. None: as long as the service keeps dead jobs."""
        return self.fields.get("dead_retain")

    @property
    def time_limit(self) -> float | None:
        """Seconds that one attempt may run. None: no limit."""
        return self.fields.get("time_limit")

    @property
    def deadline(self) -> float | None:
        """Seconds after being due within which the job must be finished. None: no limit."""
        return self.fields.get("deadline")

    @property
    def deadline_at(self) -> datetime | None:
        """When the deadline passes. None: never."""
        return self._instant("deadline_at")

    @property
    def attempts_log(self) -> list[EndedAttempt]:
        """The last 10 attempts that ended without a finish, oldest first."""
        return [
            EndedAttempt(
                entry["attempt"],
                parse_instant(entry["ended_at"]),
                AttemptEnd(entry["how"]),
                entry.get("by"),
                entry.get("error"),
            )
            for entry in self.fields.get("attempts_log", ())
        ]

    @property
    def last_error(self) -> str | None:
        """The error text of the last release or bury."""
        return self.fields.get("last_error")

    @property
    def reason(self) -> DeadReason | None:
        """Why the job is dead; None in other states."""
        reason = self.fields.get("reason")
        return None if reason is None else DeadReason(reason)

    @property
    def reserved_until(self) -> datetime | None:
        """When the lease ends; None when no consumer holds the job."""
        return self._instant("reserved_until")

    @property
    def reserved_by(self) -> str | None:
        """The `consumer` that holds the job, if it gave a name."""
        return self.fields.get("reserved_by")

    @property
    def finished_at(self) -> datetime | None:
        """When it was finished."""
        return self._instant("finished_at")

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the put, if it had one."""
        return self.fields.get("traceparent")

    @property
    def durability(self) -> str | None:
        """The durability level that a put reached, such as `fsync`; None if this is not the response to a put."""
        return self.fields.get("durability")

    @property
    def result(self) -> Any:
        """The JSON value of the finish; None also if it had none."""
        return self.fields.get("result")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, id={self.id!r}, state={self.fields['state']!r})"


class Delivery(Job):
    """A job that this consumer holds."""

    __slots__ = ()

    @property
    def receipt(self) -> str:
        """Fencing token of this delivery, sent with finish, release, touch and bury."""
        return str(self.fields["receipt"])

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return int(self.fields["attempt"])


class JobRef(NamedTuple):
    """A job by its name, in place of a Delivery in finish, release, touch and bury.

    Without a receipt the call applies to whichever delivery is live.
    """

    topic: str
    id: str
    receipt: str | None = None


class Cancelled(NamedTuple):
    """A cancelled job. `was` is its state before: `reserved` means that a consumer already held it."""

    topic: str
    id: str
    was: JobState


class Released(NamedTuple):
    """A released job: delayed until `due_at`, or dead (`due_at` is None) when no attempt was left."""

    state: JobState
    due_at: datetime | None
    attempts: int


class PutResult(NamedTuple):
    """The result for one job of a batch: `status` 201 put, 200 kept or replaced, otherwise `code` names the error.

    413 `payload_too_large`: the job alone is larger than a request may be; `detail` names the limit. 503 `no_answer`:
    it is unknown whether the job was put, because a response was lost and the job that had its id is gone.
    `durability` is the level that the stored job has reached: this job, or with 409 the existing one.
    """

    topic: str
    id: str
    status: int
    code: str | None
    detail: str | None = None
    durability: str | None = None


class CancelResult(NamedTuple):
    """The result for one cancel of a batch: `status` 200 cancelled, otherwise `code` names the error.

    `was` is the state that a cancelled job had. 503 `no_answer`: a response was lost and the job is gone, by this
    cancel or before it.
    """

    id: str
    status: int
    was: JobState | None
    code: str | None


class FinishResult(NamedTuple):
    """The result for one finish of a batch: `status` 200 finished, otherwise `code` names the error."""

    id: str
    status: int
    code: str | None
