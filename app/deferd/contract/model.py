"""The words of the HTTP contract as typed models: what a request may say, and what a job looks like.

Durations are seconds (numbers, kept to the millisecond); instants are RFC 3339 with a zone. Unknown fields
are refused. Both the service and the client use these models, so this module imports nothing of either.
"""

from __future__ import annotations

import time
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from deferd.contract import limits
from deferd.contract.timestamps import parse_instant

TRACEPARENT_PATTERN = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


class JobState(StrEnum):
    """Where a job is; it is in exactly one of these at any instant."""

    DELAYED = "delayed"
    """Waiting in the Delay Bucket for its due time."""
    READY = "ready"
    """Due, in the topic's Ready list, waiting for a consumer."""
    RESERVED = "reserved"
    """A consumer holds it, under a lease that ends at `reserved_until`."""
    DEAD = "dead"
    """Given up on (see `reason` and `last_error`); kept until it is redriven, cancelled or its retention ends."""
    FINISHED = "finished"
    """Done; kept for `retain` seconds."""


class DeadReason(StrEnum):
    """Why a job is dead."""

    EXPIRED = "expired"
    """Its first delivery did not happen within `ttl` seconds of being due."""
    ATTEMPTS = "attempts_exhausted"
    """`max_attempts` deliveries ended without a finish."""
    SCHEDULE = "schedule_ended"
    """Its `schedule` backoff had no wait left."""
    BURIED = "buried"
    """A consumer buried it."""


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
    # The host's clock is good enough for a bound of ten years; when a job is due is the store's to say.
    if value.timestamp() > time.time() + limits.DELAY_MAX_S:
        raise ValueError(f"must be at most {limits.DELAY_MAX_S} seconds (10 years) ahead")
    return value


def _seconds(low: float, high: float, text: str) -> Any:
    return Field(strict=True, ge=low, le=high, allow_inf_nan=False, description=text)


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
    Field(description="Fencing token of one delivery, from the pop's answer. Without it the live delivery is meant."),
]
Instant = Annotated[datetime, BeforeValidator(_rfc3339)]
DueInstant = Annotated[
    Instant,
    AfterValidator(_not_too_far),
    Field(
        description="The instant at which the job is due, RFC 3339 with a zone, at most 10 years ahead; the past means "
        "now. Instead of `delay`.",
        examples=["2030-01-31T09:30:00.000Z"],
    ),
]
Ttr = Annotated[
    float,
    _seconds(
        limits.TTR_MIN_S,
        limits.TTR_MAX_S,
        "Time to run, the length of a lease, in seconds: 0.1 to 86400. Default: the topic's, else 60.",
    ),
]
Delay = Annotated[
    float, _seconds(0, limits.DELAY_MAX_S, "Seconds from now until the job is due: 0 to 315576000 (10 years).")
]
Ttl = Annotated[
    float,
    _seconds(
        0.001,
        limits.TTL_MAX_S,
        "Seconds after `due_at` within which the first delivery must happen, else the job goes to dead with reason "
        "`expired`. `null`: no bound.",
    ),
]
Retain = Annotated[
    float, _seconds(0, limits.RETAIN_MAX_S, "Seconds to keep the job's record after it is finished. 0: not kept.")
]
MaxAttempts = Annotated[
    int,
    Field(
        strict=True,
        ge=1,
        le=limits.ATTEMPTS_MAX,
        description="Deliveries after which the job goes to dead instead of coming back. `null`: no limit.",
    ),
]
Jitter = Annotated[
    float,
    Field(strict=True, ge=0, le=1, allow_inf_nan=False, description="Spread of a wait, as a fraction: 0.1 is +-10 %."),
]
ErrorText = Annotated[
    str,
    StringConstraints(max_length=limits.ERROR_TEXT_MAX),
    Field(description=f"What went wrong, kept as `last_error`; at most {limits.ERROR_TEXT_MAX} characters."),
]

