"""The calls of the HTTP contract as values: what to send, how to read the answer, and what is safe to send again.

A `Call` does no input or output, so that clients of every kind (asyncio, threads) share all that is known about the
contract and differ only in how they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from deferd.client.durations import Seconds, instant, seconds
from deferd.client.errors import UnexpectedAnswer, read_problem
from deferd.client.jobs import (
    Cancelled,
    Delivery,
    FinishResult,
    Job,
    JobRef,
    PutResult,
    Released,
    StoreAudit,
    TopicAudit,
    TopicPage,
    TopicView,
)
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.limits import REDRIVE_DEFAULT, WAIT_DEFAULT_S
from deferd.contract.model import FinishItem, JobState, PutJob, TopicSettings
from deferd.contract.timestamps import parse_instant

Answer = TypeVar("Answer")
JobToPut = PutJob | Mapping[str, Any]
JobToFinish = JobRef | Delivery | FinishItem | Mapping[str, Any]

_MANY_JOBS_S = 600.0
"""What a million jobs may take to be purged or redriven."""
_LONGEST_RETRY_S = 1_000_000_000
"""What a `Retry-After` of more digits is read as: nobody waits for that."""
_OF_JOB = frozenset({"topic", "id", "state", "body"})
_OF_DELIVERY = _OF_JOB | {"receipt", "attempt"}
_OF_AUDIT = frozenset({"clean", "repaired", "damage", "examples"})
_OF_TOPIC = frozenset({"topic", "counts", "paused", "settings"})
_DURATIONS = ("delay", "ttr", "ttl", "retain")


class Unset(Enum):
    """For a value that is left out, where None says something of its own."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. `read` turns the body of a good answer into what the caller gets.

    `wait_s` is how long the service may take for good reason before it answers, `good` are the statuses of good
    answers. `repeatable`: carrying it out twice does no harm, so it may be sent again when its answer was lost.
    """

    method: str
    path: str
    read: Callable[[bytes], Answer]
    query: Mapping[str, str | int | float] | None = None
    body: bytes | None = None
    wait_s: float = 0
    good: tuple[int, ...] = (200,)
    repeatable: bool = True


# Producers


def put(job: JobToPut) -> Call[Job]:
    """`POST /jobs`: one job, a PutJob or the JSON object that the contract describes."""
    given = job_fields(job)
    taken_is_fine = given.get("on_conflict", "reject") != "reject"
    good = (200, 201) if taken_is_fine else (201,)
    return Call("POST", "/jobs", _read_job, body=_body(given), good=good, repeatable="id" in given)


def put_many(jobs: Sequence[JobToPut]) -> Call[list[PutResult]]:
    """`POST /jobs/batch`: 1 to 1000 jobs, each a PutJob or the JSON object that the contract describes."""
    given = [job_fields(job) for job in jobs]
    repeatable = all("id" in fields for fields in given)
    return Call("POST", "/jobs/batch", _read_put_results, body=_body({"jobs": given}), repeatable=repeatable)


def look(topic: str, id: str) -> Call[Job]:
    """`GET /jobs/{topic}/{id}`."""
    return Call("GET", _job_path(topic, id), _read_job)


def change(topic: str, id: str, fields: Mapping[str, Any]) -> Call[Job]:
    """`PATCH /jobs/{topic}/{id}`: what to change; see `job_fields`. A delay counts from each try, so it gets one."""
    return Call(
        "PATCH", _job_path(topic, id), _read_job, body=_body(job_fields(fields)), repeatable="delay" not in fields
    )


def cancel(topic: str, id: str, *, if_reserved: Literal["cancel", "refuse"] = "cancel") -> Call[Cancelled]:
    """`DELETE /jobs/{topic}/{id}`."""
    query = {"if_reserved": if_reserved} if if_reserved != "cancel" else None
    return Call("DELETE", _job_path(topic, id), _read_cancelled, query=query)


# Consumers


def pop(
    topics: str | Sequence[str],
    *,
    count: int = 1,
    wait: Seconds = WAIT_DEFAULT_S,
    ttr: Seconds | None = None,
    consumer: str | None = None,
    request_id: str | None = None,
) -> Call[list[Delivery]]:
    """`POST /topics/{topic}/pop`: up to `count` jobs of one topic, or of several in strict priority."""
    names = topics if isinstance(topics, str) else ",".join(topics)
    optional = {"ttr": None if ttr is None else seconds(ttr), "consumer": consumer, "request_id": request_id}
    wait_s = seconds(wait)
    query = {"count": count, "wait": wait_s, **{name: value for name, value in optional.items() if value is not None}}
    return Call(
        "POST",
        f"/topics/{quote(names, safe=',:')}/pop",
        _read_deliveries,
        query=query,
        wait_s=wait_s,
        repeatable=request_id is not None,
    )


def finish(job: JobRef | Delivery, result: Any = None) -> Call[None]:
    """`POST /jobs/{topic}/{id}/finish`: this delivery, with a result that is kept if the job has a `retain`."""
    return _of_delivery("finish", job, {} if result is None else {"result": result}, _read_finished)


def release(job: JobRef | Delivery, *, delay: Seconds | None = None, error: str | None = None) -> Call[Released]:
    """`POST /jobs/{topic}/{id}/release`: give it back, for after `delay` or its backoff."""
    return _of_delivery("release", job, _given(delay=delay, error=error), _read_released)


def touch(job: JobRef | Delivery, *, ttr: Seconds | None = None) -> Call[datetime]:
    """`POST /jobs/{topic}/{id}/touch`: the lease ends `ttr` from now, the job's own when left out."""
    return _of_delivery("touch", job, _given(ttr=ttr), _read_touched)


