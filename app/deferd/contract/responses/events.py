"""The events of jobs, in responses and in streams."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from deferd.contract.model import JobState
from deferd.contract.responses.response import Response, one_of, shown_as

_State = JobState | None

EVENT_KINDS = (
    *("put", "changed", "ready", "popped", "released", "snoozed", "returned", "lease_ended", "finished"),
    *("dead", "cancelled", "redriven", "purged"),
)


class EventFollowUp(Response, frozen=True, kw_only=True):
    """The follow-up that a put has stored or changed."""

    due_at: Annotated[datetime, "When it is due at the earliest."]


class JobEvent(Response, frozen=True, kw_only=True):
    """Something that happened to a job, or the notice `dropped`: that events of `topic` are missing.

    It has the facts of its kind; `count` of `dropped` is how many are missing, if that is known.
    """

    topic: Annotated[str | None, "The topic; None for the `dropped` that says that too many topics match."] = None
    id: Annotated[str | None, "The job. `purged`, which is about several jobs, has none."] = None
    event: Annotated[str, "`put`, `ready`, `popped`, `finished` ...; later services may have further kinds."] = ""
    at: Annotated[datetime | None, "When, by the store's clock; None for `dropped`."] = None
    number: Annotated[int | None, "Its number in the topic; None for `dropped`."] = None
    state: Annotated[str | None, shown_as(_State), "The job's state now; omitted when it is gone."] = None
    attempt: Annotated[int | None, "The number of the attempt that began or ended."] = None
    attempts: Annotated[int | None, "`snoozed`, `dead`: attempts that have ended."] = None
    due_at: Annotated[datetime | None, "When the job is due, or was when it became ready."] = None
    replaced: Annotated[bool | None, "`put`: it replaced a job with its id."] = None
    follow_up: Annotated[EventFollowUp | None, "`changed`: a put has stored it while the job is held."] = None
    reserved_until: Annotated[datetime | None, "`popped`: when the lease ends."] = None
    count: Annotated[int | None, "`purged`: how many jobs were deleted."] = None
    was: Annotated[str | None, shown_as(_State), "`cancelled`, `purged`: the state before."] = None
    reason: Annotated[
        str | None,
        "`dead`: as `reason` of a dead job. `lease_ended`: `lease_ended` or `time_limit`. `cancelled`: `missed`, "
        "`skipped`, `overlapped` or `withdrawn` for a run of a schedule. `purged`: `purge` or `retention`.",
    ] = None
    consumer: Annotated[str | None, "`popped`, `lease_ended`: the consumer, if it gave a name."] = None
    error: Annotated[
        str | None, "`released`, `dead`: the first line of the error, at most 120 bytes, if there is one."
    ] = None


class Event(JobEvent, frozen=True, kw_only=True):
    """Something that happened to a job. It has the facts of its kind; others are omitted."""

    topic: Annotated[str, "The topic."]
    event: Annotated[
        str,
        one_of(*EVENT_KINDS),
        "What happened. Later versions may add kinds.",
    ]
    at: Annotated[datetime, "When, by the store's clock."]
    number: Annotated[
        int, "Its number in the topic, from 1. It begins again when the topic has kept no events for a while."
    ]

    schema_examples = (
        {
            "topic": "orders.close",
            "id": "order-1042",
            "event": "released",
            "at": "2026-11-21T07:26:58.123Z",
            "number": 7112,
            "state": "delayed",
            "attempt": 3,
            "due_at": "2026-11-21T07:27:06.123Z",
            "error": "SMTP 421",
        },
    )


class Dropped(JobEvent, frozen=True, kw_only=True):
    """The notice in a stream that events, or topics, are missing."""

    topics: Annotated[int | None, "How many topics match and are not followed."] = None


class Events(Response, frozen=True, kw_only=True):
    """The last events."""

    events: Annotated[list[Event], "The latest first."]
    last_event_id: Annotated[str, "`Last-Event-ID` of a stream that goes on behind these events."]
    complete: Annotated[
        bool, "`false`: topics are missing, because more than 300 match, or a shard of the store is unreachable."
    ]

    schema_examples = ({"events": [*Event.schema_examples], "last_event_id": "Ae79L-WZ2AoAAAAA", "complete": True},)