Traceparent = Annotated[
    str,
    StringConstraints(pattern=TRACEPARENT_PATTERN),
    Field(
        description="The W3C trace context of the put, as in the HTTP header of that name; shown to the consumer.",
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
"""What `limits.DURABILITY_PATTERN` matches, one by one, for type checkers."""
if TYPE_CHECKING:
    Durability = DurabilityLevel
else:
    Durability = Annotated[
        str,
        StringConstraints(pattern=limits.DURABILITY_PATTERN),
        Field(
            description="What the put must have reached before it is answered: `memory` of the store; `fsync`, its "
            f"disk; `replicated:N`, the memory of N replicas as well (N 1 to {limits.REPLICAS_MAX}).",
            examples=["replicated:1"],
        ),
    ]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _require_kind(schema: dict[str, Any]) -> None:
    """In JSON the kind must be given, although the class implies it in Python."""
    schema["properties"]["kind"].pop("default", None)
    schema["required"] = ["kind", *(name for name in schema.get("required", []) if name != "kind")]


class _BackoffKind(_Strict):
    model_config = ConfigDict(json_schema_extra=_require_kind)


class ExponentialBackoff(_BackoffKind):
    """Wait `min(cap, base^attempts)` seconds, spread by +-jitter. The default: 2, 4, 8 ... 128, 212, 212 ..."""

    kind: Literal["exponential"] = "exponential"
    base: float = Field(
        default=2, strict=True, ge=1, le=1000, allow_inf_nan=False, description="Seconds after the first try."
    )
    cap: float = Field(
        default=212,
        strict=True,
        ge=0,
        le=limits.BACKOFF_WAIT_MAX_S,
        allow_inf_nan=False,
        description="The longest wait, in seconds.",
    )
    jitter: Jitter = 0


class FixedBackoff(_BackoffKind):
    """Wait the same number of seconds after every attempt, spread by +-jitter."""

    kind: Literal["fixed"] = "fixed"
    seconds: float = Field(
        default=10,
        strict=True,
        ge=0,
        le=limits.BACKOFF_WAIT_MAX_S,
        allow_inf_nan=False,
        description="The wait, in seconds.",
    )
    jitter: Jitter = 0


class ScheduleBackoff(_BackoffKind):
    """Wait `seconds[n]` after attempt n+1; after the last one the job goes to dead, or the last wait repeats."""

    kind: Literal["schedule"] = "schedule"
    seconds: list[Annotated[float, Field(strict=True, ge=0, le=limits.BACKOFF_WAIT_MAX_S, allow_inf_nan=False)]] = (
        Field(
            min_length=1,
            max_length=limits.BACKOFF_STEPS_MAX,
            description="The waits in seconds, in order.",
            examples=[[120, 600, 3600]],
        )
    )
    then: Literal["dead", "repeat_last"] = Field(default="dead", description="What follows the last wait.")
    jitter: Jitter = 0


Backoff = Annotated[
    ExponentialBackoff | FixedBackoff | ScheduleBackoff,
    Field(
        discriminator="kind",
        description="How long a released job waits before it is ready again.",
        json_schema_extra={"x-name": "Backoff"},  # the name of its schema in the OpenAPI document
    ),
]


class JobPolicy(_Strict):
    """How a job behaves; what it leaves out comes from its topic, and what that leaves out from the service."""

    ttr: Ttr | None = None
    max_attempts: MaxAttempts | None = None
    backoff: Backoff | None = None
    ttl: Ttl | None = None
    retain: Retain | None = None


class _When(_Strict):
    delay: Delay | None = None
    run_at: DueInstant | None = None

    @model_validator(mode="after")
    def _one_of_the_two(self) -> _When:
        if self.delay is not None and self.run_at is not None:
            raise ValueError("`delay` and `run_at` exclude each other: give one of them")
        return self


class PutJob(_When, JobPolicy):
    """A job to put. Only `topic` is needed."""

    topic: Topic
    id: JobId | None = Field(default=None, description="The producer's own id; without one the service makes one.")
    body: Any = Field(default=None, description="Any JSON value; handed to the consumer as it is.")
    on_conflict: Literal["reject", "keep", "replace"] = Field(
        default="reject",
        description="What to do when the topic has a job of this id: `reject` answers 409 `job_exists`; `keep` leaves "
        "the old job as it is; `replace` puts the new one in its place, unless a consumer holds it (409 "
        "`job_reserved`).",
    )
    traceparent: Traceparent | None = None
    durability: Durability | None = Field(
        default=None,
        description="How durable the put must be. Default: the topic's, else what the store gives by itself.",
    )


class PutBatch(_Strict):
    """Jobs to put in one call; validated as a whole, then each is stored or answered on its own."""

    jobs: list[PutJob] = Field(min_length=1, max_length=limits.BATCH_MAX, description="1 to 1000 jobs.")


class ChangeJob(_When, JobPolicy):
    """What to change of a delayed or ready job; what is left out stays. `null` clears `ttl` and `max_attempts`."""

    body: Any = Field(default=None, description="The new body.")


class FinishJob(_Strict):
    """A job is done."""

    receipt: Receipt | None = None
    result: Any = Field(default=None, description="Any JSON value; kept with the record if the job has a `retain`.")


class FinishItem(FinishJob):
    """One job of a batch finish."""

    id: JobId


class FinishBatch(_Strict):
    """Jobs of one topic that are done."""

    jobs: list[FinishItem] = Field(min_length=1, max_length=limits.BATCH_MAX, description="1 to 1000 jobs.")


class ReleaseJob(_Strict):
    """Give a job back: it is delivered again after `delay` seconds, or after its backoff when that is left out."""

    receipt: Receipt | None = None
    delay: Delay | None = None
    error: ErrorText | None = None


class TouchJob(_Strict):
    """Extend the lease: it ends `ttr` seconds from now (default: the job's own ttr)."""

    receipt: Receipt | None = None
    ttr: Ttr | None = None


class BuryJob(_Strict):
    """Move a reserved job to the dead ones."""

    receipt: Receipt | None = None
    error: ErrorText | None = None


class TopicSettings(JobPolicy):
    """Defaults for jobs put into the topic from now on, and the topic's own bound. The whole is replaced."""

    max_jobs: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=limits.MAX_JOBS_MAX,
        description="Most live (delayed, ready or reserved) jobs; a put beyond it answers 429 `topic_full`. "
        "`null`: no limit.",
    )
    durability: Durability | None = Field(
        default=None,
        description="How durable a put must be that does not say so itself. `null`: what the store gives by itself.",
    )


class Redrive(_Strict):
    """Which dead jobs go back to ready: those of `ids`, else the oldest `limit` ones."""

    ids: list[JobId] | None = Field(
        default=None,
        min_length=1,
        max_length=limits.BATCH_MAX,
        description="1 to 1000 ids; those that are not dead are passed over.",
    )
    limit: int = Field(
        default=limits.REDRIVE_DEFAULT,
        strict=True,
        ge=1,
        le=limits.REDRIVE_MAX,
        description="Most jobs to redrive when `ids` is left out.",
    )


class Job(BaseModel):
    """A job as the service shows it. A field that a job has nothing for is left out."""

    model_config = ConfigDict(extra="allow", frozen=True)

    topic: str = Field(description="Its topic.")
    id: str = Field(description="Its id, unique within the topic.")
    state: JobState
    body: Any = Field(description="Any JSON value, as the producer gave it.")
    created_at: datetime = Field(description="When it was put.")
    due_at: datetime = Field(description="When the job is, or was, due.")
    ttr: float = Field(description="Length of a lease in seconds.")
    attempts: int = Field(description="Deliveries so far, the live one included.")
    max_attempts: int | None = Field(description="Deliveries after which it goes to dead. `null`: no limit.")
    backoff: Backoff
    ttl: float | None = Field(
        description="Seconds after `due_at` within which the first delivery must happen. `null`: no bound."
    )
    retain: float = Field(description="Seconds for which its record is kept after it is finished. 0: not kept.")
    last_error: str | None = Field(default=None, description="What the last release or bury said went wrong.")
    reason: DeadReason | None = Field(default=None, description="Why the job is dead.")
    reserved_until: datetime | None = Field(default=None, description="When the lease ends, unless it is touched.")
    reserved_by: str | None = Field(default=None, description="The `consumer` that holds it, if that gave its name.")
    finished_at: datetime | None = Field(default=None, description="When it was finished.")
    traceparent: str | None = Field(default=None, description="The W3C trace context of the put, if it gave one.")
    result: Any = Field(default=None, description="Any JSON value, as the finish gave it.")


class Delivery(Job):
    """A job in the hands of a consumer."""

    receipt: str = Field(description="Fencing token of this delivery: send it with finish, release, touch and bury.")
    attempt: int = Field(description="Which delivery this is, from 1.")
    reserved_until: datetime = Field(description="When the lease ends, unless it is touched.")