def bury(job: JobRef | Delivery, *, error: str | None = None) -> Call[None]:
    """`POST /jobs/{topic}/{id}/bury`: it is dead."""
    return _of_delivery("bury", job, _given(error=error), _read_nothing)


def finish_many(topic: str, jobs: Iterable[JobToFinish]) -> Call[list[FinishResult]]:
    """`POST /topics/{topic}/finish`: 1 to 1000 jobs of one topic, by their deliveries or with a result each."""
    given = [_finish_item(job) for job in jobs]
    repeatable = all("receipt" in item for item in given)
    path = f"{_topic_path(topic)}/finish"
    return Call("POST", path, _read_finish_results, body=_body({"jobs": given}), repeatable=repeatable)


# Topics


def topics(cursor: str | None = None) -> Call[TopicPage]:
    """`GET /topics`: one page."""
    return Call("GET", "/topics", _read_topics, query=None if cursor is None else {"cursor": cursor})


def topic(name: str) -> Call[TopicView]:
    """`GET /topics/{topic}`."""
    return Call("GET", _topic_path(name), _read_topic)


def set_topic(name: str, settings: TopicSettings | Mapping[str, Any]) -> Call[TopicView]:
    """`PUT /topics/{topic}`: replaces the settings as a whole."""
    return Call("PUT", _topic_path(name), _read_topic, body=_body(_in_seconds(_fields(settings))))


def pause(name: str) -> Call[TopicView]:
    """`POST /topics/{topic}/pause`."""
    return Call("POST", f"{_topic_path(name)}/pause", _read_topic)


def resume(name: str) -> Call[TopicView]:
    """`POST /topics/{topic}/resume`."""
    return Call("POST", f"{_topic_path(name)}/resume", _read_topic)


def jobs(
    name: str, *, state: JobState | str | None = None, cursor: str | None = None, limit: int | None = None
) -> Call[tuple[list[Job], str | None]]:
    """`GET /topics/{topic}/jobs`: one page, and the cursor of the next."""
    return Call("GET", f"{_topic_path(name)}/jobs", _read_jobs, query=_given(state=state, cursor=cursor, limit=limit))


def redrive(name: str, *, ids: Sequence[str] | None = None, limit: int = REDRIVE_DEFAULT) -> Call[int]:
    """`POST /topics/{topic}/redrive`: dead jobs back to ready; how many. Repeating would redrive further ones."""
    given = {"limit": limit} if ids is None else {"ids": list(ids)}
    path, read = f"{_topic_path(name)}/redrive", _read_count("redriven")
    return Call("POST", path, read, body=_body(given), wait_s=_MANY_JOBS_S, repeatable=False)


