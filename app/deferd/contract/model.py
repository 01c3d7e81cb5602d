"""Typed models of the HTTP API: the fields of requests.

Durations are seconds, with millisecond precision; instants are RFC 3339 timestamps with an offset. Unknown fields are
refused. The service and the client share these models, so this module imports neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import pydantic_core
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deferd.contract import limits
from deferd.contract.backoff import Backoff
from deferd.contract.ends import OnEnd
from deferd.contract.flow import Group, Limits, Priority, TopicLimits
from deferd.contract.json_values import is_deeper
from deferd.contract.strict_model import StrictModel, constraint, seconds_field
from deferd.contract.timestamps import parse_instant
from deferd.contract.windows import Window, WindowSpec

_OPEN: ContextVar[bool] = ContextVar("deferd_open_enums", default=False)


class OpenEnum(StrEnum):
    """Has only the members that it lists, but in `later_members` one for any text.

    One unknown value must not make a whole page of jobs unreadable for a client that is older than its service.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not (_OPEN.get() and isinstance(value, str)):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value.upper(), value
        return member

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Unpickle one of a later service, too."""
        return open_member, (type(self), self.value)


Member = TypeVar("Member", bound=OpenEnum)


@contextmanager
def later_members() -> Iterator[None]:
    """Reads the values of later services."""
    token = _OPEN.set(True)
    try:
        yield
    finally:
        _OPEN.reset(token)


def open_member(kind: type[Member], value: str) -> Member:
    """The member of this value, also of a later service's."""
    with later_members():
        return kind(value)


class JobState(OpenEnum):
    """State of a job; it is in exactly one at any time."""

    DELAYED = "delayed"
    """In the Delay Bucket until it is due."""
    READY = "ready"
    """Due and in the topic's Ready list, waiting for a consumer."""
    RESERVED = "reserved"
    """Held by a consumer under a lease that ends at `reserved_until`."""
    DEAD = "dead"
    """Not retried any more (see `reason` and `last_error`); kept until redriven, cancelled or its retention ends."""
    FINISHED = "finished"
    """Done; kept for `retain` seconds."""


class DeadReason(OpenEnum):
    """Why a job is dead."""

    EXPIRED = "expired"
    """It was not delivered within `ttl` seconds of being due."""
    ATTEMPTS = "attempts_exhausted"
    """`max_attempts` deliveries ended without a finish."""
    SCHEDULE = "schedule_ended"
    """Its `schedule` backoff had no wait left."""
    DEADLINE = "deadline"
    """It was not finished within `deadline` seconds of being due."""
    BURIED = "buried"
    """A consumer buried it."""


class AttemptEnd(OpenEnum):
    """How an attempt ended without a finish."""

    RELEASED = "released"
    """A consumer released the job."""
    BURIED = "buried"
    """A consumer buried it."""
    LEASE = "lease_ended"
    """Its lease ended."""
    TIME_LIMIT = "time_limit"
    """Its lease ended because the `time_limit` had passed."""
    DEADLINE = "deadline"
    """Its lease ended because the job's `deadline` had passed."""


TRACEPARENT_PATTERN = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


def _rfc3339(value: object) -> object:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ValueError("must be an RFC 3339 instant with a zone, as a string")  # noqa: TRY004 (pydantic's own)
    try:
        return parse_instant(value)
    except ValueError as error:
        raise ValueError(f"must be an RFC 3339 instant with a zone: {error}") from None


def _not_too_far(value: datetime) -> datetime:
    # For a limit of ten years this machine's clock is exact enough; due times use the store's clock.
    if value.timestamp() > time.time() + limits.DELAY_MAX_S:
        raise ValueError(f"must be at most {limits.DELAY_MAX_S} seconds (10 years) ahead")
    return value


def _not_too_deep(value: Any, info: ValidationInfo) -> Any:
    # The store, which is read in the mode "json", may have deeper values of revisions before this limit.
    if info.mode == "python" and is_deeper(value, limits.VALUE_DEPTH_MAX):
        raise ValueError(f"is nested deeper than {limits.VALUE_DEPTH_MAX} levels")
    return value


