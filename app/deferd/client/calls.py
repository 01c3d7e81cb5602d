"""The calls of the HTTP contract as values: what to send, and how to read the answer.

A `Call` does no input or output, so that clients of every kind (asyncio, threads) share all that is known about the
contract and differ only in how they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic_core import from_json, to_json

from deferd.client.failures import CallRefused
from deferd.client.jobs import Delivery, FinishResult, Job, PutResult
from deferd.limits import WAIT_DEFAULT_S
from deferd.model import FinishItem, JobState, PutJob

Answer = TypeVar("Answer")

_DETAIL_MAX = 500
"""Characters that are shown of an answer that is not the service's own."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. `read` turns the JSON value of a good answer into what the caller gets.

    `wait_s` is how long the service may wait on purpose before it answers; `good` are the statuses of good answers.
    """

    method: str
    path: str
    read: Callable[[Any], Answer]
    query: Mapping[str, str | int | float] | None = None
    body: bytes | None = None
    wait_s: float = 0
    good: tuple[int, ...] = (200,)


def put(job: PutJob | Mapping[str, Any]) -> Call[Job]:
    """`POST /jobs`: one job, a PutJob or the JSON object that the contract describes."""
    given = _put_item(job)
    taken_is_fine = given.get("on_conflict", "reject") != "reject"
    return Call("POST", "/jobs", Job, body=to_json(given), good=(200, 201) if taken_is_fine else (201,))


def put_many(jobs: Sequence[PutJob | Mapping[str, Any]]) -> Call[list[PutResult]]:
    """`POST /jobs/batch`: 1 to 1000 jobs, each a PutJob or the JSON object that the contract describes."""
    given = [_put_item(job) for job in jobs]
    return Call("POST", "/jobs/batch", _read_put_results, body=to_json({"jobs": given}))


def pop(
    topics: str | Sequence[str],
    *,
    count: int = 1,
    wait: float = WAIT_DEFAULT_S,
    ttr: float | None = None,
    consumer: str | None = None,
    request_id: str | None = None,
) -> Call[list[Delivery]]:
    """`POST /topics/{topic}/pop`: up to `count` jobs of one topic, or of several in strict priority."""
    names = topics if isinstance(topics, str) else ",".join(topics)
    optional = {"ttr": ttr, "consumer": consumer, "request_id": request_id}
    query = {"count": count, "wait": wait, **{name: value for name, value in optional.items() if value is not None}}
    return Call("POST", f"/topics/{quote(names, safe=',:')}/pop", _read_deliveries, query=query, wait_s=wait)


def finish(job: Delivery, result: Any = None) -> Call[None]:
    """`POST /jobs/{topic}/{id}/finish`: this delivery, with a result that is kept if the job has a `retain`."""
    given = {"receipt": job.receipt} if result is None else {"receipt": job.receipt, "result": result}
    path = f"/jobs/{quote(job.topic, safe=':')}/{quote(job.id, safe=':')}/finish"
    return Call("POST", path, _read_finished, body=to_json(given))


def finish_many(topic: str, jobs: Iterable[Delivery | FinishItem | Mapping[str, Any]]) -> Call[list[FinishResult]]:
    """`POST /topics/{topic}/finish`: 1 to 1000 jobs of one topic, by their deliveries or with a result each."""
    given = [_finish_item(job) for job in jobs]
    return Call("POST", f"/topics/{quote(topic, safe=':')}/finish", _read_finish_results, body=to_json({"jobs": given}))


def purge(topic: str) -> Call[int]:
    """`DELETE /topics/{topic}`: all its jobs, whatever their state."""
    return Call("DELETE", f"/topics/{quote(topic, safe=':')}", _read_removed)


def _put_item(job: PutJob | Mapping[str, Any]) -> Mapping[str, Any]:
    return job.model_dump(mode="json", exclude_unset=True) if isinstance(job, PutJob) else job


def _finish_item(job: Delivery | FinishItem | Mapping[str, Any]) -> Any:
    if isinstance(job, Delivery):
        return {"id": job.fields["id"], "receipt": job.fields["receipt"]}
    return job.model_dump(mode="json", exclude_unset=True) if isinstance(job, FinishItem) else job


def _read_put_results(answer: Any) -> list[PutResult]:
    return [PutResult(one["topic"], one["id"], one["status"], one.get("code")) for one in answer["results"]]


def _read_deliveries(answer: Any) -> list[Delivery]:
    return [Delivery(one) for one in answer["jobs"]]


def _read_finished(answer: Any) -> None:
    if answer["state"] != JobState.FINISHED:
        raise ValueError(f"the state is {answer['state']!r}")


def _read_removed(answer: Any) -> int:
    return int(answer["removed"])


def _read_finish_results(answer: Any) -> list[FinishResult]:
    return [FinishResult(one["id"], one["status"], one.get("code")) for one in answer["results"]]


def read_answer(call: Call[Answer], status: int, content: bytes) -> Answer:
    """What the call's caller gets. Raises CallRefused for an error, and for what is no answer of this service."""
    if status not in call.good:
        raise _refusal(status, content)
    try:
        return call.read(from_json(content, cache_strings="keys"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CallRefused(status, None, f"the answer is not what a deferd service sends: {error!r}") from error


def _refusal(status: int, content: bytes) -> CallRefused:
    try:
        problem = from_json(content)
        return CallRefused(status, problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        return CallRefused(status, None, content[:_DETAIL_MAX].decode(errors="replace"))
