"""Jobs as the client returns them: typed views of the JSON in a response.

A view keeps the parsed JSON object and converts a field when it is read. A pop may return a thousand jobs of which the
consumer reads only the body: building a validated object for each would take longer than the rest of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec
from pydantic import TypeAdapter

from deferd.client.json_reading import parsed
from deferd.contract.backoff import Backoff, ExponentialBackoff, FixedBackoff, ScheduleBackoff
from deferd.contract.endings import AttemptEnd
from deferd.contract.model import DeadReason, JobState
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
    def asked_for(self) -> datetime | None:
        """When it would be due without its window and spread. None: they have not moved it."""
        return self._instant("asked_for")

    @property
    def window(self) -> Any:
        """Its opening hours as JSON: a window, a list of windows, or the name of a calendar. None: it has none."""
        return self.fields.get("window")

    @property
    def spread(self) -> float:
        """Seconds over which its due time is spread. 0: it is not."""
        return float(self.fields.get("spread", 0))

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
    def unique_for(self) -> float:
        """Seconds for which the id stays taken after the job is finished. 0: not at all."""
        return float(self.fields.get("unique_for", 0))

    @property
    def items(self) -> int:
        """How many bodies puts with `append` have collected in its array; 0 for other jobs."""
        return int(self.fields.get("items", 0))

    @property
    def is_follow_up(self) -> bool:
        """Whether the put that returned it waits until the job with its id has ended."""
        return bool(self.fields.get("follow_up"))

    @property
    def followed_by(self) -> Mapping[str, Any] | None:
        """The job's follow-up as JSON, with `body`, `created_at` and `due_at`, if it has one. Only `look` reads it."""
        return self.fields.get("followed_by")

    @property
    def due_by(self) -> datetime | None:
        """The latest due time to which further puts can move the job, if it has a `max_wait`."""
        return self._instant("due_by")

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
    def dead_at(self) -> datetime | None:
        """When the job became dead; None in other states, or when that is not known."""
        return self._instant("dead_at")

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
    def tags(self) -> Sequence[str]:
        """The tags; empty for a job without any."""
        tags: Sequence[str] = self.fields.get("tags", ())
        return tags

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; empty for a job without any."""
        headers: Mapping[str, str] = self.fields.get("headers", {})
        return headers

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


class PoppedJob(msgspec.Struct, gc=False):
    """What consumers usually read of a delivery. `body` is replaced by its value when it is first read."""

    topic: str
    id: str
    state: str
    body: msgspec.Raw
    receipt: str
    attempt: int
    ttr: float | None = None
    time_limit: float | None = None
    traceparent: str | None = None


class PoppedJobs:
    """The response to a pop, which is parsed as a whole when a rare field of one of its jobs is first read."""

    __slots__ = ("_by_name", "_content")

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._by_name: dict[tuple[str, str], dict[str, Any]] | None = None

    def fields(self, job: PoppedJob) -> dict[str, Any]:
        """The JSON object of one job."""
        if self._by_name is None:
            jobs = parsed(self._content)["jobs"]
            self._by_name = {(fields["topic"], fields["id"]): fields for fields in jobs}
        return self._by_name[job.topic, job.id]


class Delivery(Job):
    """A job that this consumer holds.

    One from a pop has a PoppedJob, until somebody reads another field: then it has `fields`, as any other Job.
    """

    __slots__ = ("_popped", "_response")
    _popped: PoppedJob | None
    _response: PoppedJobs | None

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._popped = self._response = None

    @classmethod
    def of_popped(cls, popped: PoppedJob, response: PoppedJobs) -> Delivery:
        """A delivery of the response to a pop."""
        self = cls.__new__(cls)
        self._popped = popped
        self._response = response
        return self

    def __getattr__(self, name: str) -> Any:
        """Read `fields` from the response when they are first needed."""
        if name == "fields" and (popped := self._popped) is not None and (response := self._response) is not None:
            # The body may be in use, and changed, already.
            self.fields = {**response.fields(popped), "body": self.body}
            self._popped = self._response = None
        elif name in Delivery.__slots__:  # unpickled: see `__getstate__`
            return None
        return super().__getattribute__(name)

    def __getstate__(self) -> object:
        """The state of any Job: the response may have a thousand jobs, and clients of other versions keep none."""
        _ = self.fields
        attributes, slots = cast("tuple[object, dict[str, object]]", super().__getstate__())
        return attributes, {name: value for name, value in slots.items() if name not in Delivery.__slots__}

    @property
    def topic(self) -> str:
        """The topic."""
        popped = self._popped
        return super().topic if popped is None else popped.topic

    @property
    def id(self) -> str:
        """The id, unique within the topic."""
        popped = self._popped
        return super().id if popped is None else popped.id

    @property
    def body(self) -> Any:
        """The JSON value that the producer put."""
        popped = self._popped
        if popped is None:
            return super().body
        if type(popped.body) is msgspec.Raw:
            popped.body = parsed(bytes(popped.body))
        return popped.body

    @property
    def ttr(self) -> float:
        """Time to run: the length of a lease in seconds."""
        popped = self._popped
        return super().ttr if popped is None or popped.ttr is None else popped.ttr

    @property
    def time_limit(self) -> float | None:
        """Seconds that one attempt may run. None: no limit."""
        popped = self._popped
        return super().time_limit if popped is None else popped.time_limit

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the put, if it had one."""
        popped = self._popped
        return super().traceparent if popped is None else popped.traceparent

    @property
    def receipt(self) -> str:
        """Fencing token of this delivery, sent with finish, release, touch and bury."""
        popped = self._popped
        return str(self.fields["receipt"]) if popped is None else popped.receipt

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        popped = self._popped
        return int(self.fields["attempt"]) if popped is None else popped.attempt

    def id_and_receipt(self) -> dict[str, Any]:
        """What a batch of finishes says of it."""
        popped = self._popped
        if popped is None:
            return {"id": self.fields["id"], "receipt": self.fields["receipt"]}
        return {"id": popped.id, "receipt": popped.receipt}


class JobRef(NamedTuple):
    """A job by its name, in place of a Delivery in finish, release, touch and bury.

    Without a receipt the call applies to whichever delivery is live.
    """

    topic: str
    id: str
    receipt: str | None = None
