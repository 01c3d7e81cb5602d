"""The operations of the HTTP contract as requests: what to send, how to read the response, and what is repeatable.

An `ApiRequest` does no I/O, so the asyncio client and the blocking one share all of this and differ only in their
transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast

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
from deferd.client.response_reading import Read, read_nothing, reader_of
from deferd.contract.limits import REDRIVE_DEFAULT, WAIT_DEFAULT_S
from deferd.contract.model import DeadReason, DurabilityLevel, JobState, TopicSettings
from deferd.contract.operations import deliveries, health
from deferd.contract.operations import jobs as job_operations
from deferd.contract.operations import pop as pop_operations
from deferd.contract.operations import topics as topic_operations
from deferd.contract.operations.operation import Operation
from deferd.contract.responses.audits import StoreAudit, TopicAudit
from deferd.contract.responses.bulk import DryRun as Preview
from deferd.contract.responses.job_calls import (
    Cancelled,
    CancelResult,
    FinishResult,
    FinishResults,
    PutResult,
    Released,
)
from deferd.contract.responses.jobs import Delivery, Job
from deferd.contract.responses.response import Response
from deferd.contract.responses.topics import TopicPage, TopicView

Result = TypeVar("Result")
Value = TypeVar("Value")

_MANY_JOBS_S = 600.0
"""How long the service may take to purge, redrive or check a million jobs."""
_LONGEST_RETRY_S = 1_000_000_000
"""The value of a `Retry-After` with more digits: longer than any client waits."""


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

    def giving(self, part_of: Callable[[Result], Value]) -> ApiRequest[Value]:
        """This request, whose result is from now on a part of what it was."""
        request: ApiRequest[Any] = self
        read = request.read
        request.read = lambda content: part_of(read(content))
        return request

    def reading(self, read: Callable[[bytes], Value]) -> ApiRequest[Value]:
        """This request, whose response is from now on read in another way."""
        request: ApiRequest[Any] = self
        request.read = read
        return request


def request_for(
    operation: Operation[Read],
    *path_values: str,
    query: Mapping[str, str | int | float] | None = None,
    body: bytes | None = None,
    wait_s: float = 0,
    success: tuple[int, ...] | None = None,
    repeatable: bool | None = None,
    asks_readiness: bool = False,
    headers: Mapping[str, str] | None = None,
) -> ApiRequest[Read]:
    """A request of an operation of the contract: its result is the whole response.

    `path_values` are the topic, the id or what else the path has, in its order. None for `success` and
    `repeatable`: as the operation's row says. The rest is as in ApiRequest.
    """
    return ApiRequest(
        operation.method,
        operation.path_for(*path_values) if path_values else operation.path,
        reader_of(operation.response or cast("type[Read]", Response)),
        query,
        body,
        wait_s,
        (operation.status,) if success is None else success,
        operation.repeatable if repeatable is None else repeatable,
        asks_readiness,
        headers,
    )


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
    success = (200, 201) if accepts_existing else None
    request = request_for(job_operations.PUT_JOB, body=body, success=success, repeatable=_is_repeatable(fields))
    return request.reading(reader_of(Job))


def put_many(jobs: Sequence[JobToPut]) -> ApiRequest[list[PutResult]]:
    """`POST /jobs/batch`: 1 to 1000 jobs, each a PutJob or the JSON object of the contract."""
    items = [job_fields(job) for job in jobs]
    repeatable = all(map(_is_repeatable, items))
    request = request_for(job_operations.PUT_JOBS, body=encode({"jobs": items}), repeatable=repeatable)
    return request.giving(lambda batch: batch.results)


def get(topic: str, id: str) -> ApiRequest[Job]:
    """`GET /jobs/{topic}/{id}`."""
    return request_for(job_operations.GET_JOB, topic, id)


def change(topic: str, id: str, fields: Mapping[str, Any]) -> ApiRequest[Job]:
    """`PATCH /jobs/{topic}/{id}`: the fields to change; see `job_fields`.

    Not repeatable with a `delay`: it counts from the execution, so a second one would change the due time again.
    """
    body, repeatable = encode(job_fields(fields)), "delay" not in fields
    return request_for(job_operations.CHANGE_JOB, topic, id, body=body, repeatable=repeatable)


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
    return request_for(job_operations.CANCEL_JOB, topic, id, query=query or None)


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
    return request_for(job_operations.CANCEL_JOBS, topic, body=body).giving(lambda batch: batch.results)


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
    query = without_none(count=count, wait=wait_s, ttr=ttr, consumer=consumer, request_id=request_id)
    repeatable = request_id is not None
    request = request_for(pop_operations.POP_JOBS, names, query=query, wait_s=wait_s, repeatable=repeatable)
    return request.giving(lambda popped: popped.jobs)


def finish(job: JobRef | Delivery, result: Any = None, put: Sequence[JobToPut] = ()) -> ApiRequest[None]:
    """`POST /jobs/{topic}/{id}/finish`: end this delivery with a result, which is kept if the job has a `retain`.

    `put` are jobs to put in the same step, each a PutJob or the JSON object of the contract.
    """
    fields: dict[str, Any] = {} if result is None else {"result": result}
    if put:
        fields["put"] = [job_fields(one) for one in put]
    return _on_delivery(deliveries.FINISH_JOB, job, fields).giving(lambda _: None)


def release(
    job: JobRef | Delivery, *, delay: Seconds | None = None, error: str | None = None, count: bool = True
) -> ApiRequest[Released]:
    """`POST /jobs/{topic}/{id}/release`: return the job to the queue, due after `delay` or its backoff."""
    fields = without_none(delay=delay, error=error)
    if not count:
        fields["count"] = False
    return _on_delivery(deliveries.RELEASE_JOB, job, fields)


def touch(job: JobRef | Delivery, *, ttr: Seconds | None = None) -> ApiRequest[datetime]:
    """`POST /jobs/{topic}/{id}/touch`: the lease ends `ttr` from now; left out, the job's own."""
    request = _on_delivery(deliveries.TOUCH_JOB, job, without_none(ttr=ttr))
    return request.giving(lambda touched: touched.reserved_until)


