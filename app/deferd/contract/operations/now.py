"""For operators: what needs a person now."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, get_args

from msgspec import field
from pydantic import Field, StringConstraints

from deferd.contract import limits
from deferd.contract.model import Instant, Topic
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.push import CircuitState
from deferd.contract.operations.response import Response, one_of
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel

AlertCode = Literal[
    "shard_unavailable",
    "timer",
    "durability",
    "outbox_stopped",
    "no_consumer",
    "push_failing",
    "failing",
    "late",
    "shelf_behind",
    "behind",
    "outbox_behind",
    "topic_full",
    "outbox_refused",
    "dying",
    "paused",
    "schedules_missed",
    "overload",
]
ALERT_CODES: Final[tuple[AlertCode, ...]] = get_args(AlertCode)
"""All codes. Alerts of one severity are in this order: what stops most jobs comes first."""


class Acknowledgement(Response, frozen=True, kw_only=True):
    """That somebody has seen to an alert."""

    reason: Annotated[str, "Why it needs nobody else, or what is being done."]
    by: Annotated[str | None, "Name of the key that acknowledged it, if it was one."] = None
    until: Annotated[datetime, "When the alert needs somebody again, if there is still one."]


class Alert(Response, frozen=True, kw_only=True):
    """One thing that needs a person. It has the facts of its `code`; others, and unknown ones, are omitted."""

    severity: Annotated[str, one_of("critical", "warning")]
    code: Annotated[str, one_of(*ALERT_CODES), "The kind of alert, for programs. Later versions may add kinds."]
    topic: Annotated[str | None, "The topic; omitted when it concerns the store."] = None
    text: Annotated[str, "The alert as a sentence, for people."]
    ready: Annotated[int | None, "`no_consumer`, `push_failing`, `behind`, `paused`: ready jobs."] = None
    oldest_age: Annotated[
        float | None,
        "`no_consumer`, `push_failing`, `behind`: seconds since the oldest ready job was due.",
    ] = None
    last_consumer_at: Annotated[datetime | None, "`no_consumer`: when the last consumer was seen."] = None
    circuit: Annotated[
        str | None, one_of(*get_args(CircuitState)), "`push_failing`: the circuit of the target of the topic."
    ] = None
    failures: Annotated[int | None, "`push_failing`: failures of the target in a row."] = None
    last_error: Annotated[str | None, "`push_failing`: the last of them."] = None
    last_error_at: Annotated[datetime | None, "`push_failing`: when that was."] = None
    next_try_at: Annotated[
        datetime | None, "`push_failing`: until when the circuit is open; then one request tries the target."
    ] = None
    rate: Annotated[
        float | None,
        "`behind`: jobs handed out per second in the last seconds. `shelf_behind`: jobs loaded per second in the last "
        "10 s.",
    ] = None
    estimated_wait: Annotated[
        float | None, "`behind`: seconds until the last ready job is handed out at this rate."
    ] = None
    reserved: Annotated[int | None, "`behind`: jobs that consumers hold."] = None
    limited: Annotated[
        bool | None,
        "`behind`: `true` while limits of the topic or of its groups, or pauses of groups, hold back all ready jobs. "
        "Further consumers do not help.",
    ] = None
    dead: Annotated[int | None, "`dying`: jobs that died within the last hour."] = None
    released: Annotated[int | None, "`failing`: attempts that failed, by a release or the end of a lease."] = None
    finished: Annotated[int | None, "`failing`: jobs that were finished in that time."] = None
    window: Annotated[float | None, "`failing`: the seconds in which this happened, until now."] = None
    retrying: Annotated[
        int | None,
        "`failing`: delayed jobs that had an attempt, of the 250 that are due first in each partition; omitted when "
        "that is not known.",
    ] = None
    top_retrying: Annotated[int | None, "`failing`: how many of these have the most frequent error."] = None
    top_error: Annotated[str | None, "`dying`, `failing`: the most frequent error, as `GET /dead` groups them."] = None
    top_reason: Annotated[str | None, "`dying`: why the jobs with that error are dead."] = None
    top_dead: Annotated[int | None, "`dying`: how many jobs died with that error."] = None
    exact: Annotated[
        bool | None,
        "`dying`: `false` when there are too many dead jobs to read all: the numbers are estimates. `failing`: `false` "
        "when more delayed jobs may be `retrying`.",
    ] = None
    due: Annotated[int | None, "`paused`: delayed jobs that are due. `overload`: jobs due in the next hour."] = None
    handled: Annotated[int | None, "`overload`: jobs an hour that consumers handle at this rate."] = None
    handled_at: Annotated[
        datetime | None,
        "`overload`: when the 5 minutes of that rate began, the best of two days; omitted when it is the present rate, "
        "because these are not known.",
    ] = None
    by: Annotated[str | None, "`paused`: name of the key that paused it, if it was one."] = None
    since: Annotated[
        datetime | None,
        "`paused`: since when, if that is known. `outbox_stopped`: when a relay last worked, or the first one came.",
    ] = None
    jobs: Annotated[
        int | None,
        "`late`: delayed jobs that are due. `topic_full`: live jobs. `shelf_behind`: jobs on the shelf that should be "
        "loaded.",
    ] = None
    within: Annotated[float | None, "`shelf_behind`: seconds within which these jobs are due."] = None
    first_due_at: Annotated[datetime | None, "`shelf_behind`: when the first of them is due, or was."] = None
    max_jobs: Annotated[int | None, "`topic_full`: the topic's limit."] = None
    shard: Annotated[int | None, "`timer`: the shard."] = None
    running: Annotated[bool | None, "`timer`: whether a timer works there at all."] = None
    overdue: Annotated[float | None, "`late`, `timer`: for how many seconds the first work is overdue."] = None
    durability: Annotated[str | None, "`durability`: the level that the topic asks for."] = None
    available: Annotated[str | None, "`durability`: the level that the store gives."] = None
    why: Annotated[
        str | None,
        "`durability`: why it gives no more. `paused`: why, if that was said when it was paused. `shelf_behind`: why "
        "the shelf cannot be used; then no numbers are known.",
    ] = None
    shards: Annotated[list[int] | None, "`shard_unavailable`: shards that cannot be reached."] = None
    schedule: Annotated[str | None, "`schedules_missed`: name of the schedule."] = None
    missed: Annotated[int | None, "`schedules_missed`: its missed runs, in all."] = None
    last_missed_at: Annotated[datetime | None, "`schedules_missed`: when a run was last missed."] = None
    database: Annotated[
        str | None, "`outbox_stopped`, `outbox_behind`, `outbox_refused`: the database of the outbox."
    ] = None
    rows: Annotated[
        int | None,
        f"`outbox_behind`: rows in the outbox, an estimate above {limits.OUTBOX_COUNTED}. `outbox_stopped`: as last "
        "reported.",
    ] = None
    lag: Annotated[float | None, "`outbox_behind`: the age of the oldest row, in seconds."] = None
    refused: Annotated[int | None, "`outbox_refused`: rows that the service refused."] = None
    acknowledged: Annotated[Acknowledgement | None, "Who has acknowledged it; only in the list of those."] = None


class Now(Response, frozen=True, kw_only=True):
    """What needs a person now."""

    now: Annotated[datetime, "The store's clock when it was read."]
    alerts: Annotated[list[Alert], "The most urgent first; empty when all is quiet."]
    left_out: Annotated[int, "How many less urgent alerts `limit` left out."]
    acknowledged: Annotated[
        list[Alert],
        "Alerts that somebody has acknowledged, apart from `alerts`, at most `limit`; omitted when there are none.",
    ] = field(default_factory=list)
    next_due_at: Annotated[datetime | None, "When the next delayed job is due; `null` when none is."]
    next_due_jobs: Annotated[int, "Delayed jobs that are due in the same second as that one."]
    topics_looked_at: Annotated[int, "Topics that were read."]
    complete: Annotated[
        bool,
        "`false`: there are too many topics, or a shard of the store cannot be reached; alerts may be missing. Or the "
        "shelf cannot be read; then `next_due_at` may be too late.",
    ]

    schema_examples = (
        {
            "now": "2026-11-21T03:12:00.000Z",
            "alerts": [
                {
                    "severity": "critical",
                    "code": "no_consumer",
                    "topic": "orders.close",
                    "text": "orders.close: 1,204 jobs are ready, the oldest for 4 min; there is no consumer",
                    "ready": 1204,
                    "oldest_age": 240.125,
                    "last_consumer_at": "2026-11-21T03:05:31.404Z",
                },
                {
                    "severity": "warning",
                    "code": "dying",
                    "topic": "mail.remind",
                    "text": "mail.remind: 312 dead in 1 h, 298 of them SMTP 421: * try again later",
                    "dead": 312,
                    "top_error": "SMTP 421: * try again later",
                    "top_reason": "attempts_exhausted",
                    "top_dead": 298,
                    "exact": True,
                },
            ],
            "left_out": 0,
            "next_due_at": "2026-11-21T03:14:16.000Z",
            "next_due_jobs": 37,
            "topics_looked_at": 12,
            "complete": True,
        },
    )


GET_NOW = Operation(
    "get_now",
    "GET",
    "/now",
    tag="inspection",
    scope=Scope.READ,
    summary="Get what needs a person now",
    description=(
        "Lists what needs a person, the most urgent first: topics without consumers or behind, push targets and "
        "attempts that fail, jobs that died within the last hour, pauses that hold jobs back, a timer or a shelf that "
        "is late, outboxes that nobody sends, a store that is down in part. Each alert has a `code` and facts for "
        "programs, and a `text` for people. An empty list means that nothing needs attention. `next_due_at` is when "
        "the next job is due, and `next_due_jobs` how many are due in that second. With `topics`: only alerts of these "
        "topics, of the store and, for keys that match all topics, of outboxes. The response may be up to 5 seconds "
        "old."
    ),
    response=Now,
    response_description="The alerts.",
)


class AcknowledgeAlerts(StrictModel):
    """Which alerts are acknowledged, why, and until when."""

    code: AlertCode = Field(description="The kind of the alerts.")
    topics: list[Topic] | None = Field(
        None,
        min_length=1,
        max_length=limits.PAGE_MAX,
        description="1 to 1000 topics: only alerts of these. By default all of the kind, also those of the store.",
    )
    reason: Annotated[str, StringConstraints(min_length=1, max_length=limits.PAUSE_REASON_MAX)] = Field(
        description="Why they need nobody else, for people; at most 200 characters."
    )
    until: Instant = Field(
        description="Until when, at most 30 days ahead. An instant in the past ends acknowledgements."
    )

    schema_examples = (
        {
            "code": "no_consumer",
            "topics": ["orders.close"],
            "reason": "workers are being moved",
            "until": "2026-11-21T09:00:00Z",
        },
    )


class Acknowledged(Response, frozen=True, kw_only=True):
    """The result of an acknowledgement."""

    alerts: Annotated[int, "How many alerts are acknowledged now, or no longer are."]

    schema_examples = ({"alerts": 1},)


ACKNOWLEDGE_ALERTS = Operation(
    "acknowledge_alerts",
    "POST",
    "/now/acknowledge",
    tag="inspection",
    scope=Scope.ADMIN,
    summary="Acknowledge alerts",
    description=(
        "Until the given instant, `GET /now` lists the current alerts of this kind and these topics in `acknowledged`, "
        "with the reason and who gave it. An alert of another topic, or one that becomes critical, is in `alerts` all "
        "the same. A key for some topics acknowledges only alerts of these. Alert rules of Prometheus do not know of "
        "acknowledgements."
    ),
    response=Acknowledged,
    response_description="The number of alerts.",
    done="acknowledged alerts of",
)
