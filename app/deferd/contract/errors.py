"""Every error that deferd raises on purpose.

::

    DeferdError
    ├── InvalidInput        validation          a value is outside its bounds
    ├── PayloadTooLarge     payload_too_large   a request body is over the limit
    ├── Unauthorized        unauthorized        no key, or an unknown one
    ├── Forbidden           forbidden           it is not for this caller
    ├── NotFound
    │   ├── JobNotFound     job_not_found       no such job (in a state that allows the call)
    │   └── TopicNotFound   topic_not_found     nothing was ever put or set there
    ├── Conflict
    │   ├── JobExists       job_exists          the id is taken
    │   ├── JobReserved     job_reserved        a consumer holds the job
    │   └── ReceiptStale    receipt_stale       the receipt is not that of the live delivery
    ├── JobCancelled        job_cancelled       the delivery ended because the job was cancelled
    ├── DurabilityUnavailable durability_unavailable the store cannot make a put as durable as it asks to be
    └── TryLater
        ├── TopicFull       topic_full          the topic holds `max_jobs` jobs
        ├── RateLimited     rate_limited        too many requests
        └── StoreUnavailable store_unavailable  the store does not answer, or refuses to write

Each carries its facts as fields; the text is made from them. How an error looks over HTTP is said in one
place only, `deferd.api.problem_details`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


class DeferdError(Exception):
    """Base of all errors of deferd; `code` is the word DESIGN.md section 3 gives it."""

    code: ClassVar[str]


@dataclass(frozen=True)
class FieldError:
    """One refused value: where it stands, what is wrong with it, and the value itself when it is small.

    `path` is the way from the document's root, e.g. ``("body", "jobs", 3, "delay")``.
    """

    path: tuple[str | int, ...]
    message: str
    value: Any = None


class InvalidInput(DeferdError):
    """A value is missing, unknown, of the wrong kind or outside its bounds. Nothing was stored."""

    code = "validation"

    def __init__(self, field_errors: list[FieldError]) -> None:
        self.field_errors = field_errors
        super().__init__("; ".join(f"{'.'.join(map(str, error.path))}: {error.message}" for error in field_errors))


class PayloadTooLarge(DeferdError):
    """The request body is longer than `limit_bytes`. Nothing was stored."""

    code = "payload_too_large"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the request body is larger than {limit_bytes} bytes")


class Unauthorized(DeferdError):
    """The call needs a key and brought none that is known."""

    code = "unauthorized"


class Forbidden(DeferdError):
    """The key is known and does not allow this call; or there are no keys, and the call is one of a web page's."""

    code = "forbidden"


class NotFound(DeferdError):
    """What the call names is not there."""


class JobNotFound(NotFound):
    """There is no job of this id in the topic, or none in a state that the call can act on (see `detail`)."""

    code = "job_not_found"

    def __init__(self, topic: str, job_id: str, detail: str | None = None) -> None:
        self.topic = topic
        self.job_id = job_id
        super().__init__(detail or f"topic {topic!r} has no job {job_id!r}")


class TopicNotFound(NotFound):
    """Nothing was ever put into the topic, nor was it set up."""

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"there is no topic {topic!r}")


class Conflict(DeferdError):
    """The job is not in the state that the call needs; nothing was changed.

    `durability`, of a refused put: the level that what stands in its way has reached, such as `fsync`.
    """

    def __init__(self, topic: str, job_id: str, detail: str, durability: str | None = None) -> None:
        self.topic = topic
        self.job_id = job_id
        self.durability = durability
        super().__init__(detail)


class JobExists(Conflict):
    """A put met a job of the same id and `on_conflict` was `reject`."""

    code = "job_exists"

    def __init__(self, topic: str, job_id: str, durability: str | None = None) -> None:
        super().__init__(topic, job_id, f"topic {topic!r} already has a job {job_id!r}", durability)


class JobReserved(Conflict):
    """A consumer holds the job, so it cannot be replaced, changed or (when asked to refuse) cancelled."""

    code = "job_reserved"

    def __init__(self, topic: str, job_id: str, durability: str | None = None) -> None:
        super().__init__(topic, job_id, f"a consumer holds job {job_id!r} of topic {topic!r}", durability)


class ReceiptStale(Conflict):
    """The receipt belongs to an earlier delivery or an earlier job, or nobody holds the job (see `detail`)."""

    code = "receipt_stale"

    def __init__(self, topic: str, job_id: str, detail: str | None = None) -> None:
        text = f"a consumer holds job {job_id!r} of topic {topic!r} under another receipt"
        super().__init__(topic, job_id, detail or text)


class JobCancelled(DeferdError):
    """The job was cancelled while a consumer held it: its holder should stop."""

    code = "job_cancelled"

    def __init__(self, topic: str, job_id: str) -> None:
        self.topic = topic
        self.job_id = job_id
        super().__init__(f"job {job_id!r} of topic {topic!r} was cancelled")


class DurabilityUnavailable(DeferdError):
    """The store cannot make a put as durable as `durability` asks for. Nothing was stored.

    `available` are the levels that it gives.
    """

    code = "durability_unavailable"

    def __init__(self, durability: str, available: list[str], detail: str) -> None:
        self.durability = durability
        self.available = available
        super().__init__(detail)


class TryLater(DeferdError):
    """The same call may succeed after `retry_after_s` seconds (a whole number, at least 1)."""

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(detail)


class TopicFull(TryLater):
    """The topic holds as many live jobs (delayed, ready, reserved) as its `max_jobs` or the caller's key allows."""

    code = "topic_full"

    def __init__(self, topic: str, max_jobs: int, *, of_caller: bool = False) -> None:
        self.topic = topic
        self.max_jobs = max_jobs
        whose = "all with which this key may put more" if of_caller else "its max_jobs"
        super().__init__(f"topic {topic!r} holds {max_jobs} live jobs, which is {whose}")


class RateLimited(TryLater):
    """The caller asks more often than it may."""

    code = "rate_limited"


class StoreUnavailable(TryLater):
    """The store does not answer, is loading, is out of memory or refuses to write.

    After this a put may or may not have been stored; asking again with the same id is safe. `timed_out`: it left the
    call without an answer.
    """

    code = "store_unavailable"

    def __init__(self, detail: str, retry_after_s: int = 1, *, timed_out: bool = False) -> None:
        self.timed_out = timed_out
        super().__init__(detail, retry_after_s)
