"""Jobs as the client hands them out: typed views of the JSON that came, which read a field when it is asked for.

A pop may bring a thousand jobs of which the consumer looks at the body. Building a checked object with three instants
for each costs more than all the rest of the call, so a view keeps the parsed JSON object and does nothing ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from deferd.contract.model import (
    Backoff,
    DeadReason,
    ExponentialBackoff,
    FixedBackoff,
    JobState,
    ScheduleBackoff,
    TopicSettings,
)
from deferd.contract.timestamps import parse_instant

_BACKOFF: TypeAdapter[ExponentialBackoff | FixedBackoff | ScheduleBackoff] = TypeAdapter(Backoff)


def read_backoff(value: Any) -> ExponentialBackoff | FixedBackoff | ScheduleBackoff:
    """A backoff from its JSON object, with what that leaves out."""
    return _BACKOFF.validate_python(value)


class _View:
    """What the service showed. `fields` is its JSON object, as it came."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields


class Job(_View):
    """A job as the service showed it. `fields` is its JSON object; see `deferd.contract.model.Job` for the terms."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """Its topic."""
        return str(self.fields["topic"])

    @property
    def id(self) -> str:
        """Its id, unique within the topic."""
        return str(self.fields["id"])

    @property
    def state(self) -> JobState:
        """Where it was."""
        return JobState(self.fields["state"])

    @property
    def body(self) -> Any:
        """The JSON value that the producer gave."""
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
        """Length of a lease in seconds."""
        return float(self.fields["ttr"])

    @property
    def attempts(self) -> int:
        """Deliveries so far, the live one included."""
        return int(self.fields["attempts"])

    @property
    def max_attempts(self) -> int | None:
        """Deliveries after which it goes to dead. None: no limit."""
        given: int | None = self.fields["max_attempts"]
        return given

    @property
    def backoff(self) -> ExponentialBackoff | FixedBackoff | ScheduleBackoff:
        """How long it waits after a release."""
        return read_backoff(self.fields["backoff"])

    @property
    def ttl(self) -> float | None:
        """Seconds after `due_at` within which the first delivery must happen. None: no bound."""
        given: float | None = self.fields["ttl"]
        return given

    @property
    def retain(self) -> float:
        """Seconds for which its record is kept after it is finished. 0: not kept."""
        return float(self.fields["retain"])

    @property
    def last_error(self) -> str | None:
        """What the last release or bury said went wrong."""
        return self.fields.get("last_error")

    @property
    def reason(self) -> DeadReason | None:
        """Why it is dead."""
        given = self.fields.get("reason")
        return None if given is None else DeadReason(given)

    @property
    def reserved_until(self) -> datetime | None:
        """When the lease ends, unless it is touched; None when no consumer holds the job."""
        return self._instant("reserved_until")

    @property
    def reserved_by(self) -> str | None:
        """The `consumer` that holds it, if that gave its name."""
        return self.fields.get("reserved_by")

    @property
    def finished_at(self) -> datetime | None:
        """When it was finished."""
        return self._instant("finished_at")

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the put, if it gave one."""
        return self.fields.get("traceparent")

    @property
    def durability(self) -> str | None:
        """What a put has reached, such as `fsync`; None when this is not the answer to a put."""
        return self.fields.get("durability")

    @property
    def result(self) -> Any:
        """The JSON value that the finish gave; None also when it gave none."""
        return self.fields.get("result")

    def _instant(self, name: str) -> datetime | None:
        given = self.fields.get(name)
        return None if given is None else parse_instant(given)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, id={self.id!r}, state={self.fields['state']!r})"


class Delivery(Job):
    """A job in the hands of this consumer."""

    __slots__ = ()

    @property
    def receipt(self) -> str:
        """Fencing token of this delivery: it goes with finish, release, touch and bury."""
        return str(self.fields["receipt"])

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return int(self.fields["attempt"])


class JobRef(NamedTuple):
    """A job by its name, for the calls of a consumer that has no Delivery at hand.

    Without a receipt the call means whichever delivery is live.
    """

    topic: str
    id: str
    receipt: str | None = None


class Cancelled(NamedTuple):
    """A job that is cancelled. `was` tells if that was in time: `reserved` means that a consumer had it already."""

    topic: str
    id: str
    was: JobState


class Released(NamedTuple):
    """A job that was given back: delayed until `due_at`, or dead (`due_at` None) when it had no attempt left."""

    state: JobState
    due_at: datetime | None
    attempts: int


