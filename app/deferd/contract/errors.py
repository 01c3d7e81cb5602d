"""All errors that deferd raises.

::

    DeferdError
    ├── InvalidInput        validation          a value is invalid
    ├── PayloadTooLarge     payload_too_large   a request body is over the limit
    ├── Unauthorized        unauthorized        no key or an unknown one
    ├── Forbidden           forbidden           the caller may not do this
    ├── NotFound
    │   ├── JobNotFound     job_not_found       no such job, or not in a state that allows the call
    │   ├── TopicNotFound   topic_not_found     nothing was ever put into it or set for it
    │   ├── ScheduleNotFound schedule_not_found no schedule has this name
    │   ├── CalendarNotFound calendar_not_found no calendar has this name
    │   ├── BatchNotFound    batch_not_found    no batch has this name
    │   ├── TaskNotFound     task_not_found     no task has this id, or it ended a week ago
    │   └── PushNotFound     push_not_found     the topic's jobs are not pushed
    ├── Conflict
    │   ├── JobExists       job_exists          the id is taken
    │   ├── JobReserved     job_reserved        a consumer holds the job
    │   └── ReceiptStale    receipt_stale       the receipt is not the one of the live delivery
    ├── ScheduleExists      schedule_exists     the name is taken, and only a new schedule was to be created
    ├── BatchSealed         batch_sealed        the batch takes no more jobs
    ├── TopicPushed         topic_pushed        the topic's jobs are pushed, so they cannot be popped
    ├── JobCancelled        job_cancelled       the job was cancelled during the delivery
    ├── DurabilityUnavailable durability_unavailable the store cannot give the requested durability
    ├── DifferentShard      different_shard     the topics are in different shards of the store
    ├── NotYetAvailable     not_yet_available   processes of an earlier release still use the store
    ├── TooLate             too_late            the request came after the instant in its Deferd-Not-After
    └── TryLater
        ├── TopicFull       topic_full          the topic holds `max_jobs` jobs
        ├── RateLimited     rate_limited        too many requests
        └── StoreUnavailable store_unavailable  the store does not respond or refuses to write

Each carries its facts as attributes and builds its text from them. `deferd.api.problem_details` maps errors to HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from deferd.contract import limits


class DeferdError(Exception):
    """Base of all errors of deferd; `code` is the code in the HTTP response."""

    code: ClassVar[str]


@dataclass(frozen=True)
class FieldError:
    """One invalid value: its path, what is wrong with it, and the value itself when it is small.

    `path` starts at the root of the request, e.g. ``("body", "jobs", 3, "delay")``.
    """

    path: tuple[str | int, ...]
    message: str
    value: Any = None


class InvalidInput(DeferdError):
    """A value is missing, unknown, of the wrong type or out of range. Nothing was stored."""

    code = "validation"

    def __init__(self, field_errors: list[FieldError]) -> None:
        self.field_errors = field_errors
        super().__init__("; ".join(f"{'.'.join(map(str, error.path))}: {error.message}" for error in field_errors))


class PayloadTooLarge(DeferdError):
    """The request body is longer than `limit_bytes`, or an append would make the job's so. Nothing was stored."""

    code = "payload_too_large"

    def __init__(self, limit_bytes: int, *, of_items: bool = False) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(
            f"with this item the body of the job would be larger than {limit_bytes} bytes or have more than "
            f"{limits.ITEMS_MAX} items; the job is unchanged"
            if of_items
            else f"the request body is larger than {limit_bytes} bytes"
        )


class Unauthorized(DeferdError):
    """The request needs a key and has none, or an unknown one."""

    code = "unauthorized"


class Forbidden(DeferdError):
    """The key does not permit this request; or there are no keys and the request comes from a web page."""

    code = "forbidden"


class NotFound(DeferdError):
    """The requested job or topic does not exist."""


class JobNotFound(NotFound):
    """The topic has no job with this id, or the job is not in a state that allows the call (see `detail`)."""

    code = "job_not_found"

    def __init__(self, topic: str, job_id: str, detail: str | None = None) -> None:
        self.topic = topic
        self.job_id = job_id
        super().__init__(detail or f"topic {topic!r} has no job {job_id!r}")


class TopicNotFound(NotFound):
    """Nothing was ever put into the topic, and it has no settings."""

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"there is no topic {topic!r}")


class ScheduleNotFound(NotFound):
    """There is no schedule with this name."""

    code = "schedule_not_found"

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule
        super().__init__(f"there is no schedule {schedule!r}")


class ScheduleExists(DeferdError):
    """A put with `If-None-Match: *` found a schedule with this name. Nothing was changed."""

    code = "schedule_exists"

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule
        super().__init__(f"there is a schedule {schedule!r} already")


class CalendarNotFound(NotFound):
    """There is no calendar with this name."""

    code = "calendar_not_found"

    def __init__(self, calendar: str) -> None:
        self.calendar = calendar
        super().__init__(f"there is no calendar {calendar!r}")


class BatchNotFound(NotFound):
    """There is no batch with this name; one that is completed is kept for a day."""

    code = "batch_not_found"

    def __init__(self, batch: str) -> None:
        self.batch = batch
        super().__init__(f"there is no batch {batch!r}: put it first with PUT /batches/{batch}")


class BatchSealed(DeferdError):
    """The batch is sealed, so no more jobs can be put into it. Nothing was stored."""

    code = "batch_sealed"

    def __init__(self, batch: str) -> None:
        self.batch = batch
        super().__init__(f"batch {batch!r} is sealed and takes no more jobs: put them into a batch of another name")