JsonValue = Annotated[Any, AfterValidator(_not_too_deep)]


def _short(value: Any) -> Any:
    size = len(pydantic_core.to_json(value))
    if size > limits.PROGRESS_BYTES:
        raise ValueError(f"must be at most {limits.PROGRESS_BYTES} bytes of JSON, and has {size}")
    return value


Progress = Annotated[JsonValue, AfterValidator(_short)]
Topic = Annotated[
    str, StringConstraints(pattern=limits.TOPIC_PATTERN), Field(description="Topic name.", examples=["orders.close"])
]
JobId = Annotated[
    str,
    StringConstraints(pattern=limits.ID_PATTERN),
    Field(description="Job id, unique within its topic.", examples=["order-1042"]),
]
Receipt = Annotated[
    str,
    StringConstraints(max_length=limits.RECEIPT_MAX),
    Field(description="Fencing token of one delivery, from the pop. Default: that of the current delivery."),
]
ConsumerName = Annotated[str, StringConstraints(pattern=limits.ID_PATTERN)]
Instant = Annotated[datetime, BeforeValidator(_rfc3339)]
Cutoff = Annotated[
    Instant,
    Field(
        description="Only jobs that were put until this instant, and dead ones only if they died until then. A preview "
        "returns the one to use.",
    ),
]
NormalizedError = Annotated[
    str,
    StringConstraints(max_length=limits.ERROR_PART_MAX),
    Field(
        description="Only dead jobs with this `error` of `GET /dead`, in which `*` stands for what varies; an empty "
        "text: jobs without an error. Without a `cutoff`: jobs that are dead when the call begins."
    ),
]
AsTask = Annotated[
    bool,
    Field(
        strict=True,
        description="Do it in the background: the response is 202 with a task, whose progress `GET /tasks/{id}` "
        "shows. Without a `limit` it acts on all jobs. A repetition with the same `request_id`, if the call has one, "
        "begins no second task.",
    ),
]
DueInstant = Annotated[
    Instant,
    AfterValidator(_not_too_far),
    Field(
        description="When the job is due, RFC 3339 with an offset, at most 10 years ahead; the past means now. "
        "Excludes `delay`.",
        examples=["2030-01-31T09:30:00.000Z"],
    ),
]
Ttr = Annotated[float, constraint("ttr")]
Delay = Annotated[
    float, seconds_field(0, limits.DELAY_MAX_S, "Seconds until the job is due: 0 to 315576000 (10 years).")
]
ErrorText = Annotated[
    str,
    StringConstraints(max_length=limits.ERROR_TEXT_MAX),
    Field(description=f"Error message, kept as `last_error`; at most {limits.ERROR_TEXT_MAX} characters."),
]

