"""The operations of the HTTP contract as requests: what to send, how to read the response, and what is repeatable.

An `ApiRequest` does no I/O, so the asyncio client and the blocking one share all of this and differ only in their
transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from deferd.client import responses
from deferd.client.durations import Seconds, instant, seconds
from deferd.client.errors import UnexpectedAnswer
from deferd.client.jobs import JobRef
from deferd.client.request_body import (
    JobToFinish,
    JobToPut,
    encode,
    finish_item,
    in_seconds,
    job_fields,
    set_fields,
    without_none,
)
from deferd.client.response_reading import reader_of
from deferd.contract.limits import REDRIVE_DEFAULT, WAIT_DEFAULT_S
from deferd.contract.model import DeadReason, DurabilityLevel, JobState, TopicSettings
from deferd.contract.responses.audits import StoreAudit, TopicAudit
from deferd.contract.responses.bulk import DryRun as Preview
from deferd.contract.responses.bulk import Redriven, Removed
from deferd.contract.responses.job_calls import Cancelled, CancelResult, FinishResult, PutResult, Released
from deferd.contract.responses.jobs import Delivery, Job
from deferd.contract.responses.topics import TopicPage, TopicView

Result = TypeVar("Result")

_MANY_JOBS_S = 600.0
"""How long the service may take to purge, redrive or check a million jobs."""
_LONGEST_RETRY_S = 1_000_000_000
"""The value of a `Retry-After` with more digits: longer than any client waits."""
read_preview = reader_of(Preview)
_redriven, _removed = reader_of(Redriven), reader_of(Removed)


@dataclass(slots=True)  # frozen, it would take several times as long to make
class ApiRequest(Generic[Result]):
    """One request to the service. `read` turns the body of a successful response into the caller's result.

    `wait_s` is how long the service may take by design before it responds (a long poll). `success` are the statuses of
    success. `repeatable`: executing it twice does no harm, so it may be sent again when its response was lost.
    `asks_readiness`: it is sent even while the service is known not to respond. `headers` are sent with this request
    only.
    """

    method: str
    path: str
    read: Callable[[bytes], Result]
    query: Mapping[str, str | int | float] | None = None
    body: bytes | None = None
    wait_s: float = 0
    success: tuple[int, ...] = (200,)
    repeatable: bool = True
    asks_readiness: bool = False
    headers: Mapping[str, str] | None = None

    def read_response(
        self, status: int, content: bytes, retry_after: str | None = None, content_type: bytes = b"", *, url: str = ""
    ) -> Result:
        """The result for the caller. `retry_after` and `content_type` are the headers; the service is at `url`.

        Raises:
            DeferdError: the service refused; the error that it named.
            UnexpectedAnswer: the response is not one of a deferd service; the text has a short beginning of it.
        """
        where = f"{self.method} {url}{self.path}"
        if status not in self.success:
            raise responses.read_problem(status, content, _whole_seconds(retry_after), content_type, where)
        try:
            return self.read(content)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            text = responses.foreign(where, content, content_type, error)
            raise UnexpectedAnswer(status, text) from error


def _whole_seconds(retry_after: str | None) -> int | None:
    """`Retry-After` in seconds; its form as a date, which deferd does not send, is ignored."""
    if retry_after is None or not retry_after.isdecimal():
        return None
    return int(retry_after) if len(retry_after) < len(str(_LONGEST_RETRY_S)) else _LONGEST_RETRY_S


class JobFilters(TypedDict, total=False):
    """Which jobs a list shows, and how. Without a `tag`, the filters make the service search the topic's jobs."""

    tag: str | None
    """Jobs with this tag."""
    due_after: datetime | None
    """Jobs due at this instant or later."""
    due_before: datetime | None
    """Jobs due before this instant."""
    id_prefix: str | None
    """Jobs whose id begins so."""
    error: str | None
    """Jobs whose last error contains this text."""
    order: Literal["asc", "desc"]
    """`desc`: what happens last comes first."""
    bodies: bool
    """False: without bodies, so that `body` is `msgspec.UNSET`, and without results. `body_bytes` and `result_bytes`
    are their lengths."""


# Producers


def _is_repeatable(fields: Mapping[str, Any]) -> bool:
    """Whether a put may be sent again: the second of two equal appends would add its body once more."""
    return "id" in fields and fields.get("on_conflict") != "append"


def put(job: JobToPut) -> ApiRequest[Job]:
    """`POST /jobs`: one job, a PutJob or the JSON object of the contract."""
    fields = job_fields(job)
    return put_encoded(fields, encode(fields))


