"""The responses about jobs that do not run: why, dead jobs by error, what comes due, and who consumes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, field

from deferd.contract.endings import AttemptEnd
from deferd.contract.model import DeadReason, JobState
from deferd.contract.responses.response import Response, one_of, shown_as
from deferd.contract.windows import WindowSpec


class WhyReason(Response, frozen=True, kw_only=True):
    """One reason why a job has not run. It has the facts of its `code`; others are omitted."""

    code: Annotated[
        str,
        one_of(
            "not_due",
            "backoff",
            "window",
            "paused",
            "no_consumers",
            "behind",
            "leased",
            "dead",
            "finished",
            "cancelled",
            "unknown_job",
            description="The kind of reason, for programs. Later versions may add kinds.",
        ),
    ]
    text: Annotated[str, Meta(description="The reason as a sentence, for people.")]
    due_at: Annotated[datetime | None, Meta(description="`not_due`, `backoff`: when the job is due.")] = None
    due_in: Annotated[
        float | None,
        Meta(description="`not_due`, `backoff`: seconds until then; negative when the timer is about to move it."),
    ] = None
    asked_for: Annotated[
        datetime | None, Meta(description="`window`: when it would be due without window and spread.")
    ] = None
    moved: Annotated[float | None, Meta(description="`window`: by how many seconds they moved it.")] = None
    window: Annotated[Any, shown_as(WindowSpec | None, "`window`: its opening hours, if it has some.")] = None
    spread: Annotated[float | None, Meta(description="`window`: its spread in seconds, if it has one.")] = None
    since: Annotated[
        datetime | None,
        Meta(
            description="`paused`: since when, omitted for pauses by version 0.1. `no_consumers`: when the last "
            "consumer of the topic was seen, omitted when that is not known."
        ),
    ] = None
    reason: Annotated[str | None, shown_as(DeadReason | None, "`dead`: why.")] = None
    by: Annotated[
        str | None,
        Meta(
            description="`paused`: name of the key that paused the topic, if it was one. `leased`: name of the "
            "consumer, if it gave one. `backoff`: the consumer of the last attempt, if it gave a name."
        ),
    ] = None
    error: Annotated[str | None, Meta(description="`backoff`, `dead`: the last error message, if there is one.")] = None
    attempt: Annotated[
        int | None,
        Meta(description="`backoff`, `dead`: number of the last attempt. `leased`: number of the one under way."),
    ] = None
    ended_at: Annotated[datetime | None, Meta(description="`backoff`: when the last attempt ended.")] = None
    how: Annotated[str | None, shown_as(AttemptEnd | None, "`backoff`: how the last attempt ended.")] = None
    max_attempts: Annotated[int | None, Meta(description="`backoff`: attempts after which it is dead, if limited.")] = (
        None
    )
    snoozes: Annotated[int | None, Meta(description="`not_due`, `backoff`: how often it was snoozed, if it was.")] = (
        None
    )
    why: Annotated[str | None, Meta(description="`paused`: why, if that was said when it was paused.")] = None
    jobs_ahead: Annotated[
        int | None, Meta(description="`behind`: ready jobs of the topic that are handed out before it.")
    ] = None
    ready: Annotated[int | None, Meta(description="`behind`: ready jobs of the topic.")] = None
    oldest_age: Annotated[
        float | None, Meta(description="`behind`: seconds since the first job of the Ready list was due.")
    ] = None
    rate: Annotated[
        float | None,
        Meta(
            description="`behind`: jobs of the topic handed out per second, by all processes in the last seconds; "
            "omitted when that is not known."
        ),
    ] = None
    estimated_wait: Annotated[
        float | None,
        Meta(description="`behind`: seconds until it is handed out at this rate; omitted without a rate above 0."),
    ] = None
    reserved_until: Annotated[datetime | None, Meta(description="`leased`: when the lease ends.")] = None
    lease_left: Annotated[float | None, Meta(description="`leased`: seconds until then.")] = None
    touches: Annotated[int | None, Meta(description="`leased`: how often the lease was extended.")] = None
    follow_up: Annotated[
        bool | None, Meta(description="`leased`: `true` when a put waits until the job has ended.")
    ] = None
    dead_at: Annotated[datetime | None, Meta(description="`dead`: when it became so, as far as it is known.")] = None
    finished_at: Annotated[datetime | None, Meta(description="`finished`: when.")] = None
    kept_until: Annotated[
        datetime | None,
        Meta(
            description="`dead`, `finished`: when its record is removed, or its id is free again. `cancelled`: "
            "until when this is remembered."
        ),
    ] = None
    nearest: Annotated[
        list[str] | None,
        Meta(description="`unknown_job`: up to 5 ids of the topic that are like this one, the most alike first."),
    ] = None
    compared: Annotated[int | None, Meta(description="`unknown_job`: ids that were compared, at most 2000.")] = None
    jobs: Annotated[int | None, Meta(description="`unknown_job`: jobs in the topic.")] = None


class Explanation(Response, frozen=True, kw_only=True):
    """Why a job has not run."""

    topic: str
    id: str
    state: Annotated[JobState | None, Meta(description="Its state; `null` when there is no such job.")]
    reasons: Annotated[list[WhyReason], Meta(description="What holds it back now comes first.")]


class DeadGroup(Response, frozen=True, kw_only=True):
    """Dead jobs of one topic with the same reason and error."""

    topic: str
    reason: Annotated[
        str, Meta(description="Why they are dead, a `DeadReason`; `unknown` if their records do not say.")
    ]
    error: Annotated[
        str | None,
        Meta(
            description="The first line of their errors, with `*` for what varies, at most 200 characters; `null` "
            "without."
        ),
    ]
    count: Annotated[int, Meta(description="How many of the jobs that were read.")]
    first_at: Annotated[datetime | None, Meta(description="When the first of them died; `null` if that is not known.")]
    last_at: Annotated[datetime | None, Meta(description="When the last of them died; `null` if that is not known.")]
    samples: Annotated[list[str], Meta(description="Ids of up to 3 of them.")]


class DeadErrors(Response, frozen=True, kw_only=True):
    """Dead jobs by error."""

    groups: Annotated[list[DeadGroup], Meta(description="The largest first.")]
    left_out: Annotated[int, Meta(description="How many smaller groups `limit` left out.")]
    dead: Annotated[int, Meta(description="Dead jobs of the selected topics, whenever they died.")]
    looked_at: Annotated[int, Meta(description="How many of these were read.")]
    complete: Annotated[
        bool, Meta(description="Whether all of them were read; else the counts are those of the jobs read.")
    ]
    unreadable_shards: Annotated[
        list[int], Meta(description="Shards of the store that cannot be reached; the jobs of their topics are missing.")
    ]


_Delayed = Annotated[int, Meta(description="All delayed jobs: `before`, `after` and `counts` together.")]
_Before = Annotated[int, Meta(description="Due before the first bucket.")]
_After = Annotated[int, Meta(description="Due after the last bucket.")]
_Counts = Annotated[list[int], Meta(description="Due in each bucket.")]
_Handled = Annotated[
    float | None,
    Meta(
        description="How many jobs consumers finished in the length of a bucket, on the mean of the last hour; "
        "`null` when that is not known, as for a selection of more than 200 topics."
    ),
]
_Scheduled = Annotated[
    list[int],
    Meta(
        description="Runs of schedules in each bucket that are not put yet, so they are no delayed jobs: those "
        "after the next run of each schedule."
    ),
]


class TopicForecast(Response, frozen=True, kw_only=True):
    """Delayed jobs of one topic by when they are due."""

    topic: str
    delayed: _Delayed
    before: _Before
    after: _After
    counts: _Counts
    scheduled: _Scheduled
    handled: _Handled


class Forecast(Response, frozen=True, kw_only=True):
    """Delayed jobs of the selected topics together by when they are due."""

    now: Annotated[datetime, Meta(description="The store's clock when the jobs were counted.")]
    begins_at: Annotated[datetime, Meta(description="When the first bucket begins.")] = field(name="from")
    ends_at: Annotated[datetime, Meta(description="When the last bucket ends.")] = field(name="to")
    bucket: Annotated[float, Meta(description="Length of a bucket in seconds.")]
    delayed: _Delayed
    before: _Before
    after: _After
    counts: _Counts
    scheduled: _Scheduled
    handled: _Handled
    topics: Annotated[
        list[TopicForecast], Meta(description="The topics with the most jobs due in the buckets come first.")
    ]
    left_out: Annotated[int, Meta(description="How many topics with delayed jobs are not shown.")]
    complete: Annotated[
        bool,
        Meta(
            description="`false`: there are too many topics or runs of schedules, and some are missing from the sums."
        ),
    ]
    unreadable_shards: Annotated[
        list[int], Meta(description="Shards of the store that cannot be reached; their topics are missing.")
    ]


class Consumer(Response, frozen=True, kw_only=True):
    """One consumer."""

    name: Annotated[str | None, Meta(description="The `consumer` of its pops; `null` for those that give none.")]
    addresses: Annotated[list[str], Meta(description="Where its pops came from; empty when it only holds jobs.")]
    clients: Annotated[list[str], Meta(description="The User-Agent of its pops, such as `deferd-python/0.2.0`.")]
    topics: Annotated[
        list[str], Meta(description="Topics and patterns of its pops, and topics of the jobs that it holds.")
    ]
    waiting: Annotated[int, Meta(description="Its pops that wait for a job now.")]
    last_seen_at: Annotated[
        datetime | None,
        Meta(
            description="When its last pop was under way; `null` when that is more than a minute ago and it holds jobs."
        ),
    ]
    held: Annotated[int | None, Meta(description="Jobs that it holds; `null` without a name: that is not known.")]
    lease_ends_at: Annotated[
        datetime | None, Meta(description="When the first of their leases ends; `null` without any.")
    ]


class Consumers(Response, frozen=True, kw_only=True):
    """Who consumes."""

    consumers: Annotated[list[Consumer], Meta(description="Those that hold most jobs first.")]
    left_out: Annotated[int, Meta(description="How many `limit` left out.")]
    nameless_held: Annotated[int, Meta(description="Jobs held by consumers that gave no name.")]
    complete: Annotated[
        bool,
        Meta(
            description="`false`: consumers or held jobs are missing, because there are too many (1000 held jobs of "
            "a topic, 200 topics with held jobs, 500 consumers of a process), or a shard of the store "
            "cannot be reached."
        ),
    ]