class TaskNotFound(NotFound):
    """There is no task with this id; one that has ended is kept for a week."""

    code = "task_not_found"

    def __init__(self, task: str) -> None:
        self.task = task
        super().__init__(f"there is no task {task!r}")


class PushNotFound(NotFound):
    """The topic has no push: its jobs are popped."""

    code = "push_not_found"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"the jobs of topic {topic!r} are not pushed: set it with PUT /topics/{topic}/push")


class TopicPushed(DeferdError):
    """The jobs of the topic are pushed to a URL, so no consumer can pop them."""

    code = "topic_pushed"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"the jobs of topic {topic!r} are pushed, so they cannot be popped: remove its push first")


class Conflict(DeferdError):
    """The job is not in a state that allows the call; nothing was changed.

    `durability`, for a refused put: the durability level of the job in its way, such as `fsync`.
    """

    def __init__(self, topic: str, job_id: str, detail: str, durability: str | None = None) -> None:
        self.topic = topic
        self.job_id = job_id
        self.durability = durability
        super().__init__(detail)


class JobExists(Conflict):
    """A put found a job with the same id, and `on_conflict` was `reject`; or `unique_for` keeps the id taken.

    `state` is the job's state, and `until_ms` is when its retention or its `unique_for` ends, if it is dead or
    finished. Both are None when the service did not say.
    """

    code = "job_exists"

    def __init__(
        self,
        topic: str,
        job_id: str,
        durability: str | None = None,
        state: str | None = None,
        until_ms: int | None = None,
    ) -> None:
        self.state = state
        self.until_ms = until_ms
        text = f"topic {topic!r} already has a job {job_id!r}"
        if self.until is not None:
            text += f", which is {state} and keeps the id until {self.until:%Y-%m-%dT%H:%M:%SZ}"
        super().__init__(topic, job_id, text, durability)

    @property
    def until(self) -> datetime | None:
        """`until_ms` as an instant."""
        return None if self.until_ms is None else datetime.fromtimestamp(self.until_ms / 1000, UTC)


class JobReserved(Conflict):
    """A consumer holds the job, so it cannot be replaced, changed or (with `if_reserved=refuse`) cancelled."""

    code = "job_reserved"

    def __init__(self, topic: str, job_id: str, durability: str | None = None) -> None:
        super().__init__(topic, job_id, f"a consumer holds job {job_id!r} of topic {topic!r}", durability)


class ReceiptStale(Conflict):
    """The receipt is of an earlier delivery or an earlier job, or nobody holds the job (see `detail`)."""

    code = "receipt_stale"

    def __init__(self, topic: str, job_id: str, detail: str | None = None) -> None:
        text = f"a consumer holds job {job_id!r} of topic {topic!r} under another receipt"
        super().__init__(topic, job_id, detail or text)


class JobCancelled(DeferdError):
    """The job was cancelled while a consumer held it; the consumer should stop."""

    code = "job_cancelled"

    def __init__(self, topic: str, job_id: str) -> None:
        self.topic = topic
        self.job_id = job_id
        super().__init__(f"job {job_id!r} of topic {topic!r} was cancelled")


class DurabilityUnavailable(DeferdError):
    """The store cannot give a put the requested `durability`. Nothing was stored.

    `available` lists the levels that it can give.
    """

    code = "durability_unavailable"

    def __init__(self, durability: str, available: list[str], detail: str) -> None:
        self.durability = durability
        self.available = available
        super().__init__(detail)


class DifferentShard(DeferdError):
    """A job should be put into `topic`, which is in another shard of the store than what it belongs to.

    That is the job whose finish puts it, or its batch. Nothing was done.
    """

    code = "different_shard"

    def __init__(self, topic: str, detail: str) -> None:
        self.topic = topic
        super().__init__(detail)


class NotYetAvailable(DeferdError):
    """The request uses what is new in this release, and processes of an earlier one use the store. Nothing was done."""

    code = "not_yet_available"


class TooLate(DeferdError):
    """The request came after the instant in its `Deferd-Not-After`. Nothing was done.

    The client sends it once more by itself: the response tells what the service's clock shows.
    """

    code = "too_late"

    def __init__(self, detail: str = "the instant in Deferd-Not-After has passed; nothing was done") -> None:
        super().__init__(detail)


class TryLater(DeferdError):
    """The same call may succeed after `retry_after_s` seconds (an integer, at least 1)."""

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(detail)


class TopicFull(TryLater):
    """The topic holds as many live jobs (delayed, ready, reserved) as its `max_jobs` or the caller's key allows."""

    code = "topic_full"

    def __init__(self, topic: str, max_jobs: int, *, of_caller: bool = False) -> None:
        self.topic = topic
        self.max_jobs = max_jobs
        limit = "the limit for puts with this key" if of_caller else "its max_jobs"
        super().__init__(f"topic {topic!r} holds {max_jobs} live jobs, which is {limit}")


class RateLimited(TryLater):
    """The caller exceeds its rate limit or quota."""

    code = "rate_limited"


class StoreUnavailable(TryLater):
    """The store does not respond, is loading, is out of memory or refuses to write.

    A put may or may not have been stored; repeating it with the same id is safe. `timed_out`: the store did not
    respond in time.
    """

    code = "store_unavailable"

    def __init__(self, detail: str, retry_after_s: int = 1, *, timed_out: bool = False) -> None:
        self.timed_out = timed_out
        super().__init__(detail, retry_after_s)


def excerpt(text: bytes, most: int) -> str:
    """The beginning of a foreign text for a message: its first `most` bytes as one line without control characters."""
    shown = text[:most].decode(errors="replace")
    return " ".join("".join(one if one.isprintable() else " " for one in shown).split())
