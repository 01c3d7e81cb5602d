"""The usual jobs of responses, written from templates: what they have in common is encoded once.

A template is what the struct of the contract is written as, with gaps for what each job has of its own. Jobs that have
unusual fields, or a large body, are written from their struct.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

import msgspec
from msgspec import Raw

from deferd.api.job_responses import delivery, job, stored_job
from deferd.api.responses import encode
from deferd.contract.model import JobState
from deferd.contract.responses.jobs import Job
from deferd.contract.timestamps import instant_text
from deferd.engine.puts import PutOutcome
from deferd.engine.record import JobRecord

_COPIED_TWICE_BYTES = 16 * 1024
"""The largest body that goes through a template."""
_TEMPLATES = 1000


def written_job(record: JobRecord) -> Job:
    """What `job` returns, as JSON already if the job is usual: to be a part of another response."""
    if not _is_usual(record):
        return job(record)
    template = _job_template(record.state, *_common(record))
    return cast("Job", Raw(template % _own(record)))


def written_put(put: PutOutcome) -> bytes:
    """What `stored_job` returns, as JSON."""
    record = put.record
    if not _is_usual(record):
        return encode(stored_job(put))
    template = _put_template(put.durability, record.state, *_common(record))
    return template % _own(record)


def written_deliveries(records: Iterable[JobRecord]) -> bytes:
    """The response to a pop, a `Deliveries`, as JSON."""
    templates: dict[tuple[Any, ...], bytes] = {}
    jobs = []
    for record in records:
        if not record.is_plain or record.reserved_until_ms is None or len(record.body) > _COPIED_TWICE_BYTES:
            jobs.append(encode(delivery(record)))
            continue
        common: tuple[Any, ...] = (
            record.reserved_until_ms,
            record.reserved_by,
            record.topic,
            record.attempts,
            record.extra and tuple(record.extra.items()),
        )
        template = templates.get(common)
        if template is None:
            template = templates[common] = _delivery_template(*common[1:]) % _instant_bytes(record.reserved_until_ms)
        created_at, due_at = _instant_bytes(record.created_at_ms), _instant_bytes(record.due_at_ms)
        jobs.append(template % (record.id.encode(), record.body, created_at, due_at, record.nonce))
    return b'{"jobs":[%b]}' % b",".join(jobs)


def _is_usual(record: JobRecord) -> bool:
    return (
        record.is_plain
        and record.reserved_until_ms is None
        and not record.is_follow_up
        and record.followed_by is None
        and len(record.body) <= _COPIED_TWICE_BYTES
    )


def _common(record: JobRecord) -> tuple[Any, ...]:
    return record.topic, record.attempts, record.extra and tuple(record.extra.items())


def _own(record: JobRecord) -> tuple[bytes, bytes, bytes, bytes]:
    return record.id.encode(), record.body, _instant_bytes(record.created_at_ms), _instant_bytes(record.due_at_ms)


@lru_cache(maxsize=4096)
def _instant_bytes(at_ms: int) -> bytes:
    return instant_text(at_ms).encode()


@lru_cache(maxsize=_TEMPLATES)
def _job_template(state: JobState, *common: Any) -> bytes:
    return _template(job(_usual_record(state, *common)))


@lru_cache(maxsize=_TEMPLATES)
def _put_template(durability: str, state: JobState, *common: Any) -> bytes:
    return _template(stored_job(PutOutcome(_usual_record(state, *common), "created", durability)))


@lru_cache(maxsize=_TEMPLATES)
def _delivery_template(reserved_by: str | None, *common: Any) -> bytes:
    """A template of templates: its gap is for the end of the leases, which the jobs of a response have in common."""
    record = _usual_record(JobState.RESERVED, *common)
    record.reserved_until_ms, record.reserved_by = 0, reserved_by
    template = _template(delivery(record), reserved_until="\0", receipt=f"%012x.{record.attempts}")
    return template.replace(b"%", b"%%").replace(rb"\u0000", b"%b")


def _template(of: Job, **gaps: str) -> bytes:
    """What a job is written as, with gaps to fill. No other value has a `%`: names and numbers have none."""
    return encode(msgspec.structs.replace(of, id="%b", body=Raw(b"%b"), created_at="%b", due_at="%b", **gaps))


def _usual_record(state: JobState, topic: str, attempts: int, extra: tuple[tuple[str, Any], ...] | None) -> JobRecord:
    return JobRecord(topic, "", state, 0, 0, 0, attempts, b"", extra=None if extra is None else dict(extra))