def put_encoded(fields: Mapping[str, Any], body: bytes) -> ApiRequest[Job]:
    """As `put`, for a job that is encoded already."""
    accepts_existing = fields.get("on_conflict", "reject") != "reject"
    return ApiRequest(
        "POST",
        "/jobs",
        responses.read_job,
        body=body,
        success=(200, 201) if accepts_existing else (201,),
        repeatable=_is_repeatable(fields),
    )


def put_many(jobs: Sequence[JobToPut]) -> ApiRequest[list[PutResult]]:
    """`POST /jobs/batch`: 1 to 1000 jobs, each a PutJob or the JSON object of the contract."""
    items = [job_fields(job) for job in jobs]
    repeatable = all(map(_is_repeatable, items))
    body = encode({"jobs": items})
    return ApiRequest("POST", "/jobs/batch", responses.read_put_results, body=body, repeatable=repeatable)


def look(topic: str, id: str) -> ApiRequest[Job]:
    """`GET /jobs/{topic}/{id}`."""
    return ApiRequest("GET", _job_path(topic, id), responses.read_job)


def change(topic: str, id: str, fields: Mapping[str, Any]) -> ApiRequest[Job]:
    """`PATCH /jobs/{topic}/{id}`: the fields to change; see `job_fields`.

    Not repeatable with a `delay`: it counts from the execution, so a second one would change the due time again.
    """
    body, repeatable = encode(job_fields(fields)), "delay" not in fields
    return ApiRequest("PATCH", _job_path(topic, id), responses.read_job, body=body, repeatable=repeatable)


def cancel(
    topic: str,
    id: str,
    *,
    if_reserved: Literal["cancel", "refuse"] = "cancel",
    follow_up: Literal["cancel", "keep"] = "cancel",
    durability: DurabilityLevel | None = None,
) -> ApiRequest[Cancelled]:
    """`DELETE /jobs/{topic}/{id}`."""
    query = cancel_options(if_reserved, follow_up)
    if durability is not None:
        query["durability"] = durability
    return ApiRequest("DELETE", _job_path(topic, id), responses.read_cancelled, query=query or None)


def cancel_options(if_reserved: str, follow_up: str) -> dict[str, str]:
    """The options of a cancel, without those that older services do not know unless they are needed."""
    options = {"if_reserved": if_reserved, "follow_up": follow_up}
    return {name: value for name, value in options.items() if value != "cancel"}


def cancel_many(
    topic: str,
    ids: Iterable[str],
    *,
    if_reserved: Literal["cancel", "refuse"] = "cancel",
    follow_up: Literal["cancel", "keep"] = "cancel",
) -> ApiRequest[list[CancelResult]]:
    """`POST /topics/{topic}/cancel`: 1 to 1000 jobs of one topic."""
    option = cancel_options(if_reserved, follow_up)
    body = encode({"jobs": [{"id": job_id, **option} for job_id in ids]})
    return ApiRequest("POST", topic_path(topic, "cancel"), responses.read_cancel_results, body=body)


# Consumers


def pop(
    topics: str | Sequence[str],
    *,
    count: int = 1,
    wait: Seconds = WAIT_DEFAULT_S,
    ttr: Seconds | None = None,
    consumer: str | None = None,
    request_id: str | None = None,
) -> ApiRequest[list[Delivery]]:
    """`POST /topics/{topic}/pop`: up to `count` jobs of one topic, or of several topics and patterns."""
    names = topics if isinstance(topics, str) else ",".join(topics)
    wait_s = seconds(wait)
    return ApiRequest(
        "POST",
        f"/topics/{quote(names, safe=',:*')}/pop",
        responses.read_deliveries,
        query=without_none(count=count, wait=wait_s, ttr=ttr, consumer=consumer, request_id=request_id),
        wait_s=wait_s,
        repeatable=request_id is not None,
    )


def finish(job: JobRef | Delivery, result: Any = None, put: Sequence[JobToPut] = ()) -> ApiRequest[None]:
    """`POST /jobs/{topic}/{id}/finish`: end this delivery with a result, which is kept if the job has a `retain`.

    `put` are jobs to put in the same step, each a PutJob or the JSON object of the contract.
    """
    fields: dict[str, Any] = {} if result is None else {"result": result}
    if put:
        fields["put"] = [job_fields(one) for one in put]
    return _on_delivery("finish", job, fields, responses.read_finished)


def release(
    job: JobRef | Delivery, *, delay: Seconds | None = None, error: str | None = None, count: bool = True
) -> ApiRequest[Released]:
    """`POST /jobs/{topic}/{id}/release`: return the job to the queue, due after `delay` or its backoff."""
    fields = without_none(delay=delay, error=error)
    if not count:
        fields["count"] = False
    return _on_delivery("release", job, fields, responses.read_released)