def bury(job: JobRef | Delivery, *, error: str | None = None) -> ApiRequest[None]:
    """`POST /jobs/{topic}/{id}/bury`: the job becomes dead."""
    return _on_delivery(deliveries.BURY_JOB, job, without_none(error=error)).reading(read_nothing)


def finish_many(topic: str, jobs: Iterable[JobToFinish]) -> ApiRequest[list[FinishResult]]:
    """`POST /topics/{topic}/finish`: 1 to 1000 jobs of one topic, as deliveries or with a result each."""
    items = [finish_item(job) for job in jobs]
    repeatable = all("receipt" in item for item in items)
    request = request_for(deliveries.FINISH_JOBS, topic, body=encode({"jobs": items}), repeatable=repeatable)
    return request.giving(lambda batch: batch.results)


def check_many(topic: str, jobs: Iterable[Delivery | JobRef]) -> ApiRequest[list[FinishResult]]:
    """`POST /topics/{topic}/check`: 1 to 1000 deliveries of one topic."""
    return _on_deliveries(deliveries.CHECK_JOBS, topic, jobs)


def return_many(topic: str, jobs: Iterable[Delivery | JobRef]) -> ApiRequest[list[FinishResult]]:
    """`POST /topics/{topic}/return`: 1 to 1000 deliveries of one topic."""
    return _on_deliveries(deliveries.RETURN_JOBS, topic, jobs)


def _on_deliveries(
    operation: Operation[Any], topic: str, jobs: Iterable[Delivery | JobRef]
) -> ApiRequest[list[FinishResult]]:
    body = encode({"jobs": [finish_item(job) for job in jobs]})
    request = request_for(operation, topic, body=body).reading(reader_of(FinishResults))
    return request.giving(lambda batch: batch.results)


# Topics


def topics(cursor: str | None = None) -> ApiRequest[TopicPage]:
    """`GET /topics`: one page."""
    return request_for(topic_operations.LIST_TOPICS, query=None if cursor is None else {"cursor": cursor})


def topic(name: str) -> ApiRequest[TopicView]:
    """`GET /topics/{topic}`."""
    return request_for(topic_operations.GET_TOPIC, name)


