"""Jobs as responses have them: seconds, instants, and bodies as they were put.

The engine uses milliseconds and JSON bytes; nothing here parses a body again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from deferd.api.response_values import instant, instant_or_none, seconds, whole
from deferd.contract.backoff import ExponentialBackoff
from deferd.contract.endings import AttemptEnd
from deferd.contract.fields import POLICY, Kind
from deferd.contract.responses.jobs import Delivery, EndedAttempt, FollowUpJob, Job, StoredJob
from deferd.engine.puts import PutOutcome
from deferd.engine.record import JobRecord, receipt_text


def job(record: JobRecord) -> Job:
    """The job, without the optional fields that it does not have."""
    return Job(**_fields(record))


def job_without_bodies(record: JobRecord) -> Job:
    """The job without its body and its result, and their sizes in bytes of JSON."""
    follow_up, result = record.followed_by, record.result
    return msgspec.structs.replace(
        job(record),
        body=UNSET,
        body_bytes=len(record.body),
        result=None,
        result_bytes=None if result is None else len(result),
        followed_by=None if follow_up is None else _follow_up(msgspec.structs.replace(follow_up, body=b"null")),
    )


def stored_job(put: PutOutcome) -> StoredJob:
    """The response to a put: the job, and the durability that it has reached."""
    return StoredJob(**_fields(put.record), durability=put.durability)


def delivery(record: JobRecord) -> Delivery:
    """A job of the response to a pop, with what its consumer needs: `receipt` and `attempt`."""
    receipt = receipt_text(record.nonce, record.attempts)
    return Delivery(**_fields(record), receipt=receipt, attempt=record.attempts)


def _fields(record: JobRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": record.topic,
        "id": record.id,
        "state": record.state,
        "body": Raw(record.body),
        "created_at": instant(record.created_at_ms),
        "due_at": instant(record.due_at_ms),
        "attempts": record.attempts,
        **_shown_policy(record.extra or {}),
        "reserved_until": instant_or_none(record.reserved_until_ms),
        "reserved_by": record.reserved_by,
    }
    if not record.is_plain or record.is_follow_up or record.followed_by is not None:
        fields |= _rare_fields(record)
    return fields


def _rare_fields(record: JobRecord) -> dict[str, Any]:
    """Leave out items without a value: msgspec leaves out a default, but not a value equal to it."""
    fields: dict[str, Any] = {
        "traceparent": record.traceparent,
        "headers_or_none": record.headers,
        "due_by": instant_or_none(record.due_by_ms),
        "followed_by": None if record.followed_by is None else _follow_up(record.followed_by),
        "last_error": record.last_error,
        "reason": record.reason,
        "dead_at": instant_or_none(record.dead_at_ms),
        "deadline_at": instant_or_none(record.deadline_at_ms),
        "finished_at": instant_or_none(record.finished_at_ms),
        "result": None if record.result is None else Raw(record.result),
    }
    numbers = {
        "items": record.items,
        "unique_for": seconds(record.unique_for_ms),
        "is_follow_up": record.is_follow_up,
        "snoozes": record.endings.snoozes,
    }
    fields |= {name: value for name, value in numbers.items() if value}
    if record.tags is not None:
        fields["tags"] = record.tags
    if record.placement.moved_ms:
        fields["asked_for"] = instant(record.due_at_ms - record.placement.moved_ms)
    if record.endings.attempts_log:
        fields["attempts_log"] = [
            EndedAttempt(
                attempt=attempt,
                ended_at=instant(ended_at_ms),
                how=cast("AttemptEnd", how),
                by=consumer or None,
                error=error or None,
            )
            for attempt, ended_at_ms, how, consumer, error in record.endings.attempts_log
        ]
    return fields


def _follow_up(record: JobRecord) -> FollowUpJob:
    return FollowUpJob(
        body=Raw(record.body), created_at=instant(record.created_at_ms), due_at=instant(record.due_at_ms)
    )


_ATTRIBUTES = {field.encode_name: field.name for field in msgspec.structs.fields(Job)}
_SHOWN: dict[Kind, Callable[[Any], Any]] = {
    Kind.SECONDS: seconds,
    Kind.BACKOFF: whole,
    Kind.WINDOW: lambda stored: Raw(stored.encode()),
}
_DEFAULT_POLICY = {_ATTRIBUTES[field.name]: field.default for field in POLICY if field.is_always_shown} | {
    _ATTRIBUTES["backoff"]: ExponentialBackoff().model_dump()
}


def _shown_policy(extra: dict[str, Any]) -> dict[str, Any]:
    """The fields of the policy from the JSON object of a record; without those that are "none"."""
    shown: dict[str, Any] = {**_DEFAULT_POLICY}
    for field in POLICY:
        stored = extra.get(field.key)
        if stored or (stored is not None and not field.null_is_none):
            show = _SHOWN.get(field.kind)
            shown[_ATTRIBUTES[field.name]] = stored if show is None else show(stored)
    return shown
