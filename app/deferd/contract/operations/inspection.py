"""For operators: why a job does not run, dead jobs by error, what comes due, and who consumes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_args

from msgspec import field

from deferd.contract.model import AttemptEnd, DeadReason, JobState
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.push import CircuitState
from deferd.contract.operations.response import Response, one_of, shown_as
from deferd.contract.scopes import Scope
from deferd.contract.windows import WindowSpec

LIMITS = ("max_in_flight", "rate", "group_paused", "group_order", "group_max_in_flight", "group_rate")


class WhyReason(Response, frozen=True, kw_only=True):
    """One reason why a job has not run. It has the facts of its `code`; others are omitted."""

    code: Annotated[
        str,
        one_of(
            *("not_due", "backoff", "window", "paused", "push", "limited", "no_consumers", "behind", "leased"),
            *("dead", "finished", "cancelled", "unknown_job"),
        ),
        "The kind of reason, for programs. Later versions may add kinds.",
    ]
    text: Annotated[str, "The reason as a sentence, for people."]
    due_at: Annotated[datetime | None, "`not_due`, `backoff`: when the job is due."] = None
    due_in: Annotated[
        float | None, "`not_due`, `backoff`: seconds until then; negative when the timer is about to move it."
    ] = None
    asked_for: Annotated[datetime | None, "`window`: when it would be due without window and spread."] = None
    moved: Annotated[float | None, "`window`: by how many seconds they moved it."] = None
    window: Annotated[Any, shown_as(WindowSpec | None), "`window`: its opening hours, if it has some."] = None
    spread: Annotated[float | None, "`window`: its spread in seconds, if it has one."] = None
    since: Annotated[
        datetime | None,
        "`paused`: since when. `no_consumers`: when the last consumer of the topic was seen. `leased`: when the job "
        "was handed out. The last two are omitted when that is not known.",
    ] = None
    reason: Annotated[str | None, shown_as(DeadReason | None), "`dead`: why."] = None
    by: Annotated[
        str | None,
        "`paused`: name of the key that paused the topic, if it was one. `leased`: name of the "
        "consumer, if it gave one. `backoff`: the consumer of the last attempt, if it gave a name.",
    ] = None
    error: Annotated[
        str | None, "`backoff`, `dead`: the last error message, if there is one. `push`: the target's last error."
    ] = None
    attempt: Annotated[
        int | None, "`backoff`, `dead`: number of the last attempt. `leased`: number of the one under way."
    ] = None
    ended_at: Annotated[
        datetime | None, "`backoff`: when the last attempt ended. `push`: when the target failed last."
    ] = None
    how: Annotated[str | None, shown_as(AttemptEnd | None), "`backoff`: how the last attempt ended."] = None
    max_attempts: Annotated[int | None, "`backoff`: attempts after which it is dead, if limited."] = None
    snoozes: Annotated[int | None, "`not_due`, `backoff`: how often it was snoozed, if it was."] = None
    circuit: Annotated[
        str | None, one_of(*get_args(CircuitState)), "`push`: the circuit of the target of the topic."
    ] = None
    failures: Annotated[int | None, "`push`: failures of the target in a row."] = None
    in_flight: Annotated[int | None, "`push`: requests to the target that are under way."] = None
    next_try_at: Annotated[
        datetime | None, "`push`: until when the circuit is open; then one request tries the target."
    ] = None
    why: Annotated[str | None, "`paused`: why, if that was said when it was paused."] = None
    limit: Annotated[str | None, one_of(*LIMITS), "`limited`: the limit that holds it back."] = None
    group: Annotated[str | None, "`limited`, `behind`: the group of the job, if it has one."] = None
    next_at: Annotated[datetime | None, "`limited`: when the rate allows the next delivery."] = None
    jobs_ahead: Annotated[
        int | None,
        "`behind`, `limited`: ready jobs of the topic that are handed out before it; where groups take turns, only "
        "those of its group.",
    ] = None
    ready: Annotated[int | None, "`behind`: ready jobs of the topic."] = None
    oldest_age: Annotated[float | None, "`behind`: seconds since the oldest ready job of the topic was due."] = None
    rate: Annotated[
        float | None,
        "`behind`: jobs of the topic handed out per second, by all processes in the last seconds; "
        "omitted when that is not known.",
    ] = None
    estimated_wait: Annotated[
        float | None,
        "`behind`: seconds until it is handed out at this rate; omitted without a rate above 0, and where groups take "
        "turns.",
    ] = None
    reserved_until: Annotated[datetime | None, "`leased`: when the lease ends."] = None
    lease_left: Annotated[float | None, "`leased`: seconds until then."] = None
    touches: Annotated[int | None, "`leased`: how often the lease was extended."] = None
    follow_up: Annotated[bool | None, "`leased`: `true` when a put waits until the job has ended."] = None
    dead_at: Annotated[datetime | None, "`dead`: when it became dead, if known."] = None
    finished_at: Annotated[datetime | None, "`finished`: when."] = None
    kept_until: Annotated[
        datetime | None,
        "`dead`, `finished`: when its record is removed, or its id is free again. `cancelled`: "
        "until when this is remembered.",
    ] = None
    nearest: Annotated[
        list[str] | None, "`unknown_job`: up to 5 ids of the topic that are like this one, the most alike first."
    ] = None
    compared: Annotated[int | None, "`unknown_job`: ids that were compared, at most 2000."] = None
    jobs: Annotated[int | None, "`unknown_job`: jobs in the topic."] = None


class Explanation(Response, frozen=True, kw_only=True):
    """Why a job has not run."""

    topic: str
    id: str
    state: Annotated[JobState | None, "Its state; `null` when there is no such job."]
    shelved: Annotated[
        bool | None, "`true`: the delayed job was on the shelf, and this look has loaded it; otherwise omitted."
    ] = None
    reasons: Annotated[list[WhyReason], "What holds it back now comes first."]

    schema_examples = (
        {
            "topic": "orders.close",
            "id": "order-1042",
            "state": "ready",
            "reasons": [
                {
                    "code": "paused",
                    "text": "Topic orders.close has been paused for 4m by ops: it hands out no jobs.",
                    "since": "2026-11-21T07:22:58.123Z",
                    "by": "ops",
                },
                {
                    "code": "behind",
                    "text": "1,203 jobs are ahead of it; the oldest has waited 4m; consumers take 20 jobs a second; so "
                    "it may take 1m.",
                    "jobs_ahead": 1203,
                    "ready": 1204,
                    "oldest_age": 240.125,
                    "rate": 20,
                    "estimated_wait": 60.2,
                },
            ],
        },
    )


class DeadOriginal(Response, frozen=True, kw_only=True):
    """The first line of an error as it is, of which a group of dead jobs shows what does not vary."""

    error: Annotated[str, "At most 200 characters."]
    count: Annotated[int, "How many jobs of the group have it."]


class DeadGroup(Response, frozen=True, kw_only=True):
    """Dead jobs of one topic with the same reason and error."""

    topic: str
    reason: Annotated[str, "Why they are dead, a `DeadReason`; `unknown` if their records do not say."]
    error: Annotated[
        str | None, "The first line of their errors, with `*` for what varies, at most 200 characters; `null` without."
    ]
    count: Annotated[int, "How many of the jobs that were read."]
    first_at: Annotated[datetime | None, "When the first of them died; `null` if that is not known."]
    last_at: Annotated[datetime | None, "When the last of them died; `null` if that is not known."]
    samples: Annotated[list[str], "Ids of up to 3 of them."]
    originals: Annotated[
        list[DeadOriginal],
        "The most frequent first lines of their errors as they are, at most 3; omitted without.",
    ] = field(default_factory=list)


class DeadErrors(Response, frozen=True, kw_only=True):
    """Dead jobs by error."""

    groups: Annotated[list[DeadGroup], "The largest first."]
    left_out: Annotated[int, "How many smaller groups `limit` left out."]
    dead: Annotated[int, "Dead jobs of the selected topics, whenever they died."]
    looked_at: Annotated[int, "How many of these were read."]
    complete: Annotated[bool, "Whether all of them were read; otherwise the counts cover only the jobs that were read."]
    unreadable_shards: Annotated[
        list[int], "Shards of the store that cannot be reached; the jobs of their topics are missing."
    ]

    schema_examples = (
        {
            "groups": [
                {
                    "topic": "mail.remind",
                    "reason": "attempts_exhausted",
                    "error": "SMTP 421: * try again later",
                    "count": 298,
                    "first_at": "2026-11-21T02:11:07.920Z",
                    "last_at": "2026-11-21T03:02:44.318Z",
                    "samples": ["remind-7713", "remind-7712", "remind-7709"],
                    "originals": [
                        {"error": "SMTP 421: 4.7.0 try again later", "count": 201},
                        {"error": "SMTP 421: 4.7.28 try again later", "count": 97},
                    ],
                }
            ],
            "left_out": 0,
            "dead": 312,
            "looked_at": 312,
            "complete": True,
            "unreadable_shards": [],
        },
    )


_Delayed = Annotated[int, "All delayed jobs: `before`, `after` and `counts` together."]
_Before = Annotated[int, "Due before the first bucket."]
_After = Annotated[int, "Due after the last bucket."]
_Counts = Annotated[list[int], "Due in each bucket."]
_Handled = Annotated[
    float | None,
    "How many jobs consumers finished in the length of a bucket, on the mean of the last hour; "
    "`null` when that is not known, as for a selection of more than 200 topics.",
]
_Scheduled = Annotated[
    list[int],
    "Runs of schedules in each bucket that are not put yet, so they are no delayed jobs: those "
    "after the next run of each schedule.",
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
    rate_limit: Annotated[
        float | None,
        "The most jobs that the `rate` of the topic's `limits` lets consumers have in the length of a bucket; omitted "
        "without one.",
    ] = None


class Forecast(Response, frozen=True, kw_only=True):
    """Delayed jobs of the selected topics together by when they are due."""

    now: Annotated[datetime, "The store's clock when the jobs were counted."]
    begins_at: Annotated[datetime, "When the first bucket begins."] = field(name="from")
    ends_at: Annotated[datetime, "When the last bucket ends."] = field(name="to")
    bucket: Annotated[float, "Length of a bucket in seconds."]
    delayed: _Delayed
    before: _Before
    after: _After
    counts: _Counts
    scheduled: _Scheduled
    handled: _Handled
    topics: Annotated[list[TopicForecast], "The topics with the most jobs due in the buckets come first."]
    left_out: Annotated[int, "How many topics with delayed jobs are not shown."]
    complete: Annotated[
        bool,
        "`false`: there are too many topics or runs of schedules, or the shelf cannot be read, and some are missing "
        "from the sums.",
    ]
    unreadable_shards: Annotated[list[int], "Shards of the store that cannot be reached; their topics are missing."]

    schema_examples = (
        {
            "now": "2026-11-21T07:00:00.000Z",
            "from": "2026-11-21T07:00:00.000Z",
            "to": "2026-11-21T08:00:00.000Z",
            "bucket": 1200,
            "delayed": 14203,
            "before": 0,
            "after": 13000,
            "counts": [37, 866, 300],
            "handled": 410.5,
            "scheduled": [0, 4, 4],
            "topics": [
                {
                    "topic": "orders.close",
                    "delayed": 14203,
                    "before": 0,
                    "after": 13000,
                    "counts": [37, 866, 300],
                    "handled": 410.5,
                    "scheduled": [0, 4, 4],
                    "rate_limit": 600,
                }
            ],
            "left_out": 0,
            "complete": True,
            "unreadable_shards": [],
        },
    )


class Consumer(Response, frozen=True, kw_only=True):
    """One consumer."""

    name: Annotated[str | None, "The `consumer` of its pops; `null` for those that give none."]
    addresses: Annotated[list[str], "Where its pops came from; empty when it only holds jobs."]
    clients: Annotated[list[str], "The User-Agent of its pops, such as `deferd-python/0.2.0`."]
    topics: Annotated[list[str], "Topics and patterns of its pops, and topics of the jobs that it holds."]
    waiting: Annotated[int, "Its pops that wait for a job now."]
    last_seen_at: Annotated[
        datetime | None,
        "When its last pop was under way; `null` when that is more than a minute ago and it holds jobs.",
    ]
    held: Annotated[int | None, "Jobs that it holds; `null` without a name: that is not known."]
    lease_ends_at: Annotated[datetime | None, "When the first of their leases ends; `null` without any."]


class Consumers(Response, frozen=True, kw_only=True):
    """Who consumes."""

    consumers: Annotated[list[Consumer], "Those that hold most jobs first."]
    left_out: Annotated[int, "How many `limit` left out."]
    nameless_held: Annotated[int, "Jobs held by consumers that gave no name."]
    complete: Annotated[
        bool,
        "`false`: consumers or held jobs are missing, because there are too many (1000 held jobs of a topic, 200 "
        "topics with held jobs, 500 consumers of a process), or a shard of the store cannot be reached.",
    ]

    schema_examples = (
        {
            "consumers": [
                {
                    "name": "worker-1",
                    "addresses": ["10.0.3.17"],
                    "clients": ["deferd-python/0.2.0"],
                    "topics": ["mail.*", "orders.close"],
                    "waiting": 1,
                    "last_seen_at": "2026-11-21T07:26:58.123Z",
                    "held": 8,
                    "lease_ends_at": "2026-11-21T07:27:31.904Z",
                }
            ],
            "left_out": 0,
            "nameless_held": 0,
            "complete": True,
        },
    )


EXPLAIN_JOB = Operation(
    "explain_job",
    "GET",
    "/jobs/{topic}/{id}/why",
    tag="inspection",
    scope=Scope.READ,
    summary="Explain why a job has not run",
    description=(
        "Returns the job's state and the reasons why it has not run. The first reason is what holds it back now; each "
        "has a `code` and facts for programs and a `text` for people. This is one short read of the store, also for "
        "topics with millions of jobs. For a job that does not exist the response is 200 with the reason "
        "`unknown_job` and similar ids of the topic."
    ),
    response=Explanation,
    response_description="The reasons.",
)
LIST_DEAD_ERRORS = Operation(
    "list_dead_errors",
    "GET",
    "/dead",
    tag="inspection",
    scope=Scope.READ,
    summary="List dead jobs by error",
    description=(
        "Groups the dead jobs by topic, reason and the first line of their last error, in which numbers, hexadecimal "
        "digits, instants and quoted texts are replaced by `*`; statuses, such as those of HTTP and SMTP, and quoted "
        "names without digits stay. `GET /topics/{topic}/jobs` lists the jobs of a group by `reason` and "
        "`error_group`. In a topic with more dead jobs than its share of `look_at`, those that are kept longest are "
        "read: without a `dead_retain` of their own, those that died last. `complete` says whether all were read. The "
        "response may be up to 5 seconds old."
    ),
    response=DeadErrors,
    response_description="The groups, the largest first.",
)
GET_FORECAST = Operation(
    "get_forecast",
    "GET",
    "/forecast",
    tag="inspection",
    scope=Scope.READ,
    summary="Forecast what comes due",
    description=(
        "Counts the delayed jobs by when they are due: for each bucket of time in all topics together, and in those "
        "topics that have the most. `before` counts jobs due before the first bucket, such as overdue ones, `after` "
        "jobs due after the last; with `counts` they add up to `delayed`. `scheduled` counts the runs of schedules "
        "that are not put yet; the next run of each is a delayed job already. The counts are exact, and up to 10 "
        "seconds old. `handled` is how many jobs consumers finish in a bucket: compare it with the counts to see "
        "whether they will keep up. `rate_limit` is how many the limits of a topic allow. With `to` and without "
        "`from` the first bucket begins now."
    ),
    response=Forecast,
    response_description="The counts.",
)
LIST_CONSUMERS = Operation(
    "list_consumers",
    "GET",
    "/consumers",
    tag="inspection",
    scope=Scope.READ,
    summary="List consumers",
    description=(
        "Lists who has popped, or waited in a pop, within a minute in any process of the service, and who "
        "holds jobs. Consumers that give a name are one entry for each name, others one for each address and client. "
        "Processes publish what they see every few seconds. A key for some topics sees only the consumers of those, "
        "without their other topics."
    ),
    response=Consumers,
    response_description="The consumers, those that hold most jobs first.",
)
