"""Writes the usual jobs of responses from templates, so that what they have in common is encoded once.

A template is what the struct of the contract is written as, with gaps for what each job has of its own. Jobs that have
unusual fields, or a large body, are written from their struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Raw

from deferd.api.job_responses import delivery, job, stored_job
from deferd.api.responses import encode
from deferd.contract.model import JobState
from deferd.contract.responses.jobs import Job
from deferd.contract.timestamps import instant_text
from deferd.engine.puts import PutOutcome
from deferd.engine.record import PLAIN_KEYS, JobRecord, read_extra

_COPIED_TWICE_BYTES = 16 * 1024
"""The largest body that goes through a template."""
_TEMPLATES = 1000
_WINDOW_IN_TEMPLATE_CHARACTERS = 200
"""The longest window that is a part of a template, to bound their memory."""
_Shape = tuple[tuple[str, Any], ...]


@lru_cache(maxsize=4096)
def _instant_bytes(at_ms: int) -> bytes:
    return instant_text(at_ms).encode()


class _Gap(NamedTuple):
    """What a job may have of its own: its key in the record, its attribute of `Job`, and how it is written.

    `mark` is its place in a template, where it stands for text in quotes or for other JSON.
    """

    key: str
    attribute: str
    write: Callable[[JobRecord], bytes]
    mark: Any = "%b"


_GAPS = (
    _Gap("sh", "asked_for", lambda record: _instant_bytes(record.due_at_ms - record.placement.moved_ms)),
    _Gap("c", "traceparent", lambda record: (record.traceparent or "").encode()),
    _Gap("g", "tags", lambda record: encode(record.tags), Raw(b"%b")),
    _Gap("h", "headers_or_none", lambda record: encode(record.headers), Raw(b"%b")),
    _Gap("l", "deadline_at", lambda record: _instant_bytes(record.deadline_at_ms or 0)),
    _Gap("w", "due_by", lambda record: _instant_bytes(record.due_by_ms or 0)),
    _Gap("y", "items", lambda record: b"%d" % record.items, Raw(b"%b")),
)
"""In the order of the attributes."""
_EXAMPLES: dict[str, Any] = {"sh": 1, "c": "-", "g": ["-"], "h": {"-": ""}, "w": 1, "y": 1}
"""Values of those keys whose value is not a part of the shape."""
_SHAPING_KEYS = PLAIN_KEYS | {"l", "u", "wi", "sp"}
"""Further keys of usual jobs, with few different values: deadline, `unique_for`, window and spread."""


def written_job(record: JobRecord) -> Job:
    """What `job` returns, as JSON already if the job is usual: to be a part of another response."""
    shape = _shape_of_stored(record)
    if shape is None:
        return job(record)
    template = _job_template(record.state, record.topic, record.attempts, shape)
    return cast("Job", Raw(template % _own(record)))


def written_put(put: PutOutcome) -> bytes:
    """What `stored_job` returns, as JSON."""
    record = put.record
    shape = _shape_of_stored(record)
    if shape is None:
        return encode(stored_job(put))
    template = _put_template(put.durability, record.state, record.topic, record.attempts, shape)
    return template % _own(record)


def written_deliveries(records: Iterable[JobRecord]) -> bytes:
    """The response to a pop, a `Deliveries`, as JSON."""
    templates: dict[tuple[Any, ...], bytes] = {}
    jobs = []
    for record in records:
        shape = _shape(record)
        if shape is None or record.reserved_until_ms is None:
            jobs.append(encode(delivery(record)))
            continue
        common = (record.reserved_until_ms, record.reserved_by, record.topic, record.attempts, shape)
        template = templates.get(common)
        if template is None:
            template = templates[common] = _delivery_template(*common[1:]) % _instant_bytes(record.reserved_until_ms)
        jobs.append(template % (*_own(record), record.nonce))
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


def _own(record: JobRecord) -> tuple[bytes, ...]:
    """The values for the gaps of a job's template."""
    own = (record.id.encode(), record.body, _instant_bytes(record.created_at_ms), _instant_bytes(record.due_at_ms))
    if record.is_plain:
        return own
    extra = record.extra or {}
    return (*own, *[gap.write(record) for gap in _GAPS if extra.get(gap.key)])


@lru_cache(maxsize=_TEMPLATES)
def _job_template(state: JobState, *common: Any) -> bytes:
    record = _example(state, *common)
    return _template(job(record), record)


@lru_cache(maxsize=_TEMPLATES)
def _put_template(durability: str, state: JobState, *common: Any) -> bytes:
    record = _example(state, *common)
    return _template(stored_job(PutOutcome(record, "created", durability)), record)


@lru_cache(maxsize=_TEMPLATES)
def _delivery_template(reserved_by: str | None, *common: Any) -> bytes:
    """A template of templates: its gap is for the end of the leases, which the jobs of a response have in common."""
    record = _example(JobState.RESERVED, *common)
    record.reserved_until_ms, record.reserved_by = 0, reserved_by
    template = _template(delivery(record), record, reserved_until="\0", receipt=f"%012x.{record.attempts}")
    return template.replace(b"%", b"%%").replace(rb"\u0000", b"%b")


def _template(of: Job, record: JobRecord, **gaps: str) -> bytes:
    """The text of a job, with gaps to fill. No other value has a `%`: names and numbers have none."""
    own = {gap.attribute: gap.mark for gap in _GAPS if (record.extra or {}).get(gap.key)}
    return encode(msgspec.structs.replace(of, id="%b", body=Raw(b"%b"), created_at="%b", due_at="%b", **own, **gaps))


def _example(state: JobState, topic: str, attempts: int, shape: _Shape) -> JobRecord:
    """A job with this shape."""
    record = JobRecord(topic, "", state, 0, 0, 0, attempts, b"")
    if shape:
        read_extra(record, {key: _EXAMPLES.get(key, value) for key, value in shape})
    return record
