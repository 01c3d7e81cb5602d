"""Reads responses: a success as the value that the caller gets, a problem document as the error that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any

from deferd.client import batch_decoding
from deferd.client.errors import UnexpectedAnswer
from deferd.client.jobs import Delivery, Job
from deferd.client.json_reading import parsed
from deferd.client.results import (
    Cancelled,
    CancelResult,
    FinishResult,
    PutResult,
    Released,
)
from deferd.contract import errors
from deferd.contract.errors import DeferdError, FieldError
from deferd.contract.model import JobState
from deferd.contract.text_excerpt import excerpt
from deferd.contract.timestamps import parse_instant

_JOB_FIELDS = frozenset({"topic", "id", "state", "body"})
_DELIVERY_FIELDS = _JOB_FIELDS | {"receipt", "attempt"}
_get_delivery_fields = itemgetter(*_DELIVERY_FIELDS)
_SHOWN_BYTES = 100
"""How much of what is not a service's an error quotes."""
_DETAIL_BYTES = 1000

# Successes


def object_with(content: bytes, names: Iterable[str]) -> dict[str, Any]:
    """The JSON object of a body, which must have at least these fields."""
    return checked(parsed(content), frozenset(names))


def checked(value: Any, names: frozenset[str]) -> dict[str, Any]:
    """An object that has at least these fields; their values are checked when they are used."""
    if type(value) is not dict or not names <= value.keys():
        raise _no_object_with(names)
    return value


def _no_object_with(names: frozenset[str]) -> ValueError:
    return ValueError(f"there is no object with {', '.join(sorted(names))}")


def text_or_none(value: Any) -> str | None:
    """The value itself. Raises ValueError if it is neither a string nor None."""
    if value is not None and type(value) is not str:
        raise ValueError(f"{value!r:.100} is not a string")
    return value


def _state_or_none(value: Any) -> JobState | None:
    return None if value is None else JobState(value)


def job_exists(fields: Mapping[str, Any], topic: str, job_id: str) -> errors.JobExists:
    """The error for the members of a problem document, or of a result in a batch."""
    until = fields.get("until")
    until_ms = None if until is None else round(parse_instant(until).timestamp() * 1000)
    return errors.JobExists(topic, job_id, fields.get("durability"), _state_or_none(fields.get("state")), until_ms)


def read_job(content: bytes) -> Job:
    """A job."""
    return Job(checked(parsed(content), _JOB_FIELDS))


def read_put_results(content: bytes) -> list[PutResult]:
    """The results of a batch of puts."""
    usual = batch_decoding.put_results(content)
    return general_put_results(content) if usual is None else usual


def general_put_results(content: bytes) -> list[PutResult]:
    """As `read_put_results`, for any response."""
    return [
        PutResult(
            result["topic"],
            result["id"],
            result["status"],
            text_or_none(result["code"]) if "code" in result else None,
            None,
            text_or_none(result["durability"]) if "durability" in result else None,
            _state_or_none(result.get("state")),
            result.get("follow_up") is True,
        )
        for result in parsed(content)["results"]
    ]


def read_cancelled(content: bytes) -> Cancelled:
    """A cancelled job."""
    fields = parsed(content)
    return Cancelled(fields["topic"], fields["id"], JobState(fields["was"]), fields.get("durability"))


def read_deliveries(content: bytes) -> list[Delivery]:
    """The jobs of a pop."""
    usual = batch_decoding.deliveries(content)
    return general_deliveries(content) if usual is None else usual


def general_deliveries(content: bytes) -> list[Delivery]:
    """As `read_deliveries`, for any response."""
    jobs = parsed(content)["jobs"]
    try:
        for job in jobs:
            _get_delivery_fields(job)
    except (LookupError, TypeError):
        raise _no_object_with(_DELIVERY_FIELDS) from None
    return list(map(Delivery, jobs))


def read_finished(content: bytes) -> None:
    """The confirmation of a finish."""
    fields = parsed(content)
    if fields["state"] != JobState.FINISHED:
        raise ValueError(f"the state is {fields['state']!r}")


def read_released(content: bytes) -> Released:
    """A released job."""
    fields = parsed(content)
    due_at = fields.get("due_at")
    return Released(JobState(fields["state"]), None if due_at is None else parse_instant(due_at), fields["attempts"])


def read_touched(content: bytes) -> datetime:
    """The end of an extended lease."""
    return parse_instant(parsed(content)["reserved_until"])


def read_nothing(content: bytes) -> None:
    """Any JSON."""
    parsed(content)


def read_text(content: bytes) -> str:
    """Text in UTF-8."""
    return content.decode()


def read_finish_results(content: bytes) -> list[FinishResult]:
    """The results of a batch of finishes."""
    usual = batch_decoding.finish_results(content)
    return general_finish_results(content) if usual is None else usual


def general_finish_results(content: bytes) -> list[FinishResult]:
    """As `read_finish_results`, for any response."""
    return [
        FinishResult(result["id"], result["status"], text_or_none(result["code"]) if "code" in result else None)
        for result in parsed(content)["results"]
    ]


def read_cancel_results(content: bytes) -> list[CancelResult]:
    """The results of a batch of cancels."""
    results = []
    for result in parsed(content)["results"]:
        was = result.get("was")
        state = None if was is None else JobState(was)
        results.append(CancelResult(result["id"], result["status"], state, text_or_none(result.get("code"))))
    return results


def read_jobs(content: bytes) -> tuple[list[Job], str | None]:
    """One page of jobs, and the cursor of the next page."""
    page = parsed(content)
    return [Job(checked(job, _JOB_FIELDS)) for job in page["jobs"]], text_or_none(page["next_cursor"])


# Errors


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
    "job_exists": lambda problem, _, __: job_exists(problem, problem["topic"], problem["id"]),
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