def touch(job: JobRef | Delivery, *, ttr: Seconds | None = None) -> ApiRequest[datetime]:
    """`POST /jobs/{topic}/{id}/touch`: the lease ends `ttr` from now; left out, the job's own."""
    return _on_delivery("touch", job, without_none(ttr=ttr), responses.read_touched)


def bury(job: JobRef | Delivery, *, error: str | None = None) -> ApiRequest[None]:
    """`POST /jobs/{topic}/{id}/bury`: the job becomes dead."""
    return _on_delivery("bury", job, without_none(error=error), responses.read_nothing)


def finish_many(topic: str, jobs: Iterable[JobToFinish]) -> ApiRequest[list[FinishResult]]:
    """`POST /topics/{topic}/finish`: 1 to 1000 jobs of one topic, as deliveries or with a result each."""
    items = [finish_item(job) for job in jobs]
    repeatable = all("receipt" in item for item in items)
    path, body = topic_path(topic, "finish"), encode({"jobs": items})
    return ApiRequest("POST", path, responses.read_finish_results, body=body, repeatable=repeatable)


def check_many(topic: str, jobs: Iterable[Delivery | JobRef]) -> ApiRequest[list[FinishResult]]:
    """`POST /topics/{topic}/check`: 1 to 1000 deliveries of one topic."""
    return _on_deliveries("check", topic, jobs)


def return_many(topic: str, jobs: Iterable[Delivery | JobRef]) -> ApiRequest[list[FinishResult]]:
    """`POST /topics/{topic}/return`: 1 to 1000 deliveries of one topic."""
    return _on_deliveries("return", topic, jobs)


def _on_deliveries(verb: str, topic: str, jobs: Iterable[Delivery | JobRef]) -> ApiRequest[list[FinishResult]]:
    body = encode({"jobs": [finish_item(job) for job in jobs]})
    return ApiRequest("POST", topic_path(topic, verb), responses.read_finish_results, body=body, repeatable=True)


# Topics

_read_topic, _read_topics = reader_of(TopicView), reader_of(TopicPage)
_read_audit, _read_store_audit = reader_of(TopicAudit), reader_of(StoreAudit)


def topics(cursor: str | None = None) -> ApiRequest[TopicPage]:
    """`GET /topics`: one page."""
    return ApiRequest("GET", "/topics", _read_topics, query=None if cursor is None else {"cursor": cursor})


def topic(name: str) -> ApiRequest[TopicView]:
    """`GET /topics/{topic}`."""
    return ApiRequest("GET", _topic_path(name), _read_topic)


def set_topic(name: str, settings: TopicSettings | Mapping[str, Any]) -> ApiRequest[TopicView]:
    """`PUT /topics/{topic}`: replaces all settings."""
    return ApiRequest("PUT", _topic_path(name), _read_topic, body=encode(in_seconds(set_fields(settings))))


def pause(name: str, reason: str | None = None) -> ApiRequest[TopicView]:
    """`POST /topics/{topic}/pause`."""
    body = None if reason is None else encode({"reason": reason})
    return ApiRequest("POST", f"{_topic_path(name)}/pause", _read_topic, body=body)


def resume(name: str) -> ApiRequest[TopicView]:
    """`POST /topics/{topic}/resume`."""
    return ApiRequest("POST", f"{_topic_path(name)}/resume", _read_topic)


def jobs(
    name: str,
    *,
    state: JobState | str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
    **filters: Unpack[JobFilters],
) -> ApiRequest[tuple[list[Job], str | None]]:
    """`GET /topics/{topic}/jobs`: one page, and the cursor of the next."""
    query = without_none(state=state, cursor=cursor, limit=limit, **filters)
    for at in ("due_after", "due_before"):
        if at in query:
            query[at] = instant(at, query[at])
    if "bodies" in query:
        query["bodies"] = str(bool(query["bodies"])).lower()
    return ApiRequest("GET", f"{_topic_path(name)}/jobs", responses.read_jobs, query=query)


class JobConditions(TypedDict, total=False):
    """Which jobs of a topic a redrive or purge means, beside ids and states. All keyword-only."""

    tag: str | None
    """Only jobs with this tag."""
    reason: DeadReason | str | None
    """Only jobs that are dead for this reason."""
    error: str | None
    """Only dead jobs with this error of a DeadGroup, in which `*` stands for what varies; '' for those without one."""
    cutoff: datetime | None
    """Only jobs that were put, and dead ones that died, until this instant: that of a preview."""


