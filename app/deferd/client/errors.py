"""The errors of the client, besides those that the service names.

An error that the service names is raised as such: see the tree in `deferd.contract.errors`. The others are::

    DeferdError
    └── CallFailed
        ├── NoAnswer           no answer came: whether the call was carried out is not known
        │   └── Unreachable    the call was never sent, so it was not carried out
        │       ├── ClientBusy     all connections of the client were in use for too long
        │       └── ClientClosed   the client was closed
        └── UnexpectedAnswer   an answer came that is none of a deferd service's, or an internal error of it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from deferd.contract import errors
from deferd.contract.errors import DeferdError, FieldError

_SHOWN_CHARACTERS = 500
"""Of an answer that is not the service's own."""


class CallFailed(DeferdError):
    """Base of the failures for which the service gave no reason."""

    code = "call_failed"


class NoAnswer(CallFailed):
    """The service did not answer in time, or the connection broke: whether the call was carried out is not known."""

    code = "no_answer"


class Unreachable(NoAnswer):
    """No connection to the service could be had, so the call was not carried out."""

    code = "unreachable"


class ClientBusy(Unreachable):
    """All connections of the client were in use for too long: make it with more, or put in batches."""

    code = "client_busy"


class ClientClosed(Unreachable):
    """The client was closed before the call."""

    code = "client_closed"


class UnexpectedAnswer(CallFailed):
    """Something else answered, such as a proxy, or the service had an error inside.

    `status` is the HTTP status, `retry_after_s` what it says of another try, if it does.
    """

    code = "unexpected_answer"

    def __init__(self, status: int, detail: str, retry_after_s: int | None = None) -> None:
        self.status = status
        self.retry_after_s = retry_after_s
        super().__init__(f"status {status}: {detail}")


def read_problem(status: int, content: bytes, retry_after_s: int | None) -> DeferdError:
    """The error that an answer which is no success tells of."""
    try:
        problem = from_json(content)
        code, detail = str(problem["code"]), str(problem["detail"])
        make = _BY_CODE.get(code)
        if make is None:
            return UnexpectedAnswer(status, f"{code}: {detail}", retry_after_s)
        return make(problem, detail, retry_after_s)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return UnexpectedAnswer(status, content[:_SHOWN_CHARACTERS].decode(errors="replace"), retry_after_s)


def _invalid_input(problem: Mapping[str, Any], detail: str, _retry_after_s: int | None) -> DeferdError:
    told = problem.get("errors") or [{"field": "", "message": detail}]
    return errors.InvalidInput([FieldError(_path(one["field"]), one["message"], one.get("value")) for one in told])


def _path(field: str) -> tuple[str | int, ...]:
    return tuple(int(step) if step.isdecimal() else step for step in field.split(".") if step)


_Maker = Callable[[Mapping[str, Any], str, int | None], DeferdError]

_BY_CODE: dict[str, _Maker] = {
    "validation": _invalid_input,
    "payload_too_large": lambda problem, _, __: errors.PayloadTooLarge(int(problem["limit_bytes"])),
    "unauthorized": lambda _, detail, __: errors.Unauthorized(detail),
    "forbidden": lambda _, detail, __: errors.Forbidden(detail),
    "job_not_found": lambda problem, detail, _: errors.JobNotFound(problem["topic"], problem["id"], detail),
    "topic_not_found": lambda problem, _, __: errors.TopicNotFound(problem["topic"]),
    "job_exists": lambda problem, _, __: errors.JobExists(problem["topic"], problem["id"], problem.get("durability")),
    "job_reserved": lambda problem, _, __: errors.JobReserved(
        problem["topic"], problem["id"], problem.get("durability")
    ),
    "receipt_stale": lambda problem, detail, _: errors.ReceiptStale(problem["topic"], problem["id"], detail),
    "job_cancelled": lambda problem, _, __: errors.JobCancelled(problem["topic"], problem["id"]),
    "durability_unavailable": lambda problem, detail, _: errors.DurabilityUnavailable(
        problem["durability"], problem["available"], detail
    ),
    "topic_full": lambda problem, _, wait_s: _later(errors.TopicFull(problem["topic"], problem["max_jobs"]), wait_s),
    "rate_limited": lambda _, detail, wait_s: errors.RateLimited(detail, wait_s or 1),
    "store_unavailable": lambda _, detail, wait_s: errors.StoreUnavailable(detail, wait_s or 1),
}
"""How each code of the contract becomes its error; tests hold that none is left out."""


def _later(error: errors.TryLater, retry_after_s: int | None) -> errors.TryLater:
    error.retry_after_s = retry_after_s or error.retry_after_s
    return error