Traceparent = Annotated[
    str,
    StringConstraints(pattern=TRACEPARENT_PATTERN),
    Field(
        description="W3C trace context of the put, as in the HTTP header `traceparent`; passed to the consumer.",
        examples=["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
    ),
]


DurabilityLevel = Literal[
    "memory",
    "fsync",
    "replicated:1",
    "replicated:2",
    "replicated:3",
    "replicated:4",
    "replicated:5",
    "replicated:6",
    "replicated:7",
    "replicated:8",
    "replicated:9",
]
"""All values that match `limits.DURABILITY_PATTERN`, for type checkers."""
if TYPE_CHECKING:
    Durability = DurabilityLevel
else:
    Durability = Annotated[
        str,
        StringConstraints(pattern=limits.DURABILITY_PATTERN),
        Field(
            description="Where the put must be stored before its response: `memory`, in the store's memory; `fsync`, "
            f"on its disk; `replicated:N`, also in the memory of N replicas (N 1 to {limits.REPLICAS_MAX}).",
            examples=["replicated:1"],
        ),
    ]


IfReserved = Annotated[
    Literal["cancel", "refuse"],
    Field(
        description="What to do when a consumer holds the job: `cancel` it anyway (the consumer's next request for it "
        "gets 410 `job_cancelled`), or `refuse` with 409 `job_reserved`.",
    ),
]


def _all_different(tags: list[str]) -> list[str]:
    if len(set(tags)) < len(tags):
        raise ValueError("must not repeat a tag")
    return tags


def _fitting(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        if not name or any(character < " " or "\x7f" <= character <= "\x9f" for character in name):
            raise ValueError(f"must have names without control characters and not empty: {name!r:.100}")
    size = sum(len(text.encode()) for pair in headers.items() for text in pair)
    if size > limits.HEADERS_OF_JOB_BYTES:
        raise ValueError(f"must have at most {limits.HEADERS_OF_JOB_BYTES} bytes of names and values, has {size}")
    return headers


Tag = Annotated[
    str, StringConstraints(pattern=limits.TAG_PATTERN), Field(description="A tag.", examples=["order-1042"])
]
Tags = Annotated[
    list[Tag],
    AfterValidator(_all_different),
    Field(
        max_length=limits.TAGS_MAX,
        description=f"Up to {limits.TAGS_MAX} tags, by which the jobs of several topics can be cancelled or "
        "rescheduled together.",
        examples=[["order-1042", "customer:7"]],
    ),
]
_HeaderText = Annotated[str, StringConstraints(pattern=limits.HEADER_TEXT_PATTERN)]
Headers = Annotated[
    dict[str, _HeaderText],
    AfterValidator(_fitting),
    Field(
        max_length=limits.HEADERS_OF_JOB_MAX,
        description=f"Up to {limits.HEADERS_OF_JOB_MAX} names with texts, {limits.HEADERS_OF_JOB_BYTES} bytes "
        "together, without control characters; passed to the consumer beside the body.",
        examples=[{"tenant": "acme"}],
    ),
]


class Labelled(StrictModel):
    """What a producer notes on a job: for selections, for its consumer, and for the order of deliveries."""

    tags: Tags | None = None
    headers: Headers | None = None
    group: Group | None = None
    priority: Priority | None = None


# What a put does about an existing job with its id, and how puts of one id become one job.

_MOVING = frozenset({"replace", "append"})
"""Values of `on_conflict` with which a put moves the due time."""


# Each function below checks one field against those before it in `PutJob`; of those that are invalid nothing is known.


def _has_an_id(value: Any, info: ValidationInfo) -> Any:
    if info.data.get("id", "") is None:
        raise ValueError("needs an `id`: without one no two puts are for the same job")
    return value


def _appends_to_an_id(on_conflict: str, info: ValidationInfo) -> str:
    if on_conflict == "append" and info.data.get("id", "") is None:
        raise ValueError("`append` needs an `id`, under which the bodies are collected")
    return on_conflict


def _says_what_becomes_of_others(if_reserved: str, info: ValidationInfo) -> str:
    if if_reserved == "after":
        if info.data.get("on_conflict") == "reject":
            raise ValueError("`after` needs `on_conflict` `keep`, `replace` or `append`, not `reject`")
        _has_an_id(if_reserved, info)
    return if_reserved


def _counts_items(max_items: int, info: ValidationInfo) -> int:
    if info.data.get("on_conflict", "append") != "append":
        raise ValueError("needs `on_conflict` `append`: only appends make items")
    return max_items


def _is_long_enough(max_wait: float, info: ValidationInfo) -> float:
    if info.data.get("on_conflict", "replace") not in _MOVING:
        raise ValueError("needs `on_conflict` `replace` or `append`, which move the due time")
    delay = info.data.get("delay")
    if delay is not None and max_wait < delay:
        raise ValueError(f"must be at least the `delay`, {delay:g} seconds")
    return max_wait


OnConflict = Annotated[
    Literal["reject", "keep", "replace", "append"],
    Field(
        description="What to do when the topic has a job with this id: `reject` responds 409 `job_exists`; `keep` "
        "leaves the existing job unchanged; `replace` replaces it, unless a consumer holds it (409 `job_reserved`); "
        "`append` collects the bodies of all puts under this id: the consumer gets them as an array.",
    ),
    AfterValidator(_appends_to_an_id),
]
ConflictWith = Annotated[
    Literal["any", "live"],
    Field(
        description="Which jobs are in the way of this put: `any` job with its id, also a dead or finished one that is "
        "still kept and an id that `unique_for` keeps taken, or only a `live` one (delayed, ready or reserved).",
    ),
]
IfHeld = Annotated[
    Literal["refuse", "after"],
    Field(
        description="What to do when a consumer holds the job that is in the way: `refuse` responds 409 `job_reserved` "
        "(with `keep` the held job is kept); `after` stores this put as the job's one follow-up, which becomes the job "
        "when the held one has ended. Needs `on_conflict` `keep`, `replace` or `append`, which then say what becomes "
        "of an earlier follow-up.",
    ),
    AfterValidator(_says_what_becomes_of_others),
]
MaxWait = Annotated[
    float,
    seconds_field(
        0.001,
        limits.DELAY_MAX_S,
        "With `on_conflict` `replace` or `append`: each put moves the due time, but never beyond this many seconds "
        "after the first of the puts that became one job. At least as long as `delay`.",
    ),
    AfterValidator(_is_long_enough),
    AfterValidator(_has_an_id),
]
MaxItems = Annotated[
    int,
    Field(
        strict=True,
        ge=1,
        le=limits.ITEMS_MAX,
        description="With `on_conflict` `append`: the job is due at once when it has this many items, 1 to "
        f"{limits.ITEMS_MAX}.",
    ),
    AfterValidator(_counts_items),
]
UniqueFor = Annotated[
    float,
    seconds_field(
        0.001,
        limits.RETAIN_MAX_S,
        "Seconds for which the id stays taken after the job is finished, with any `on_conflict`: further puts get 409 "
        "`job_exists`. A cancel of the id frees it.",
    ),
    AfterValidator(_has_an_id),
]


def _is_one_job(batch: str, info: ValidationInfo) -> str:
    if info.data.get("on_conflict") == "append" or info.data.get("if_reserved") == "after":
        raise ValueError("must be left out with `append` and `after`: a batch counts jobs of one put each")
    return batch


BatchName = Annotated[
    str,
    StringConstraints(pattern=limits.BATCH_NAME_PATTERN),
    Field(description="Name of the batch.", examples=["import-42"]),
]
BatchOfPut = Annotated[
    str,
    StringConstraints(pattern=limits.BATCH_NAME_PATTERN),
    Field(
        description="The batch that the job is part of, which must exist (404 `batch_not_found`) and not be sealed "
        "(409 `batch_sealed`). It counts the job when it ends, and puts one job when all have ended. The job has the "
        f"tag `{limits.BATCH_TAG}NAME` as well. Not with `on_conflict` `append` or `if_reserved` `after`.",
        examples=["import-42"],
    ),
    AfterValidator(_is_one_job),
]
FollowUp = Annotated[
    Literal["cancel", "keep"],
    Field(
        description="What becomes of the job's follow-up (a put with `if_reserved` `after`): `cancel` it too, or "
        "`keep` it: it takes the job's place, not before the lease of a consumer that held the job would have ended.",
    ),
]


class JobPolicy(StrictModel):
    """How a job is delivered and kept. Omitted fields come from the topic, then from the service's defaults."""

    ttr: Ttr | None = None
    max_attempts: Annotated[int, constraint("max_attempts")] | None = None
    backoff: Backoff | None = None
    ttl: Annotated[float, constraint("ttl")] | None = None
    retain: Annotated[float, constraint("retain")] | None = None
    dead_retain: Annotated[float, constraint("dead_retain")] | None = None
    time_limit: Annotated[float, constraint("time_limit")] | None = None
    deadline: Annotated[float, constraint("deadline")] | None = None
    window: WindowSpec | None = None
    spread: Annotated[float, constraint("spread")] | None = None
    on_end: Annotated[OnEnd, constraint("on_end")] | None = None

    @property
    def end_topic(self) -> str | None:
        """The topic into which the end of a job puts one; None without `on_end`."""
        return None if self.on_end is None else self.on_end.topic


class _When(StrictModel):
    delay: Delay | None = None
    run_at: DueInstant | None = None

    @model_validator(mode="after")
    def _one_of_the_two(self) -> _When:
        if self.delay is not None and self.run_at is not None:
            raise ValueError("`delay` and `run_at` exclude each other: give one of them")
        return self


class PutJob(_When, JobPolicy, Labelled):
    """A job to put. Only `topic` is required."""

    topic: Topic
    id: JobId | None = Field(
        default=None, description="Id chosen by the producer. Default: one that the service generates."
    )
    body: JsonValue = Field(default=None, description="Any JSON value; passed to the consumer unchanged.")
    on_conflict: OnConflict = "reject"
    conflict_with: ConflictWith = "any"
    if_reserved: IfHeld = "refuse"
    max_wait: MaxWait | None = None
    max_items: MaxItems | None = None
    unique_for: UniqueFor | None = None
    batch: BatchOfPut | None = None
    traceparent: Traceparent | None = None
    durability: Durability | None = Field(
        default=None,
        description="How durable the put must be. Default: the topic's, else what the store is configured for.",
    )

    schema_examples = (
        {"topic": "orders.close", "id": "order-1042", "delay": 1800, "body": {"order": 1042}},
        {"topic": "payments", "id": "payment-7", "run_at": "2030-01-31T09:30:00.000Z", "durability": "replicated:1"},
        {
            "topic": "reminders",
            "run_at": "2030-01-31T09:30:00.000Z",
            "body": "pay the rent",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "max_attempts": 5,
            "backoff": {"kind": "schedule", "seconds": [120, 600, 3600], "then": "dead"},
        },
        {"topic": "calls", "id": "call-7", "window": Window.schema_examples[0], "spread": 600},
        {"topic": "calls", "id": "call-8", "window": "office"},
        {"topic": "orders.close", "id": "order-1044", "on_end": OnEnd.schema_examples[0]},
    )


class PutBatch(StrictModel):
    """Jobs to put in one request. All are validated first; then each is stored or refused separately."""

    jobs: list[PutJob] = Field(min_length=1, max_length=limits.BATCH_MAX, description="1 to 1000 jobs.")

    schema_examples = (
        {
            "jobs": [
                {"topic": "orders.close", "id": "order-1042", "delay": 1800, "body": {"order": 1042}},
                {"topic": "orders.close", "id": "order-1043", "delay": 1800, "body": {"order": 1043}},
            ]
        },
    )


class ChangeJob(_When, JobPolicy, Labelled):
    """Changes to a delayed or ready job; omitted fields stay as they are.

    `null` clears `ttl`, `max_attempts`, `time_limit`, `deadline`, `window`, `spread`, `on_end`, `tags`, `headers`,
    `group` and `priority`. New tags or headers replace all earlier ones.
    """

    body: JsonValue = Field(default=None, description="New body.")

    schema_examples = ({"delay": 3600}, {"window": "office"}, {"body": {"order": 1042, "reminded": True}})


class CancelItem(StrictModel):
    """One job to cancel, of many."""

    id: JobId
    if_reserved: IfReserved = "cancel"
    follow_up: FollowUp = "cancel"


class CancelBatch(StrictModel):
    """Jobs of one topic to cancel."""

    jobs: list[CancelItem] = Field(min_length=1, max_length=limits.BATCH_MAX, description="1 to 1000 jobs.")

    schema_examples = ({"jobs": [{"id": "order-1042"}, {"id": "order-1043", "if_reserved": "refuse"}]},)


class _Finish(StrictModel):
    receipt: Receipt | None = None
    result: JsonValue = Field(
        default=None, description="Any JSON value; kept with the finished job if it has a `retain`."
    )


class FinishJob(_Finish):
    """Finish of a job, and jobs to put in the same step."""

    put: list[PutJob] | None = Field(
        default=None,
        min_length=1,
        max_length=limits.CHAINED_PUTS_MAX,
        description=f"1 to {limits.CHAINED_PUTS_MAX} jobs that follow: the job is finished and all of these are put, "
        "or nothing is done. Their topics must be in the same shard of the store (422 `different_shard`). A repeated "
        "finish puts nothing again.",
    )

    schema_examples = (
        {"receipt": "0f3a9c21b7d4.1"},
        {"receipt": "0f3a9c21b7d4.1", "result": {"closed": True}},
        {"receipt": "0f3a9c21b7d4.1", "put": [{"topic": "mail", "id": "closed-1042", "body": {"order": 1042}}]},
    )


class FinishItem(_Finish):
    """One job to finish, of many."""

    id: JobId


class FinishBatch(StrictModel):
    """Jobs of one topic to finish."""

    jobs: list[FinishItem] = Field(min_length=1, max_length=limits.BATCH_MAX, description="1 to 1000 jobs.")

    schema_examples = ({"jobs": [{"id": "order-1042", "receipt": "0f3a9c21b7d4.1"}, {"id": "order-1043"}]},)


class HeldJob(StrictModel):
    """One delivery of many."""

    id: JobId
    receipt: Receipt = Field(description="Fencing token of the delivery, from the pop.")


class HeldJobs(StrictModel):
    """Deliveries of one topic that a consumer holds."""

    jobs: list[HeldJob] = Field(min_length=1, max_length=limits.BATCH_MAX, description="1 to 1000 deliveries.")

    schema_examples = ({"jobs": [{"id": "order-1042", "receipt": "0f3a9c21b7d4.1"}]},)


class JobToReturn(StrictModel):
    """One job to return, of many."""

    id: JobId
    receipt: Receipt | None = Field(
        default=None,
        description="Fencing token of the delivery, from the pop. Without it the job is taken from the consumer "
        "that holds it: that counts as one of the job's `snoozes`.",
    )


class JobsToReturn(StrictModel):
    """Jobs of one topic to return to the queue."""

    jobs: list[JobToReturn] = Field(min_length=1, max_length=limits.BATCH_MAX, description="1 to 1000 jobs.")
    consumer: ConsumerName | None = Field(
        default=None, description="Only jobs that this consumer holds: for others the result is `receipt_stale`."
    )

    schema_examples = (
        {"jobs": [{"id": "order-1042", "receipt": "0f3a9c21b7d4.1"}]},
        {"jobs": [{"id": "order-1042"}, {"id": "order-1043"}], "consumer": "worker-7"},
    )


class ReleaseJob(StrictModel):
    """Release of a reserved job: it is ready again after `delay` seconds; default: its backoff."""

    receipt: Receipt | None = None
    count: bool = Field(
        default=True,
        strict=True,
        description="`false`: the delivery does not count as an attempt, but as one of the job's `snoozes`. Needs a "
        f"`delay` of at least {limits.SNOOZE_MIN_S} seconds.",
    )
    delay: Delay | None = Field(default=None, validate_default=True)
    error: ErrorText | None = None

    @field_validator("delay")
    @classmethod
    def _long_enough(cls, delay: float | None, info: ValidationInfo) -> float | None:
        if info.data.get("count") is False and (delay is None or delay < limits.SNOOZE_MIN_S):
            raise ValueError(f"must be at least {limits.SNOOZE_MIN_S} seconds when `count` is false")
        return delay

    schema_examples = (
        {"receipt": "0f3a9c21b7d4.1", "error": "the payment service responded with 502"},
        {"delay": 5},
    )


class TouchJob(StrictModel):
    """Extension of a lease: it ends `ttr` seconds from now (default: the job's own ttr). It may report a progress."""

    receipt: Receipt | None = None
    ttr: Ttr | None = Field(
        default=None,
        description="Seconds until the lease ends, 0.1 to 86400. Default: the job's `ttr`.",
    )
    progress: Progress = Field(
        default=None,
        description="How far the job is: a number from 0 to 1, or any JSON value of at most "
        f"{limits.PROGRESS_BYTES} bytes. The job has the last one, also in later attempts and when it has ended.",
    )

    schema_examples = (
        {"receipt": "0f3a9c21b7d4.1", "ttr": 120},
        {"receipt": "0f3a9c21b7d4.1", "progress": 0.4},
        {"receipt": "0f3a9c21b7d4.1", "progress": {"done": 40, "of": 100}},
    )


class BuryJob(StrictModel):
    """Burial of a reserved job: it becomes dead."""

    receipt: Receipt | None = None
    error: ErrorText | None = None

    schema_examples = ({"receipt": "0f3a9c21b7d4.1", "error": "there is no such order"},)


class TopicSettings(JobPolicy):
    """Defaults for jobs put into the topic from now on, and limits of the topic. Replaces all earlier settings."""

    max_jobs: int | None = constraint("max_jobs", default=None)
    durability: Durability | None = constraint("durability", default=None)
    events: int = constraint("events", default=0)
    partitions: int | None = constraint("partitions", default=None)
    limits: Limits = None

    schema_examples = (
        {
            "ttr": 30,
            "max_attempts": 5,
            "backoff": {"kind": "fixed", "seconds": 10, "jitter": 0.1},
            "ttl": None,
            "retain": 86400,
            "window": "office",
            "spread": 60,
            "max_jobs": 100000,
            "durability": None,
            "events": 0,
            "partitions": None,
            "limits": TopicLimits.schema_examples[0],
        },
    )


class PauseTopic(StrictModel):
    """A pause of a topic. No field is required."""

    reason: (
        Annotated[
            str,
            StringConstraints(min_length=1, max_length=limits.PAUSE_REASON_MAX),
            Field(description=f"Why, for people; at most {limits.PAUSE_REASON_MAX} characters."),
        ]
        | None
    ) = None

    schema_examples = ({"reason": "the payment service is down"}, {})


class Redrive(StrictModel):
    """Which dead jobs become ready again: those in `ids`, otherwise up to `limit`, the oldest first without a `tag`."""

    ids: list[JobId] | None = Field(
        default=None,
        min_length=1,
        max_length=limits.BATCH_MAX,
        description="1 to 1000 ids; jobs that are not dead are skipped.",
    )
    limit: int = Field(
        default=limits.REDRIVE_DEFAULT,
        strict=True,
        ge=1,
        le=limits.REDRIVE_MAX,
        description="Most jobs to redrive without `ids`.",
    )
    tag: Tag | None = Field(default=None, description="Only jobs with this tag.")
    group: Group | None = Field(default=None, description="Only jobs of this group.")
    reason: DeadReason | None = Field(default=None, description="Only jobs that are dead for this reason.")
    error: NormalizedError | None = None
    cutoff: Cutoff | None = None
    dry_run: bool = Field(
        default=False, strict=True, description="Change nothing: count the jobs, and name ten of them."
    )
    as_task: AsTask = False
    rate: float | None = Field(
        default=None,
        strict=True,
        ge=limits.REDRIVE_RATE_MIN,
        le=limits.REDRIVE_RATE_MAX,
        allow_inf_nan=False,
        description="Only with `as_task`: most jobs a second, 0.01 to 1000, so that the system that failed is not "
        "flooded again. Each job stays dead until its turn, also when the task is stopped.",
    )

    @model_validator(mode="after")
    def _error_or_ids(self) -> Redrive:
        if self.ids is not None and self.error is not None:
            raise ValueError("must not have both `ids` and `error`")
        if self.as_task and (self.dry_run or self.ids is not None):
            raise ValueError("must have `as_task` only without `dry_run` and `ids`")
        if self.rate is not None and not self.as_task:
            raise ValueError("must have `rate` only with `as_task`")
        return self

    schema_examples = ({"ids": ["order-1042"]}, {"limit": 100}, {"reason": "buried", "as_task": True, "rate": 10})