def purge(name: str, *, state: JobState | str | None = None) -> Call[int]:
    """`DELETE /topics/{topic}`: all its jobs, or those in one state; how many.

    Not repeated: it would remove jobs that were put since, and the count would be wrong.
    """
    query, read = _given(state=state), _read_count("removed")
    return Call("DELETE", _topic_path(name), read, query=query, wait_s=_MANY_JOBS_S, repeatable=False)


# Operations


def audit(name: str) -> Call[TopicAudit]:
    """`GET /topics/{topic}/audit`."""
    return Call("GET", f"{_topic_path(name)}/audit", _read_topic_audit, wait_s=_MANY_JOBS_S)


def repair(name: str) -> Call[TopicAudit]:
    """`POST /topics/{topic}/repair`. Not repeated: the second answer would not tell what the first repair mended."""
    return Call("POST", f"{_topic_path(name)}/repair", _read_topic_audit, wait_s=_MANY_JOBS_S, repeatable=False)


def audit_store() -> Call[StoreAudit]:
    """`GET /audit`."""
    return Call("GET", "/audit", _read_store_audit, wait_s=_MANY_JOBS_S)


def repair_store() -> Call[StoreAudit]:
    """`POST /repair`; see `repair`."""
    return Call("POST", "/repair", _read_store_audit, wait_s=_MANY_JOBS_S, repeatable=False)


def ready() -> Call[None]:
    """`GET /readyz`."""
    return Call("GET", "/readyz", _read_nothing)


def metrics() -> Call[str]:
    """`GET /metrics`: text for Prometheus."""
    return Call("GET", "/metrics", lambda content: content.decode())


# What is sent


def job_fields(job: JobToPut) -> dict[str, Any]:
    """A job as the JSON object of the contract: durations as seconds, `run_at` as RFC 3339.

    Raises:
        InvalidInput: `run_at` is naive.
    """
    fields = _in_seconds(_fields(job))
    run_at = fields.get("run_at")
    if isinstance(run_at, datetime):
        fields["run_at"] = instant("run_at", run_at)
    elif run_at is not None and not isinstance(run_at, str):
        raise InvalidInput([FieldError(("run_at",), "must be a datetime with a zone", repr(run_at))])
    return fields


def as_json(job: Mapping[str, Any]) -> Any:
    """A job as `job_fields` makes it, as it looks when it has gone through JSON. Raises InvalidInput if it cannot."""
    try:
        return from_json(_body(job), allow_inf_nan=False)
    except ValueError as error:  # NaN and the infinities, and what is nested too deep
        raise InvalidInput([FieldError(("body",), f"has no form in JSON: {error}")]) from error


def _fields(given: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, BaseModel):
        return {name: getattr(given, name) for name in given.model_fields_set}
    return dict(given)


def _in_seconds(fields: dict[str, Any]) -> dict[str, Any]:
    for name in _DURATIONS:
        value = fields.get(name)
        if isinstance(value, timedelta):
            fields[name] = value.total_seconds()
    return fields


def _given(**values: Any) -> dict[str, Any]:
    return _in_seconds({name: value for name, value in values.items() if value is not None})