def redrive(
    name: str, *, ids: Sequence[str] | None = None, limit: int = REDRIVE_DEFAULT, **conditions: Unpack[JobConditions]
) -> ApiRequest[int]:
    """`POST /topics/{topic}/redrive`: makes dead jobs ready and returns how many.

    Not repeatable without a cutoff: a second one would redrive further jobs.
    """
    fields = _redrive_fields(ids, limit, conditions)
    path, body = f"{_topic_path(name)}/redrive", encode(fields)
    return ApiRequest(
        "POST", path, lambda content: _redriven(content).redriven, body=body, wait_s=_MANY_JOBS_S, repeatable=False
    )


def preview_redrive(
    name: str, *, ids: Sequence[str] | None = None, limit: int = REDRIVE_DEFAULT, **conditions: Unpack[JobConditions]
) -> ApiRequest[Preview]:
    """`POST /topics/{topic}/redrive` as a dry run."""
    body = encode({**_redrive_fields(ids, limit, conditions), "dry_run": True})
    path = f"{_topic_path(name)}/redrive"
    return ApiRequest("POST", path, read_preview, body=body, wait_s=_MANY_JOBS_S)


def _redrive_fields(ids: Sequence[str] | None, limit: int, conditions: JobConditions) -> dict[str, Any]:
    return {**({"limit": limit} if ids is None else {"ids": list(ids)}), **condition_fields(conditions)}


def purge(name: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]) -> ApiRequest[int]:
    """`DELETE /topics/{topic}`: removes all its jobs, or those in one state and so on, and returns how many.

    Not repeatable: a second one would remove jobs that were put since, and the count would be wrong.
    """
    query, path = without_none(state=state, **condition_fields(conditions)), _topic_path(name)
    return ApiRequest(
        "DELETE", path, lambda content: _removed(content).removed, query=query, wait_s=_MANY_JOBS_S, repeatable=False
    )


def preview_purge(
    name: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
) -> ApiRequest[Preview]:
    """`DELETE /topics/{topic}` as a dry run."""
    query = without_none(state=state, **condition_fields(conditions), dry_run="true")
    return ApiRequest("DELETE", _topic_path(name), read_preview, query=query, wait_s=_MANY_JOBS_S)


def condition_fields(conditions: JobConditions) -> dict[str, Any]:
    """The conditions as fields of the API. Raises TypeError for an unknown one."""
    for name in conditions:
        if name not in JobConditions.__annotations__:
            known = ", ".join(JobConditions.__annotations__)
            raise TypeError(f"unexpected keyword argument {name!r}: the conditions are {known}")
    fields: dict[str, Any] = without_none(**conditions)
    if isinstance(fields.get("cutoff"), datetime):
        fields["cutoff"] = instant("cutoff", fields["cutoff"])
    return fields


# Operations


def audit(name: str) -> ApiRequest[TopicAudit]:
    """`GET /topics/{topic}/audit`."""
    return ApiRequest("GET", f"{_topic_path(name)}/audit", _read_audit, wait_s=_MANY_JOBS_S)


def repair(name: str) -> ApiRequest[TopicAudit]:
    """`POST /topics/{topic}/repair`. Not repeatable: the second response would not say what the first repaired."""
    path = f"{_topic_path(name)}/repair"
    return ApiRequest("POST", path, _read_audit, wait_s=_MANY_JOBS_S, repeatable=False)


def audit_store() -> ApiRequest[StoreAudit]:
    """`GET /audit`."""
    return ApiRequest("GET", "/audit", _read_store_audit, wait_s=_MANY_JOBS_S)


def repair_store() -> ApiRequest[StoreAudit]:
    """`POST /repair`; see `repair`."""
    return ApiRequest("POST", "/repair", _read_store_audit, wait_s=_MANY_JOBS_S, repeatable=False)


def ready() -> ApiRequest[None]:
    """`GET /readyz`."""
    return ApiRequest("GET", "/readyz", responses.read_nothing, asks_readiness=True)


def metrics() -> ApiRequest[str]:
    """`GET /metrics`: the text format of Prometheus."""
    return ApiRequest("GET", "/metrics", responses.read_text)


def _job_path(topic: str, id: str) -> str:
    return f"/jobs/{quote(topic, safe=':')}/{quote(id, safe=':')}"


def topic_path(topic: str, verb: str) -> str:
    """The path of a verb on jobs of a topic."""
    return f"{_topic_path(topic)}/{verb}"


def _topic_path(topic: str) -> str:
    return f"/topics/{quote(topic, safe=':')}"


def _on_delivery(
    verb: str, job: JobRef | Delivery, fields: dict[str, Any], read: Callable[[bytes], Result]
) -> ApiRequest[Result]:
    has_receipt = job.receipt is not None
    if has_receipt:
        fields["receipt"] = job.receipt
    path = f"{_job_path(job.topic, job.id)}/{verb}"
    return ApiRequest("POST", path, read, body=encode(fields), repeatable=has_receipt)
