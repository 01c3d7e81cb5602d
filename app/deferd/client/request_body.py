"""Values of a Python program as the JSON objects of the HTTP contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NamedTuple, Required, TypedDict, overload

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from deferd.contract.backoff import ExponentialBackoff, FixedBackoff, ScheduleBackoff
from deferd.contract.ends import OnEnd, Outcome
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.fields import SECONDS_OF_PUTS
from deferd.contract.model import FinishItem, PutJob
from deferd.contract.operations.jobs import Delivery
from deferd.contract.windows import Day, Window


class JobRef(NamedTuple):
    """A job by its name, in place of a Delivery in finish, release, touch and bury.

    Without a receipt the call applies to whichever delivery is live.
    """

    topic: str
    id: str
    receipt: str | None = None


Seconds = float | timedelta
"""A duration: a number of seconds, or a timedelta."""


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


class OnEndDict(TypedDict, total=False):
    """OnEnd as a JSON object."""

    topic: Required[str]
    on: Sequence[Outcome]
    id: str
    body: bool


End = OnEnd | OnEndDict
WindowDict = TypedDict(
    "WindowDict",
    {"zone": str, "days": Sequence[Day] | None, "from": str, "to": str, "except": Sequence[str | date]},
    total=False,
)
"""Window as a JSON object."""
OneWindow = Window | WindowDict | Mapping[str, Any]
"""A window; a mapping is a WindowDict whose type a program does not declare."""
OpeningHours = OneWindow | Sequence[OneWindow] | str
"""One window, several, or the name of a calendar."""
JobToPut = PutJob | Mapping[str, Any]
JobToFinish = JobRef | Delivery | FinishItem | Mapping[str, Any]
_SECONDS = frozenset(SECONDS_OF_PUTS)
_NUMBERS: tuple[type, ...] = (float, int, type(None))
_INSTANTS = (str, type(None))
_AS_IN_JSON: dict[str, tuple[type, ...]] = {**dict.fromkeys(SECONDS_OF_PUTS, _NUMBERS), "run_at": _INSTANTS}
"""The types of fields that need no conversion, of those that may need one."""


def encode(value: Any) -> bytes:
    """A value as JSON. Raises InvalidInput if it cannot be written as JSON."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except (ValueError, TypeError, RecursionError) as error:
        raise not_json(error) from error


def as_json(job: Mapping[str, Any]) -> Any:
    """A job as the service reads it: written as JSON and parsed again. Raises InvalidInput if that is not possible."""
    try:
        return from_json(encode(job), allow_inf_nan=False)
    except ValueError as error:  # NaN and the infinities, and too deep nesting
        raise not_json(error) from error


def not_json(error: Exception) -> InvalidInput:
    """The error for a value that cannot be written as JSON, because of `error`."""
    return InvalidInput([FieldError(("body",), f"cannot be written as JSON: {error}")])


def job_fields(job: JobToPut) -> dict[str, Any]:
    """A job to put as the JSON object of the contract: durations in seconds, `run_at` in RFC 3339.

    The dict itself if there is nothing to convert.

    Raises:
        InvalidInput: `run_at` is not a datetime with a zone.
    """
    if type(job) is dict and _is_as_in_json(job):
        return job
    fields = in_seconds(set_fields(job))
    run_at = fields.get("run_at")
    if isinstance(run_at, datetime):
        fields["run_at"] = instant("run_at", run_at)
    elif run_at is not None and not isinstance(run_at, str):
        raise InvalidInput([FieldError(("run_at",), "must be a datetime with a zone", repr(run_at))])
    return fields


def _is_as_in_json(job: dict[str, Any]) -> bool:
    if _SECONDS.isdisjoint(job):  # as usual: this takes a third of the time
        return type(job.get("run_at")) in _INSTANTS
    return not [name for name in job if name in _AS_IN_JSON and type(job[name]) not in _AS_IN_JSON[name]]


def finish_item(job: JobToFinish) -> Mapping[str, Any]:
    """One job of a batch to finish."""
    if isinstance(job, Delivery):
        return {"id": job.id, "receipt": job.receipt}
    if isinstance(job, JobRef):
        return {"id": job.id} if job.receipt is None else {"id": job.id, "receipt": job.receipt}
    return set_fields(job) if isinstance(job, FinishItem) else job


def set_fields(source: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model that were set, or a copy of a mapping."""
    if type(source) is dict:  # to find out whether it is a model takes longer
        return source.copy()
    if isinstance(source, BaseModel):
        return {name: getattr(source, name) for name in source.model_fields_set}
    return dict(source)


def in_seconds(fields: dict[str, Any], names: Iterable[str] = SECONDS_OF_PUTS) -> dict[str, Any]:
    """Replace timedeltas in the duration fields, by default those of puts, by seconds, in place."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, timedelta):
            fields[name] = value.total_seconds()
    return fields


def in_rfc_3339(fields: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Replace datetimes in these fields by their text, in place. Raises InvalidInput for one without a zone."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, datetime):
            fields[name] = instant(name, value)
    return fields


@overload
def listed(topics: Sequence[str] | str) -> str: ...


@overload
def listed(topics: None) -> None: ...


def listed(topics: Sequence[str] | str | None) -> str | None:
    """Names and patterns of topics as a path or a query has them."""
    return topics if topics is None or isinstance(topics, str) else ",".join(topics)


def refuse_unknown(arguments: Mapping[str, Any], known: type, kind: str = "options") -> None:
    """Raise TypeError, as a function would, for a keyword argument that is not a key of the TypedDict `known`."""
    names = known.__annotations__
    for name in arguments:
        if name not in names:
            raise TypeError(f"unexpected keyword argument {name!r}: the {kind} are {', '.join(names)}")


def without_none(**values: Any) -> dict[str, Any]:
    """The arguments that are not None, durations in seconds."""
    return in_seconds({name: value for name, value in values.items() if value is not None})


def seconds(value: Seconds) -> float:
    """A duration as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def instant(name: str, value: datetime) -> str:
    """An instant as RFC 3339.

    Raises:
        InvalidInput: it has no zone, or is outside the years 1 to 9999 in UTC.
    """
    if not isinstance(value, datetime):
        raise InvalidInput([FieldError((name,), "must be a datetime with a zone", value)])
    if value.utcoffset() is None:
        message = "must have a zone, as datetime.now(UTC) has: without one it means another instant in each zone"
        raise InvalidInput([FieldError((name,), message, value.isoformat())])
    try:
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    except OverflowError:
        message = "must be within the years 1 to 9999 of UTC"
        raise InvalidInput([FieldError((name,), message, value.isoformat())]) from None