def _body(value: Any) -> bytes:
    """As JSON. Raises InvalidInput for what has no such form."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput([FieldError(("body",), f"has no form in JSON: {error}")]) from error


def _job_path(topic: str, id: str) -> str:
    return f"/jobs/{quote(topic, safe=':')}/{quote(id, safe=':')}"


def _topic_path(topic: str) -> str:
    return f"/topics/{quote(topic, safe=':')}"


def _of_delivery(
    verb: str, job: JobRef | Delivery, said: dict[str, Any], read: Callable[[bytes], Answer]
) -> Call[Answer]:
    if job.receipt is not None:
        said["receipt"] = job.receipt
    return Call(
        "POST", f"{_job_path(job.topic, job.id)}/{verb}", read, body=_body(said), repeatable=job.receipt is not None
    )


def _finish_item(job: JobToFinish) -> Mapping[str, Any]:
    if isinstance(job, Delivery):
        return {"id": job.fields["id"], "receipt": job.fields["receipt"]}
    if isinstance(job, JobRef):
        return {"id": job.id} if job.receipt is None else {"id": job.id, "receipt": job.receipt}
    return _fields(job) if isinstance(job, FinishItem) else job


# What is read


def _parsed(content: bytes) -> Any:
    return from_json(content, cache_strings="keys")


def _shown(fields: Any, names: frozenset[str]) -> dict[str, Any]:
    """What a service shows, if it is an object with these names: what is read later is not looked at here."""
    if type(fields) is not dict or not names <= fields.keys():
        raise ValueError(f"there is no object with {', '.join(sorted(names))}")
    return fields


def _text_or_none(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise ValueError(f"{value!r:.100} is no text")
    return value


def _read_job(content: bytes) -> Job:
    return Job(_shown(_parsed(content), _OF_JOB))


def _read_put_results(content: bytes) -> list[PutResult]:
    return [
        PutResult(
            one["topic"],
            one["id"],
            one["status"],
            _text_or_none(one.get("code")),
            durability=_text_or_none(one.get("durability")),
        )
        for one in _parsed(content)["results"]
    ]


def _read_cancelled(content: bytes) -> Cancelled:
    answer = _parsed(content)
    return Cancelled(answer["topic"], answer["id"], JobState(answer["was"]))


def _read_deliveries(content: bytes) -> list[Delivery]:
    return [Delivery(_shown(one, _OF_DELIVERY)) for one in _parsed(content)["jobs"]]


def _read_finished(content: bytes) -> None:
    answer = _parsed(content)
    if answer["state"] != JobState.FINISHED:
        raise ValueError(f"the state is {answer['state']!r}")


def _read_released(content: bytes) -> Released:
    answer = _parsed(content)
    due_at = answer.get("due_at")
    return Released(JobState(answer["state"]), None if due_at is None else parse_instant(due_at), answer["attempts"])


def _read_touched(content: bytes) -> datetime:
    return parse_instant(_parsed(content)["reserved_until"])


def _read_nothing(content: bytes) -> None:
    _parsed(content)


def _read_finish_results(content: bytes) -> list[FinishResult]:
    return [
        FinishResult(one["id"], one["status"], _text_or_none(one.get("code"))) for one in _parsed(content)["results"]
    ]


def _read_topic(content: bytes) -> TopicView:
    return TopicView(_shown(_parsed(content), _OF_TOPIC))


def _read_topics(content: bytes) -> TopicPage:
    answer = _parsed(content)
    return TopicPage(
        [TopicView(_shown(one, _OF_TOPIC)) for one in answer["topics"]],
        _text_or_none(answer["next_cursor"]),
        [str(name) for name in answer.get("unavailable", ())],  # an older service does not say
        [int(shard) for shard in answer.get("unreadable_shards", ())],
    )


def _read_topic_audit(content: bytes) -> TopicAudit:
    return TopicAudit(_shown(_parsed(content), _OF_AUDIT | {"topic", "checked"}))


def _read_store_audit(content: bytes) -> StoreAudit:
    return StoreAudit(_shown(_parsed(content), _OF_AUDIT | {"unlisted"}))


def _read_jobs(content: bytes) -> tuple[list[Job], str | None]:
    answer = _parsed(content)
    return [Job(_shown(one, _OF_JOB)) for one in answer["jobs"]], _text_or_none(answer["next_cursor"])


def _read_count(name: str) -> Callable[[bytes], int]:
    return lambda content: int(_parsed(content)[name])


def read_answer(call: Call[Answer], status: int, content: bytes, retry_after: str | None = None) -> Answer:
    """What the call's caller gets.

    Raises:
        DeferdError: the service refused; the error that it named.
        UnexpectedAnswer: the answer is not what a deferd service sends.
    """
    if status not in call.good:
        raise read_problem(status, content, _whole_seconds(retry_after))
    try:
        return call.read(content)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        detail = f"the answer is not what a deferd service sends: {error!r}"
        raise UnexpectedAnswer(status, detail) from error


def _whole_seconds(retry_after: str | None) -> int | None:
    """`Retry-After` in seconds; its form as a date, which deferd does not use, is passed over."""
    if retry_after is None or not retry_after.isdecimal():
        return None
    return int(retry_after) if len(retry_after) < len(str(_LONGEST_RETRY_S)) else _LONGEST_RETRY_S