class TopicPage(NamedTuple):
    """One page of the list of topics; with `next_cursor` None it was the last.

    `unavailable` are topics that are left out because their shard of the store cannot be reached, as far as the service
    knows them; `unreadable_shards` are the numbers of those shards, empty when the page is whole.
    """

    topics: list[TopicView]
    next_cursor: str | None
    unavailable: list[str]
    unreadable_shards: list[int]


class TopicView(_View):
    """A topic as the service showed it. `fields` is its JSON object, as it came."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """Its name."""
        return str(self.fields["topic"])

    @property
    def paused(self) -> bool:
        """Whether handing out is stopped."""
        return bool(self.fields["paused"])

    @property
    def counts(self) -> Mapping[str, int]:
        """How many jobs are in each state."""
        return {str(JobState(state)): count for state, count in self.fields["counts"].items()}

    @property
    def oldest_ready_age(self) -> float | None:
        """Seconds since the first job of the Ready list was due. None: none is ready."""
        age: float | None = self.fields["oldest_ready_age"]
        return age

    @property
    def next_due_at(self) -> datetime | None:
        """When the next delayed job is due. None: none is delayed."""
        given = self.fields["next_due_at"]
        return None if given is None else parse_instant(given)

    @property
    def settings(self) -> TopicSettings:
        """The defaults for its jobs, and its `max_jobs`."""
        return TopicSettings.model_validate(self.fields["settings"])

    def __repr__(self) -> str:
        return f"TopicView(topic={self.topic!r}, counts={self.fields['counts']!r})"


class DamageExample(NamedTuple):
    """One damage: `subject` is the job's id, the topic's name or a key of the store, `detail` what was seen."""

    kind: str
    subject: str
    detail: str


class Audit(_View):
    """What an audit found, or a repair mended. `fields` is its JSON object, as it came."""

    __slots__ = ()

    @property
    def clean(self) -> bool:
        """Whether all was checked and nothing was found."""
        return bool(self.fields["clean"])

    @property
    def repaired(self) -> bool:
        """Whether what was found has been mended."""
        return bool(self.fields["repaired"])

    @property
    def damage(self) -> Mapping[str, int]:
        """How often each kind of damage was found; only kinds that were."""
        return {str(one["kind"]): int(one["found"]) for one in self.fields["damage"]}

    @property
    def examples(self) -> list[DamageExample]:
        """Of the damage; at most 100."""
        return [DamageExample(one["kind"], one["subject"], one["detail"]) for one in self.fields["examples"]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(clean={self.clean}, damage={self.damage!r})"


class StoreAudit(Audit):
    """What is wrong beyond single topics."""

    __slots__ = ()

    @property
    def unlisted(self) -> list[str]:
        """Topics that hold something and that no list shows: each is mended by a repair of its own."""
        return list(self.fields["unlisted"])


class TopicAudit(Audit):
    """What an audit of a topic found, or a repair of it mended; counts and sums are as they are after it."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return str(self.fields["topic"])

    @property
    def checked(self) -> int:
        """How many jobs were looked at."""
        return int(self.fields["checked"])

    @property
    def counts(self) -> Mapping[str, int] | None:
        """How many jobs are in each state. None when they could not be read."""
        return self.fields.get("counts")

    @property
    def sums(self) -> Mapping[str, int] | None:
        """What became of all jobs ever put: `put` = finished + cancelled + dropped + lost + dead + live.

        None when they could not be read.
        """
        return self.fields.get("sums")

    @property
    def unchecked(self) -> str | None:
        """What could not be checked, and why; None: all was."""
        return self.fields.get("unchecked")

    def __repr__(self) -> str:
        return f"TopicAudit(topic={self.topic!r}, clean={self.clean}, damage={self.damage!r})"


class PutResult(NamedTuple):
    """What became of one job of a batch: `status` 201 put, 200 kept or replaced, else `code` says what hindered it.

    413 `payload_too_large` is a job that no call can carry; `detail` names the bound. 503 `no_answer` is one of which
    it is not known whether it was put: an answer was lost, and a job of its id was there and is gone. `durability` is
    what a job has reached that is there: this one, or with 409 the one that was there.
    """

    topic: str
    id: str
    status: int
    code: str | None
    detail: str | None = None
    durability: str | None = None


class FinishResult(NamedTuple):
    """What became of one finish of a batch: `status` 200 finished, else `code` says what hindered it."""

    id: str
    status: int
    code: str | None
