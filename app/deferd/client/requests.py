"""A request of the HTTP API: what to send, how to read the response, and whether it is repeatable.

An `ApiRequest` does no I/O, so the asyncio client and the blocking one share all of this and differ only in their
transport. The requests themselves are made where the methods of the clients are: see `deferd.client.async_client`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec
from pydantic import BaseModel
from pydantic_core import from_json

from deferd.client.errors import UnexpectedAnswer
from deferd.contract import errors
from deferd.contract.errors import DeferdError, FieldError, excerpt
from deferd.contract.model import JobState, later_members, open_member
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response
from deferd.contract.operations.system import CHECK_READINESS
from deferd.contract.timestamps import parse_instant

Result = TypeVar("Result")
Value = TypeVar("Value")
_LONGEST_RETRY_S = 1_000_000_000
"""The value of a `Retry-After` with more digits: longer than any client waits."""
Read = TypeVar("Read", bound=Response)
_TOO_DEEP = "recursion limit exceeded"
_SHOWN_BYTES = 100
"""How much of what is not a service's an error quotes."""
_DETAIL_BYTES = 1000


@dataclass(slots=True)  # frozen, it would take several times as long to make
class ApiRequest(Generic[Result]):
    """One request to the service. `read` turns the body of a successful response into the caller's result.

    `wait_s` is how long the service may take by design before it responds (a long poll). `success` are the statuses of
    success. `repeatable`: executing it twice does no harm, so it may be sent again when its response was lost.
    `asks_readiness`: it is sent even while the service is known not to respond. `headers` are sent with this request
    only.
    """

    method: str
    path: str
    read: Callable[[bytes], Result]
    query: Mapping[str, str | int | float] | None = None
    body: bytes | None = None
    wait_s: float = 0
    success: tuple[int, ...] = (200,)
    repeatable: bool = True
    asks_readiness: bool = False
    headers: Mapping[str, str] | None = None

    def read_response(
        self, status: int, content: bytes, retry_after: str | None = None, content_type: bytes = b"", *, url: str = ""
    ) -> Result:
        """The result for the caller. `retry_after` and `content_type` are the headers; the service is at `url`.

        Raises:
            DeferdError: the service refused; the error that it named.
            UnexpectedAnswer: the response is not one of a deferd service; the text has a short beginning of it.
        """
        where = f"{self.method} {url}{self.path}"
        if status not in self.success:
            raise read_problem(status, content, _whole_seconds(retry_after), content_type, where)
        try:
            return self.read(content)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            text = _foreign(where, content, content_type, error)
            raise UnexpectedAnswer(status, text) from error

    def giving(self, part_of: Callable[[Result], Value]) -> ApiRequest[Value]:
        """This request, whose result is from now on a part of what it was."""
        request: ApiRequest[Any] = self
        read = request.read
        request.read = lambda content: part_of(read(content))
        return request

    def reading(self, read: Callable[[bytes], Value]) -> ApiRequest[Value]:
        """This request, whose response is from now on read in another way."""
        request: ApiRequest[Any] = self
        request.read = read
        return request


def request_for(
    operation: Operation[Read],
    *path_values: str,
    query: Mapping[str, str | int | float] | None = None,
    body: bytes | None = None,
    wait_s: float = 0,
    success: tuple[int, ...] | None = None,
    repeatable: bool | None = None,
    asks_readiness: bool = False,
    headers: Mapping[str, str] | None = None,
) -> ApiRequest[Read]:
    """A request of an operation of the contract: its result is the whole response.

    `path_values` are the topic, the id or what else the path has, in its order. None for `success` and
    `repeatable`: as the operation's row says. The rest is as in ApiRequest.
    """
    return ApiRequest(
        operation.method,
        operation.path_for(*path_values) if path_values else operation.path,
        reader_of(operation.response or cast("type[Read]", Response)),
        query,
        body,
        wait_s,
        (operation.status,) if success is None else success,
        operation.repeatable if repeatable is None else repeatable,
        asks_readiness,
        headers,
    )


def ready() -> ApiRequest[None]:
    """`GET /readyz`."""
    return request_for(CHECK_READINESS, asks_readiness=True).reading(read_nothing)


def _whole_seconds(retry_after: str | None) -> int | None:
    """`Retry-After` in seconds; its form as a date, which deferd does not send, is ignored."""
    if retry_after is None or not retry_after.isdecimal():
        return None
    return int(retry_after) if len(retry_after) < len(str(_LONGEST_RETRY_S)) else _LONGEST_RETRY_S


def reader_of(struct: type[Read]) -> Callable[[bytes], Read]:
    """A function that reads a response of this type. It raises ValueError for anything else."""
    reader: Callable[[bytes], Read] = _reader_of(struct)
    return reader


def read_nothing(content: bytes) -> None:
    """Any JSON."""
    parsed(content)


@cache
def _reader_of(struct: type[Response]) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(struct, dec_hook=_model).decode

    def read(content: bytes) -> Any:
        try:
            return decode(content)
        except (msgspec.MsgspecError, RecursionError):
            return _read_generally(content, struct)

    return read


def _model(model: type[BaseModel], fields: object) -> BaseModel:
    return model.model_validate(fields)