def set_topic(name: str, settings: TopicSettings | Mapping[str, Any]) -> ApiRequest[TopicView]:
    """`PUT /topics/{topic}`: replaces all settings."""
    return request_for(topic_operations.SET_TOPIC, name, body=encode(in_seconds(set_fields(settings))))


def pause(name: str, reason: str | None = None) -> ApiRequest[TopicView]:
    """`POST /topics/{topic}/pause`."""
    body = None if reason is None else encode({"reason": reason})
    return request_for(topic_operations.PAUSE_TOPIC, name, body=body)


def resume(name: str) -> ApiRequest[TopicView]:
    """`POST /topics/{topic}/resume`."""
    return request_for(topic_operations.RESUME_TOPIC, name)


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
    request = request_for(topic_operations.LIST_JOBS, name, query=query)
    return request.giving(lambda page: (page.jobs, page.next_cursor))


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
    body = encode(_redrive_fields(ids, limit, conditions))
    request = request_for(topic_operations.REDRIVE_JOBS, name, body=body, wait_s=_MANY_JOBS_S)
    return request.giving(lambda result: result.redriven)


def preview_redrive(
    name: str, *, ids: Sequence[str] | None = None, limit: int = REDRIVE_DEFAULT, **conditions: Unpack[JobConditions]
) -> ApiRequest[Preview]:
    """`POST /topics/{topic}/redrive` as a dry run."""
    body = encode({**_redrive_fields(ids, limit, conditions), "dry_run": True})
    request = request_for(topic_operations.REDRIVE_JOBS, name, body=body, wait_s=_MANY_JOBS_S, repeatable=True)
    return request.reading(reader_of(Preview))


def _redrive_fields(ids: Sequence[str] | None, limit: int, conditions: JobConditions) -> dict[str, Any]:
    return {**({"limit": limit} if ids is None else {"ids": list(ids)}), **condition_fields(conditions)}


def purge(name: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]) -> ApiRequest[int]:
    """`DELETE /topics/{topic}`: removes all its jobs, or those in one state and so on, and returns how many.

    Not repeatable: a second one would remove jobs that were put since, and the count would be wrong.
    """
    query = without_none(state=state, **condition_fields(conditions))
    request = request_for(topic_operations.PURGE_TOPIC, name, query=query, wait_s=_MANY_JOBS_S)
    return request.giving(lambda result: result.removed)


def preview_purge(
    name: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
) -> ApiRequest[Preview]:
    """`DELETE /topics/{topic}` as a dry run."""
    query = without_none(state=state, **condition_fields(conditions), dry_run="true")
    request = request_for(topic_operations.PURGE_TOPIC, name, query=query, wait_s=_MANY_JOBS_S, repeatable=True)
    return request.reading(reader_of(Preview))


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
    return request_for(topic_operations.AUDIT_TOPIC, name, wait_s=_MANY_JOBS_S)


def repair(name: str) -> ApiRequest[TopicAudit]:
    """`POST /topics/{topic}/repair`. Not repeatable: the second response would not say what the first repaired."""
    return request_for(topic_operations.REPAIR_TOPIC, name, wait_s=_MANY_JOBS_S)


def audit_store() -> ApiRequest[StoreAudit]:
    """`GET /audit`."""
    return request_for(health.AUDIT_STORE, wait_s=_MANY_JOBS_S)


def repair_store() -> ApiRequest[StoreAudit]:
    """`POST /repair`; see `repair`."""
    return request_for(health.REPAIR_STORE, wait_s=_MANY_JOBS_S)


def ready() -> ApiRequest[None]:
    """`GET /readyz`."""
    return request_for(health.CHECK_READINESS, asks_readiness=True).reading(read_nothing)


def metrics() -> ApiRequest[str]:
    """`GET /metrics`: the text format of Prometheus."""
    return request_for(health.GET_METRICS).reading(bytes.decode)


def _on_delivery(operation: Operation[Read], job: JobRef | Delivery, fields: dict[str, Any]) -> ApiRequest[Read]:
    has_receipt = job.receipt is not None
    if has_receipt:
        fields["receipt"] = job.receipt
    return request_for(operation, job.topic, job.id, body=encode(fields), repeatable=has_receipt)
