"""Jobs as responses have them: seconds, instants, and bodies as they were put.

The engine uses milliseconds and JSON bytes; nothing here parses a body again.

Usual jobs are written from templates, so that what they have in common is encoded once. A template is what the struct
of the contract is written as, with gaps for what each job has of its own. Jobs that have unusual fields, or a large
body, are written from their struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET, Raw

from deferd.api.responses import encode, instant_or_none, seconds, whole
from deferd.contract.backoff import ExponentialBackoff
from deferd.contract.fields import POLICY, Kind
from deferd.contract.model import AttemptEnd, JobState
from deferd.contract.operations.jobs import Delivery, EndedAttempt, FollowUpJob, Job, StoredJob
from deferd.contract.timestamps import instant, instant_bytes
from deferd.engine.puts import PutOutcome
from deferd.engine.record import PLAIN_KEYS, JobRecord, read_extra, receipt_text


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
        "reserved_since": instant_or_none(record.reserved_since_ms),
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
        "group": record.group,
        "batch": record.batch,
        "due_by": instant_or_none(record.due_by_ms),
        "followed_by": None if record.followed_by is None else _follow_up(record.followed_by),
        "progress": None if record.progress is None else Raw(record.progress.encode()),
        "progress_at": instant_or_none(record.progress_at_ms),
        "last_error": record.last_error,
        "reason": record.reason,
        "dead_at": instant_or_none(record.dead_at_ms),
        "deadline_at": instant_or_none(record.deadline_at_ms),
        "finished_at": instant_or_none(record.finished_at_ms),
        "finished_by": record.finished_by,
        "result": None if record.result is None else Raw(record.result),
    }
    numbers = {
        "items": record.items,
        "unique_for": seconds(record.unique_for_ms),
        "is_follow_up": record.is_follow_up,
        "snoozes": record.endings.snoozes,
        "priority": record.priority,
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


_COPIED_TWICE_BYTES = 16 * 1024
"""The largest body that goes through a template."""
_TEMPLATES = 1000
_WINDOW_IN_TEMPLATE_CHARACTERS = 200
"""The longest window that is a part of a template, to bound their memory."""
_Shape = tuple[tuple[str, Any], ...]


_Write = Callable[[JobRecord], bytes]


class _Template(NamedTuple):
    """The text of a job with gaps: those that each job has, then those that `writers` fill."""

    text: bytes
    writers: tuple[_Write, ...]


class _Gap(NamedTuple):
    """What a job may have of its own: its key in the record, its attribute of `Job`, and how it is written.

    `mark` is its place in a template, where it stands for text in quotes or for other JSON.
    """

    key: str
    attribute: str
    write: _Write
    mark: Any = "%b"


_GAPS = (
    _Gap("sh", "asked_for", lambda record: instant_bytes(record.due_at_ms - record.placement.moved_ms)),
    _Gap("c", "traceparent", lambda record: (record.traceparent or "").encode()),
    _Gap("g", "tags", lambda record: encode(record.tags), Raw(b"%b")),
    _Gap("h", "headers_or_none", lambda record: encode(record.headers), Raw(b"%b")),
    _Gap("gr", "group", lambda record: (record.group or "").encode()),
    _Gap("l", "deadline_at", lambda record: instant_bytes(record.deadline_at_ms or 0)),
    _Gap("ba", "batch", lambda record: (record.batch or "").encode()),
    _Gap("w", "due_by", lambda record: instant_bytes(record.due_by_ms or 0)),
    _Gap("y", "items", lambda record: b"%d" % record.items, Raw(b"%b")),
)
"""In the order of the attributes."""
_EXAMPLES: dict[str, Any] = {"sh": 1, "c": "-", "g": ["-"], "h": {"-": ""}, "gr": "-", "ba": "-", "w": 1, "y": 1}
"""Values of those keys whose value is not a part of the shape."""
_SHAPING_KEYS = PLAIN_KEYS | {"l", "u", "wi", "sp", "pr", "oe"}
"""Further keys of usual jobs, with few different values: deadline, `unique_for`, window, spread and priority; `on_end`
only as that of jobs that ends put, which is none."""


def written_job(record: JobRecord) -> Job:
    """What `job` returns, as JSON already if the job is usual: to be a part of another response."""
    shape = _shape_of_stored(record)
    if shape is None:
        return job(record)
    template = _job_template(record.state, record.topic, record.attempts, shape)
    return cast("Job", Raw(template.text % _own(record, template.writers)))


def written_put(put: PutOutcome) -> bytes:
    """What `stored_job` returns, as JSON."""
    record = put.record
    shape = _shape_of_stored(record)
    if shape is None:
        return encode(stored_job(put))
    template = _put_template(put.durability, record.state, record.topic, record.attempts, shape)
    return template.text % _own(record, template.writers)


def written_deliveries(records: Iterable[JobRecord]) -> bytes:
    """The response to a pop, a `Deliveries`, as JSON."""
    templates: dict[tuple[Any, ...], _Template] = {}
    jobs = []
    for record in records:
        shape = _shape(record)
        if shape is None or record.reserved_until_ms is None:
            jobs.append(encode(delivery(record)))
            continue
        common = (record.reserved_until_ms, record.reserved_by, record.topic, record.attempts, shape)
        template = templates.get(common)
        if template is None:
            text, writers = _delivery_template(*common[1:])
            template = templates[common] = _Template(text % instant_bytes(record.reserved_until_ms), writers)
        jobs.append(template.text % (*_own(record, template.writers), record.nonce))
    return b'{"jobs":[%b]}' % b",".join(jobs)


def _shape_of_stored(record: JobRecord) -> _Shape | None:
    """The shape of a job that nobody holds."""
    if record.reserved_until_ms is not None or record.is_follow_up or record.followed_by is not None:
        return None
    return _shape(record)


def _shape(record: JobRecord) -> _Shape | None:
    """The JSON object of a job's record, with True for each value that has a gap; None for an unusual job."""
    if len(record.body) > _COPIED_TWICE_BYTES:
        return None
    extra = record.extra
    if not extra:
        return ()
    if record.is_plain:
        return tuple(extra.items())
    shape: list[tuple[str, Any]] = []
    for key, value in extra.items():
        if key in _EXAMPLES:
            if not value:
                return None
            shape.append((key, True))
        elif key in _SHAPING_KEYS and type(value) is not dict and not (type(value) is str and _is_rare(value)):
            shape.append((key, value))
        else:
            return None
    return tuple(shape)