def _read_generally(content: bytes, struct: type[Read]) -> Read:
    """Read also what is unusual: values of later services, and what msgspec refuses in the body of a job.

    Those are numbers too large for it, and nesting deep in the stack.
    """
    try:
        with later_members():
            return msgspec.convert(parsed(content), struct, dec_hook=_model)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def parsed(content: bytes) -> Any:
    """The JSON value of a body, or of a part of one, at any depth.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return from_json(content, cache_strings="keys")
    except ValueError as error:
        if not str(error).startswith(_TOO_DEEP):
            raise
    # A body that was put before there was `limits.VALUE_DEPTH_MAX`: it must not take the jobs beside it along.
    try:
        return msgspec.json.decode(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _state_or_none(value: Any) -> JobState | None:
    return None if value is None else open_member(JobState, value)


def job_exists(
    topic: str, job_id: str, durability: str | None, state: JobState | None, until: datetime | None
) -> errors.JobExists:
    """The error for a put that the service refused because of an existing job."""
    until_ms = None if until is None else round(until.timestamp() * 1000)
    return errors.JobExists(topic, job_id, durability, state, until_ms)


def read_problem(
    status: int, content: bytes, retry_after_s: int | None, content_type: bytes = b"", where: str = "the service"
) -> DeferdError:
    """The error that a problem document (RFC 9457) names; UnexpectedAnswer for anything else, from `where`."""
    try:
        problem = parsed(content)
        code, detail = str(problem["code"]), str(problem["detail"])
        make = _BY_CODE.get(code)
        if make is None:
            text = excerpt(f"{code}: {detail}".encode(errors="replace"), _DETAIL_BYTES)
            return UnexpectedAnswer(status, text, retry_after_s, is_problem=True)
        return make(problem, detail, retry_after_s)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return UnexpectedAnswer(status, _foreign(where, content, content_type), retry_after_s)


def _foreign(where: str, content: bytes, content_type: bytes, reason: Exception | None = None) -> str:
    """The text of an error for a response of something else than a deferd service, with a short beginning of it."""
    kind = excerpt(content_type, _SHOWN_BYTES) or "no Content-Type"
    begins = f"begins with {excerpt(content, _SHOWN_BYTES)!r}" if content else "is empty"
    why = "" if reason is None else f" ({excerpt(repr(reason).encode(errors='replace'), _SHOWN_BYTES)})"
    return f"{where} does not respond as a deferd service does: the response has {kind} and {begins}{why}"


def _invalid_input(problem: Mapping[str, Any], detail: str, _retry_after_s: int | None) -> DeferdError:
    listed = problem.get("errors") or [{"field": "", "message": detail}]
    return errors.InvalidInput([FieldError(_path(one["field"]), one["message"], one.get("value")) for one in listed])


def _path(field: str) -> tuple[str | int, ...]:
    return tuple(int(step) if step.isdecimal() else step for step in field.split(".") if step)


_MakeError = Callable[[Mapping[str, Any], str, int | None], DeferdError]
_BY_CODE: dict[str, _MakeError] = {
    "validation": _invalid_input,
    "payload_too_large": lambda problem, _, __: errors.PayloadTooLarge(int(problem["limit_bytes"])),
    "unauthorized": lambda _, detail, __: errors.Unauthorized(detail),
    "forbidden": lambda _, detail, __: errors.Forbidden(detail),
    "job_not_found": lambda problem, detail, _: errors.JobNotFound(problem["topic"], problem["id"], detail),
    "topic_not_found": lambda problem, _, __: errors.TopicNotFound(problem["topic"]),
    "schedule_not_found": lambda problem, _, __: errors.ScheduleNotFound(problem["schedule"]),
    "schedule_exists": lambda problem, _, __: errors.ScheduleExists(problem["schedule"]),
    "calendar_not_found": lambda problem, _, __: errors.CalendarNotFound(problem["calendar"]),
    "batch_not_found": lambda problem, _, __: errors.BatchNotFound(problem["batch"]),
    "batch_sealed": lambda problem, _, __: errors.BatchSealed(problem["batch"]),
    "push_not_found": lambda problem, _, __: errors.PushNotFound(problem["topic"]),
    "topic_pushed": lambda problem, _, __: errors.TopicPushed(problem["topic"]),
    "task_not_found": lambda problem, _, __: errors.TaskNotFound(problem["task"]),
    "job_exists": lambda problem, _, __: job_exists(
        problem["topic"],
        problem["id"],
        problem.get("durability"),
        _state_or_none(problem.get("state")),
        None if problem.get("until") is None else parse_instant(problem["until"]),
    ),
    "job_reserved": lambda problem, _, __: errors.JobReserved(
        problem["topic"], problem["id"], problem.get("durability")
    ),
    "receipt_stale": lambda problem, detail, _: errors.ReceiptStale(problem["topic"], problem["id"], detail),
    "job_cancelled": lambda problem, _, __: errors.JobCancelled(problem["topic"], problem["id"]),
    "durability_unavailable": lambda problem, detail, _: errors.DurabilityUnavailable(
        problem["durability"], problem["available"], detail
    ),
    "different_shard": lambda problem, detail, _: errors.DifferentShard(problem["topic"], detail),
    "not_yet_available": lambda _, detail, __: errors.NotYetAvailable(detail),
    "too_late": lambda _, detail, __: errors.TooLate(detail),
    "topic_full": lambda problem, _, after_s: _later(errors.TopicFull(problem["topic"], problem["max_jobs"]), after_s),
    "rate_limited": lambda _, detail, after_s: errors.RateLimited(detail, after_s or 1),
    "store_unavailable": lambda _, detail, after_s: errors.StoreUnavailable(detail, after_s or 1),
}
"""The error for each code of the contract; a test checks that none is missing."""


def _later(error: errors.TryLater, retry_after_s: int | None) -> errors.TryLater:
    error.retry_after_s = retry_after_s or error.retry_after_s
    return error
