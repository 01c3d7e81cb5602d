"""Reads a problem document as the error that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from deferd.client.errors import UnexpectedAnswer
from deferd.client.response_reading import parsed
from deferd.contract import errors
from deferd.contract.errors import DeferdError, FieldError
from deferd.contract.model import JobState
from deferd.contract.open_enum import open_member
from deferd.contract.text_excerpt import excerpt
from deferd.contract.timestamps import parse_instant

_SHOWN_BYTES = 100
"""How much of what is not a service's an error quotes."""
_DETAIL_BYTES = 1000


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
        return UnexpectedAnswer(status, foreign(where, content, content_type), retry_after_s)


def foreign(where: str, content: bytes, content_type: bytes, reason: Exception | None = None) -> str:
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
    "too_late": lambda _, detail, __: errors.TooLate(detail),
    "topic_full": lambda problem, _, after_s: _later(errors.TopicFull(problem["topic"], problem["max_jobs"]), after_s),
    "rate_limited": lambda _, detail, after_s: errors.RateLimited(detail, after_s or 1),
    "store_unavailable": lambda _, detail, after_s: errors.StoreUnavailable(detail, after_s or 1),
}
"""The error for each code of the contract; a test checks that none is missing."""


def _later(error: errors.TryLater, retry_after_s: int | None) -> errors.TryLater:
    error.retry_after_s = retry_after_s or error.retry_after_s
    return error
