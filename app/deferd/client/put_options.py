"""The options of a put.

`Client.put`, `AsyncClient.put`, `PutBuffer.put` and the `put` of a bound job definition all take `PutOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal, Required, TypedDict

from pydantic import ValidationError

from deferd.client.durations import Seconds
from deferd.contract.backoff import ExponentialBackoff, FixedBackoff, ScheduleBackoff
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.model import DurabilityLevel, PutJob
from deferd.contract.windows import Day, Window

_NONE_IS_A_VALUE = frozenset({"max_attempts", "ttl", "time_limit", "deadline", "window", "spread"})


class ExponentialBackoffDict(TypedDict, total=False):
    """ExponentialBackoff as a JSON object."""

    kind: Required[Literal["exponential"]]
    base: float
    cap: float
    jitter: float


class FixedBackoffDict(TypedDict, total=False):
    """FixedBackoff as a JSON object."""

    kind: Required[Literal["fixed"]]
    seconds: float
    jitter: float


class ScheduleBackoffDict(TypedDict, total=False):
    """ScheduleBackoff as a JSON object."""

    kind: Required[Literal["schedule"]]
    seconds: Required[Sequence[float]]
    then: Literal["dead", "repeat_last"]
    jitter: float


Backoff = (
    ExponentialBackoff
    | FixedBackoff
    | ScheduleBackoff
    | ExponentialBackoffDict
    | FixedBackoffDict
    | ScheduleBackoffDict
)


WindowDict = TypedDict(
    "WindowDict",
    {"zone": str, "days": Sequence[Day] | None, "from": str, "to": str, "except": Sequence[str | date]},
    total=False,
)
"""Window as a JSON object."""
OpeningHours = Window | WindowDict | Sequence[Window | WindowDict] | str
"""One window, several, or the name of a calendar."""


class PutDefaults(TypedDict, total=False):
    """The options of a put that a job definition may set for all its jobs. Durations are seconds or a timedelta.

    An option that is left out or None comes from the topic's settings, then from the service's defaults. None for
    `max_attempts`, `ttl`, `time_limit`, `deadline`, `window` and `spread` is a value: "none", which overrides the
    topic's settings.
    """

    delay: Seconds | None
    """Time from now until the job is due, 0 to 10 years. Left out: the job is due at once."""
    ttr: Seconds | None
    """Time to run: the length of a lease, 0.1 s to 24 h."""
    max_attempts: int | None
    """Deliveries after which the job is dead instead of being delivered again. None: no limit."""
    backoff: Backoff | None
    """How long a released job waits: one of the three backoff classes, or its JSON object."""
    ttl: Seconds | None
    """If the first delivery does not happen within this time after the due time, the job is dead. None: no limit."""
    retain: Seconds | None
    """How long the finished job and its result are kept. 0: not kept."""
    dead_retain: Seconds | None
    """How long the dead job is kept. 0: not kept. Left out: as long as the service keeps dead jobs."""
    time_limit: Seconds | None
    """How long one attempt may run, at least 0.1 s: its lease cannot be extended beyond that. None: no limit."""
    deadline: Seconds | None
    """If the job is not finished within this time after the due time, it is dead. None: no limit."""
    window: OpeningHours | None
    """Opening hours, to which the due time moves, and the end of every backoff. None: always open."""
    spread: Seconds | None
    """The due time moves by a part of this that depends on the id, 0 to 24 h. None: it does not."""
    on_conflict: Literal["reject", "keep", "replace", "append"]
    """What happens if the id is taken: `reject` (the default) raises JobExists, `keep` returns the existing job,
    `replace` replaces it, or raises JobReserved if a consumer holds it; `append` adds this body to the array that the
    consumer gets. An append whose response was lost is not repeated: it raises NoAnswer."""
    conflict_with: Literal["any", "live"]
    """Which jobs of the id are in the way: `any` (the default), also a dead or finished one that is still kept, or only
    a `live` one."""
    if_reserved: Literal["refuse", "after"]
    """What happens if a consumer holds the job that is in the way: `refuse` (the default) raises JobReserved, `after`
    (with `keep`, `replace` or `append`) makes this put its follow-up, which becomes the job when that has ended."""
    max_wait: Seconds | None
    """With `replace` or `append`: each put moves the due time, but never beyond this time after the first put."""
    max_items: int | None
    """With `on_conflict` `append`: the job is due at once when it has this many items, 1 to 10,000."""
    unique_for: Seconds | None
    """How long the id stays taken after the job is finished: puts raise JobExists meanwhile. A cancel frees it."""
    tags: Sequence[str] | None
    """Up to 8 tags, by which the jobs of several topics can be cancelled or rescheduled together."""
    headers: Mapping[str, str] | None
    """Up to 16 names with texts, 4 KiB together, which the consumer gets beside the body."""
    durability: DurabilityLevel | None
    """The durability level that the put must reach before it returns: `memory`, `fsync` or `replicated:N`."""


class PutOptions(PutDefaults, total=False):
    """The options of a put, all keyword-only."""

    id: str | None
    """The producer's own id for the job, unique within its topic. Left out: the client makes one."""
    run_at: datetime | None
    """When the job is due, instead of `delay`: a datetime with a zone, at most 10 years ahead. The past means now."""
    traceparent: str | None
    """The W3C trace context of the put. Left out inside a worker's handler: that of the handler's job."""


def set_options(options: Mapping[str, Any], known: type[PutDefaults] = PutOptions) -> dict[str, Any]:
    """The options that are set: None means "left out", except where it is a value.

    Raises:
        TypeError: an option is not a key of `known`.
    """
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"unexpected keyword argument {name!r}: the options are {', '.join(known.__annotations__)}")
    return {name: value for name, value in options.items() if value is not None or name in _NONE_IS_A_VALUE}


def put_fields(topic: str, body: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a put as the JSON object of the contract. Raises TypeError for an unknown option."""
    fields = {"topic": topic, "body": body, **set_options(options)}
    if fields.get("on_conflict") == "reject":  # the default; `with_id` replaces it by `keep`
        del fields["on_conflict"]
    return fields


def check_put(fields: Mapping[str, Any]) -> PutJob:
    """Validate a job to put, in its JSON form, as the service does. Raises InvalidInput."""
    try:
        return PutJob.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(body_errors(error)) from None


def body_errors(error: ValidationError) -> list[FieldError]:
    """The errors that pydantic found, with paths that begin with ``"body"``."""
    return [
        FieldError(("body", *details["loc"]), details["msg"], details["input"])
        for details in error.errors(include_url=False, include_context=False)
    ]
