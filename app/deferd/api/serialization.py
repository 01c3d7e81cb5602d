"""Jobs as the JSON of the API: seconds, RFC 3339 instants, and bodies as they were put.

The engine uses milliseconds and JSON bytes; nothing here parses a body again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import orjson
from orjson import Fragment

from deferd.api.response_values import instant, instant_text, seconds
from deferd.contract import limits
from deferd.contract.model import JobState
from deferd.engine.call_results import CancelResult, FinishResult
from deferd.engine.puts import PutOutcome, PutResult
from deferd.engine.record import NO_ENDINGS, NOT_PLACED, JobRecord, receipt_text


def job(record: JobRecord) -> bytes:
    """The job, without the optional fields that it does not have."""
    return b"".join((*_members(record), b"}"))


def job_without_bodies(record: JobRecord) -> bytes:
    """The job without its body and its result, and how many bytes of JSON these have."""
    sizes: dict[str, Any] = {"body_bytes": len(record.body)}
    if record.result is not None:
        sizes["result_bytes"] = len(record.result)
    if (follow_up := record.followed_by) is not None:
        follow_up = msgspec.structs.replace(follow_up, body=b"null")
    short = msgspec.structs.replace(record, body=b"null", result=None, followed_by=follow_up)
    _, _, *members = _members(short)
    start = f'{{"topic":"{record.topic}","id":"{record.id}","state":"{record.state}"'.encode()
    return b"".join((start, *members, b",", orjson.dumps(sizes)[1:]))


def put_job(put: PutOutcome) -> bytes:
    """The response to a put: the job, and the durability that it has reached."""
    return b"".join((*_members(put.record), _DURABILITY_ENDS[put.durability]))


_DURABILITY_ENDS = {
    durability: f',"durability":"{durability}"}}'.encode()
    for durability in ("memory", "fsync", *(f"replicated:{count}" for count in range(1, limits.REPLICAS_MAX + 1)))
}


def deliveries(records: Sequence[JobRecord]) -> bytes:
    """The response of a pop. Each job has what its consumer needs: `receipt` and `attempt`.

    Jobs without unusual fields are filled into a template, made once for those that have most fields in common.
    `_delivery` says what they must look like.
    """
    templates: dict[tuple[Any, ...], bytes] = {}
    jobs = []
    for record in records:
        if (
            not record.is_plain
            or record.backoff is not None
            or record.reserved_until_ms is None
            or len(record.body) > _COPIED_TWICE_BYTES
        ):
            jobs.append(_delivery(record))
            continue
        common = (
            record.topic,
            record.attempts,
            record.reserved_until_ms,
            record.reserved_by,
            record.ttr_ms,
            record.max_attempts,
            record.ttl_ms,
            record.retain_ms,
        )
        template = templates.get(common)
        if template is None:
            template = templates[common] = _delivery_template(record)
        created_at, due_at = _instant_bytes(record.created_at_ms), _instant_bytes(record.due_at_ms)
        jobs.append(template % (record.id.encode(), record.body, created_at, due_at, record.nonce))
    return b'{"jobs":[%b]}' % b",".join(jobs)


_COPIED_TWICE_BYTES = 16 * 1024
"""The largest body that goes through a template."""


def _delivery(record: JobRecord) -> bytes:
    receipt = receipt_text(record.nonce, record.attempts)
    return b"".join((*_members(record), f',"receipt":"{receipt}","attempt":{record.attempts}}}'.encode()))


def _delivery_template(record: JobRecord) -> bytes:
    """What `_delivery` makes of the record, with gaps for its id, body, instants and nonce."""
    text = (
        f'{{"topic":"{record.topic}","id":"\0b","state":"{JobState.RESERVED}","body":\0b,"created_at":"\0b",'
        f'"due_at":"\0b","attempts":{record.attempts}{_policy(record)}{_lease(record)},'
        f'"receipt":"\x00012x.{record.attempts}","attempt":{record.attempts}}}'
    )
    return text.replace("%", "%%").replace("\0", "%").encode()


@lru_cache(maxsize=4096)
def _instant_bytes(at_ms: int) -> bytes:
    return instant_text(at_ms).encode()


def _members(record: JobRecord) -> list[bytes]:
    """The pieces of the job's JSON object up to its last member.

    Written as text for speed: topics, ids, consumers and instants have no characters that JSON escapes. Values that may
    have some go through orjson.
    """
    pieces = [
        f'{{"topic":"{record.topic}","id":"{record.id}","state":"{record.state}","body":'.encode(),
        record.body,
        f',"created_at":"{instant(record.created_at_ms)}","due_at":"{instant(record.due_at_ms)}",'
        f'"attempts":{record.attempts}{_policy(record)}{_lease(record)}'.encode(),
    ]
    if not record.is_plain or record.is_follow_up or record.followed_by is not None:
        pieces.append(_rare_members(record))
    return pieces


def _lease(record: JobRecord) -> str:
    if record.reserved_until_ms is None:
        return ""
    lease = f',"reserved_until":"{instant(record.reserved_until_ms)}"'
    return lease if record.reserved_by is None else f'{lease},"reserved_by":"{record.reserved_by}"'


def _rare_members(record: JobRecord) -> bytes:
    members: dict[str, Any] = {}
    if record.traceparent is not None:
        members["traceparent"] = record.traceparent
    if record.tags is not None:
        members["tags"] = record.tags
    if record.headers is not None:
        members["headers"] = record.headers
    if record.endings is not NO_ENDINGS:
        members |= _endings(record)
    members |= _collapsing(record)
    if record.last_error is not None:
        members["last_error"] = record.last_error
    if record.reason is not None:
        members["reason"] = record.reason
        if (dead_at_ms := record.dead_at_ms) is not None:
            members["dead_at"] = instant(dead_at_ms)
    if record.finished_at_ms is not None:
        members["finished_at"] = instant(record.finished_at_ms)
    if record.result is not None:
        members["result"] = Fragment(record.result)
    written = b"," + orjson.dumps(members)[1:-1] if members else b""  # a limit of 0 is none
    return written if record.placement is NOT_PLACED else _placement(record) + written


def _collapsing(record: JobRecord) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if record.unique_for_ms:
        members["unique_for"] = seconds(record.unique_for_ms)
    if record.due_by_ms is not None:
        members["due_by"] = instant(record.due_by_ms)
    if record.items:
        members["items"] = record.items
    if record.is_follow_up:
        members["follow_up"] = True
    if (follow_up := record.followed_by) is not None:
        members["followed_by"] = {
            "body": Fragment(follow_up.body),
            "created_at": instant(follow_up.created_at_ms),
            "due_at": instant(follow_up.due_at_ms),
        }
    return members


def _placement(record: JobRecord) -> bytes:
    placement = record.placement
    asked_for = f',"asked_for":"{instant(record.due_at_ms - placement.moved_ms)}"' if placement.moved_ms else ""
    window = f',"window":{placement.window}' if placement.window else ""
    spread = f',"spread":{seconds(placement.spread_ms)}' if placement.spread_ms else ""
    return (asked_for + window + spread).encode()


def _endings(record: JobRecord) -> dict[str, Any]:
    endings, deadline_at_ms = record.endings, record.deadline_at_ms
    members: dict[str, Any] = {}
    if endings.dead_retain_ms is not None:
        members["dead_retain"] = seconds(endings.dead_retain_ms)
    if endings.time_limit_ms:
        members["time_limit"] = seconds(endings.time_limit_ms)
    if deadline_at_ms is not None:
        members["deadline"] = seconds(endings.deadline_ms)
        members["deadline_at"] = instant(deadline_at_ms)
    if endings.snoozes:
        members["snoozes"] = endings.snoozes
    if endings.attempts_log:
        members["attempts_log"] = [
            {
                "attempt": attempt,
                "ended_at": instant(ended_at_ms),
                "how": how,
                **({"by": consumer} if consumer else {}),
                **({"error": error} if error else {}),
            }
            for attempt, ended_at_ms, how, consumer, error in endings.attempts_log
        ]
    return members


def _policy(record: JobRecord) -> str:
    if (
        record.ttr_ms == _DEFAULT.ttr_ms
        and record.backoff is None
        and not record.max_attempts
        and not record.ttl_ms
        and not record.retain_ms
    ):
        return _DEFAULT_POLICY
    return _policy_members(record)


def _policy_members(record: JobRecord) -> str:
    policy = {
        "ttr": seconds(record.ttr_ms),
        "max_attempts": record.max_attempts or None,
        "backoff": _whole_numbers(record.backoff) if record.backoff else record.effective_backoff,
        "ttl": seconds(record.ttl_ms) if record.ttl_ms else None,
        "retain": seconds(record.retain_ms),
    }
    return "," + orjson.dumps(policy)[1:-1].decode()


_DEFAULT = JobRecord("", "", JobState.READY, 0, 0, 0, 0, b"null")
_DEFAULT_POLICY = _policy_members(_DEFAULT)


def put_results(results: Iterable[PutResult]) -> bytes:
    """The response to a batch put."""
    lines = [
        f'{{"topic":"{topic}","id":"{job_id}","status":201,"durability":"{durability}"}}'
        if status == 201 and code is None and durability is not None and not follow_up
        else f'{{"topic":"{topic}","id":"{job_id}","status":{status}{_code(code)}{_durability(durability)}'
        f"{_state(state, until)}{_FOLLOW_UP[follow_up]}}}"
        for topic, job_id, status, code, durability, state, until, follow_up in results
    ]
    return _results(lines)


def finished_and_put(topic: str, job_id: str, results: Sequence[PutResult]) -> bytes:
    """The response to a finish that put other jobs. No results: they were put before."""
    put = b',"put":' + put_results(results).removeprefix(b'{"results":') if results else b"}"
    return f'{{"topic":"{topic}","id":"{job_id}","state":"finished"'.encode() + put


def finish_results(results: Iterable[FinishResult]) -> bytes:
    """The response to a batch finish."""
    return _results(
        [
            f'{{"id":"{job_id}","status":{status}}}'
            if code is None
            else f'{{"id":"{job_id}","status":{status},"code":"{code}"}}'
            for job_id, status, code in results
        ]
    )


def put_results_with_jobs(results: Iterable[tuple[PutResult, JobRecord | None]]) -> bytes:
    """The response to a batch put that returns the stored jobs; in one copy: bodies may be large."""
    pieces = [b'{"results":[']
    for result, record in results:
        topic, job_id, status, code, durability, state, until, follow_up = result
        pieces.append(
            f'{{"topic":"{topic}","id":"{job_id}","status":{status}{_code(code)}{_durability(durability)}'
            f"{_state(state, until)}{_FOLLOW_UP[follow_up]}".encode()
        )
        if record is not None:
            pieces.append(b',"job":')
            pieces += _members(record)
            pieces.append(b"}")
        pieces.append(b"},")
    pieces[-1] = b"}]}"
    return b"".join(pieces)


def cancel_results(results: Iterable[CancelResult]) -> bytes:
    """The response to a batch cancel."""
    return _results(
        [f'{{"id":"{job_id}","status":{status}{_code(code)}{_was(was)}}}' for job_id, status, was, code in results]
    )


def _was(state: JobState | None) -> str:
    return "" if state is None else f',"was":"{state}"'


def _code(code: str | None) -> str:
    return "" if code is None else f',"code":"{code}"'


def _durability(durability: str | None) -> str:
    return "" if durability is None else f',"durability":"{durability}"'


_FOLLOW_UP = ("", ',"follow_up":true')
"""By whether a put waits for a job's holder."""


def _state(state: JobState | None, until_ms: int | None) -> str:
    until = "" if until_ms is None else f',"until":"{instant(until_ms)}"'
    return "" if state is None else f',"state":"{state}"{until}'


def _results(lines: list[str]) -> bytes:
    return f'{{"results":[{",".join(lines)}]}}'.encode()


def _whole_numbers(backoff: dict[str, Any]) -> dict[str, Any]:
    return {name: _whole_number(value) for name, value in backoff.items()}


def _whole_number(value: Any) -> Any:
    """60 for 60.0, as people write it; other values unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_whole_number(item) for item in value]
    return value
