"""What happened: events of jobs, as they happen, and what people and keys changed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from deferd.contract import limits
from deferd.contract.model import JobState
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response, one_of, shown_as
from deferd.contract.scopes import Scope

_State = JobState | None

EVENT_KINDS = (
    *("put", "changed", "ready", "popped", "released", "snoozed", "returned", "lease_ended", "finished"),
    *("progress", "dead", "cancelled", "redriven", "purged"),
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
    progress: Annotated[Any, "`progress`: the progress, if it is at most 120 bytes of JSON."] = None
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


STREAM_EVENTS: Operation[Response] = Operation(
    "stream_events",
    "GET",
    "/events",
    tag="inspection",
    scope=Scope.READ,
    summary="Follow events",
    description=(
        "Streams what happens to the jobs of topics whose settings have `events`, as Server-Sent Events, in the "
        "order in which it happened in each topic. An event is there in about 0.3 seconds. `data` is an Event, its "
        "kind is also in `event`. Several events may share one `id`, which the last of them has. `event: dropped` "
        "says that events of a `topic` are missing, with their `count` if it is known: the topic has kept too few, "
        f"or the client read too slowly. Of more than {limits.EVENT_TOPICS_MAX} topics with events, the first by name "
        "are followed, and `dropped` has the number of the others in `topics`. A comment comes at least every 15 "
        f"seconds. The stream ends when the service stops. A process serves {limits.EVENT_STREAMS_MAX} streams at a "
        f"time, at most {limits.EVENT_STREAMS_PER_KEY} of a key."
    ),
    response_description="The stream.",
    errors=("too_many_streams",),
    needs_store=False,
    status=200,
)
LIST_EVENTS = Operation(
    "list_events",
    "GET",
    "/events/latest",
    tag="inspection",
    scope=Scope.READ,
    summary="List the latest events",
    description=(
        "Lists the last events that topics have kept, of all matching topics together. Topics keep events when "
        "their settings have `events`. Of many topics a part of each is read: they share 5000 events."
    ),
    response=Events,
    response_description="The events.",
)


class FieldChange(Response, frozen=True, kw_only=True):
    """What a field was, and what it is now. With neither there was no room for the values."""

    field: Annotated[str, "Its name, such as `ttr` or `job.priority`."]
    was: Annotated[
        str | None,
        "As JSON, cut off after 300 bytes; omitted: it had no value. Of bodies, headers and URLs of pushes it is only "
        "the size, the names and the host, and of secrets their number.",
    ] = None
    now: Annotated[str | None, "The same of the new value."] = None


class Change(Response, frozen=True, kw_only=True):
    """A change that a person or a key made. What does not apply is omitted."""

    schema_name = "RecordedChange"

    at: Annotated[datetime, "When it was recorded, just after it was made."]
    by: Annotated[
        str | None, "Name of the key; on a service without keys the client's address, `null` if that is not known."
    ]
    via: Annotated[
        str,
        one_of("console", "cli", "api"),
        "The way by which it came, as the request says: the console, the command line, or another program.",
    ]
    operation: Annotated[str, "The operation, by its `operationId` in this document, such as `pause_topic`."]
    outcome: Annotated[
        str,
        one_of("done", "unknown"),
        "`unknown`: the store failed during the call, so it may have been done, or a part of it.",
    ]
    topic: Annotated[str | None, "The topic, if it concerns one."] = None
    subject: Annotated[
        str | None, "The id of the job or task, or the name of the schedule or calendar. Tasks are kept for 7 days."
    ] = None
    filter: Annotated[
        str | None, "What selected the jobs: the request's JSON, cut after 500 bytes; omitted for all."
    ] = None
    count: Annotated[int | None, "How many jobs it changed, where that is counted."] = None
    fields_changed: Annotated[
        list[FieldChange] | None,
        "What was changed of settings, a pause, a schedule, a calendar, a push or a job. A schedule that got another "
        "topic has them for keys that may see both.",
    ] = None
    times: Annotated[
        int,
        "How many calls the entry stands for, if several: calls on many jobs by a program, and "
        "commands with one job each, with the same operation, caller and topic within ten minutes. "
        "`count` is their sum; `subject`, `filter` and `fields_changed` belong to the last one.",
    ] = 1
    last_at: Annotated[datetime | None, "With `times`: when the last of them was recorded."] = None


class Activity(Response, frozen=True, kw_only=True):
    """One page of changes."""

    activity: Annotated[list[Change], "The newest first."]
    next_cursor: Annotated[str | None, "Cursor of the next page; `null` on the last page."]

    schema_examples = (
        {
            "activity": [
                {
                    "at": "2026-11-21T07:26:58.123Z",
                    "by": "ops",
                    "via": "console",
                    "operation": "redrive_jobs",
                    "outcome": "done",
                    "topic": "orders.close",
                    "filter": '{"limit":1000,"reason":"attempts_exhausted"}',
                    "count": 312,
                },
                {
                    "at": "2026-11-21T07:20:01.402Z",
                    "by": "ops",
                    "via": "cli",
                    "operation": "set_topic",
                    "outcome": "done",
                    "topic": "orders.close",
                    "fields_changed": [{"field": "ttr", "was": "60", "now": "30"}],
                },
            ],
            "next_cursor": None,
        },
    )


LIST_ACTIVITY = Operation(
    "list_activity",
    "GET",
    "/activity",
    tag="inspection",
    scope=Scope.READ,
    summary="List what people and keys changed",
    description=(
        "Lists changes, the newest first: settings, pauses, redrives, purges, repairs, schedules, calendars and "
        "calls on many jobs, by whom and how; cancels and changes of single jobs that people make in the console or "
        "on the command line (which says so by the header `Deferd-Via: cli`), and puts in the console. Puts and "
        "deliveries of programs are not listed, nor calls that were refused or changed nothing. Entries are kept for "
        "30 days: the last 10000 by keys with the scope `admin`, and the last 10000 by all others. They are written "
        "just after the response, so the newest ones of another process may be missing for a moment. A key for some "
        "topics sees the changes that concern one of these alone."
    ),
    response=Activity,
    response_description="One page of changes.",
)