def _is_rare(window: str) -> bool:
    return "%" in window or len(window) > _WINDOW_IN_TEMPLATE_CHARACTERS


def _own(record: JobRecord, writers: tuple[_Write, ...]) -> tuple[bytes, ...]:
    """The values for the gaps of a job's template."""
    own = (record.id.encode(), record.body, instant_bytes(record.created_at_ms), instant_bytes(record.due_at_ms))
    return (*own, *[write(record) for write in writers]) if writers else own


@lru_cache(maxsize=_TEMPLATES)
def _job_template(state: JobState, *common: Any) -> _Template:
    record = _example(state, *common)
    return _template(job(record), record)


@lru_cache(maxsize=_TEMPLATES)
def _put_template(durability: str, state: JobState, *common: Any) -> _Template:
    record = _example(state, *common)
    return _template(stored_job(PutOutcome(record, "created", durability)), record)


@lru_cache(maxsize=_TEMPLATES)
def _delivery_template(reserved_by: str | None, *common: Any) -> _Template:
    """A template of templates: its gap is for the end of the leases, which the jobs of a response have in common."""
    record = _example(JobState.RESERVED, *common)
    record.reserved_until_ms, record.reserved_by = 0, reserved_by
    template = _template(delivery(record), record, reserved_until="\0", receipt=f"%012x.{record.attempts}")
    return template._replace(text=template.text.replace(b"%", b"%%").replace(rb"\u0000", b"%b"))


def _template(example: Job, record: JobRecord, **gaps: str) -> _Template:
    """The template of jobs like `record`, whose response is `example`.

    Nothing but the gaps has a `%`: names and numbers have none.
    """
    own = [gap for gap in _GAPS if (record.extra or {}).get(gap.key)]
    marks = {gap.attribute: gap.mark for gap in own}
    text = encode(
        msgspec.structs.replace(example, id="%b", body=Raw(b"%b"), created_at="%b", due_at="%b", **marks, **gaps)
    )
    return _Template(text, tuple(gap.write for gap in own))


def _example(state: JobState, topic: str, attempts: int, shape: _Shape) -> JobRecord:
    """A job with this shape."""
    record = JobRecord(topic, "", state, 0, 0, 0, attempts, b"")
    if shape:
        read_extra(record, {key: _EXAMPLES.get(key, value) for key, value in shape})
    return record
