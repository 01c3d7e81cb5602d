"""The requests of puts, finishes and cancels, and how they are repeated without harm.

A put has an id before its first attempt. When the response to an attempt was lost and a later one finds the id taken,
the stored job is compared with the put: if they are equal, it counts as stored by this put.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal

from msgspec.structs import replace

from deferd.client.errors import NoAnswer, Undecryptable, UnexpectedAnswer
from deferd.client.put_options import check_put
from deferd.client.request_body import JobRef, JobToPut, as_json, encode, job_fields
from deferd.client.requests import ApiRequest, Read, reader_of, request_for
from deferd.client.sender import Sender
from deferd.contract.errors import (
    BatchSealed,
    FieldError,
    InvalidInput,
    JobExists,
    JobNotFound,
    JobReserved,
    PayloadTooLarge,
)
from deferd.contract.fields import PLACING, POLICY, Kind
from deferd.contract.limits import BATCH_TAG
from deferd.contract.model import DurabilityLevel
from deferd.contract.operations import jobs as operations
from deferd.contract.operations.jobs import FINISH_JOB, GET_JOB, Cancelled, Delivery, Job, PutResult, read_backoff
from deferd.contract.operations.operation import Operation
from deferd.contract.timestamps import parse_instant

IfReserved = Literal["cancel", "refuse"]
FollowUp = Literal["cancel", "keep"]
TRACEPARENT: ContextVar[str | None] = ContextVar("deferd_traceparent", default=None)
"""The W3C trace context of puts that name none: a worker sets it to that of the job it handles."""
_EQUAL_FIELDS = (*(field.name for field in POLICY if field.kind in {Kind.COUNT, Kind.TEXT}), "traceparent", "batch")
_LABELS = ("tags", "headers", "group", "priority")
"""Fields that are as good as left out when they are empty or 0."""
_DURATIONS = (
    *(field.name for field in POLICY if field.kind is Kind.SECONDS and field.name not in PLACING),
    "unique_for",
)
_OF_ONE_ID = frozenset({"on_conflict", "if_reserved", "max_wait", "max_items", "unique_for"})
"""Fields some values of which need an id of the caller's own."""
_ROUNDING_S = 0.0015
_PLACED_ROUNDING_S = 10
"""By how much `asked_for` may differ from the due time of a put: the service computes it before it stores the job."""
_ID_BYTES = 16


def new_id() -> str:
    """An id that is unique across processes, also after a fork."""
    return os.urandom(_ID_BYTES).hex()


def with_id(fields: dict[str, Any]) -> dict[str, Any]:
    """The job with an id and, if there is one, the current trace context.

    An id made here can only be taken by an earlier attempt of the same put, so keeping the existing job is right.

    Raises:
        InvalidInput: it has an option for which it needs an id of the caller's.
    """
    [fields] = with_ids([fields])
    return fields


def with_ids(jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each of the jobs as `with_id` makes it."""
    jobs = list(jobs)
    ids = os.urandom(_ID_BYTES * len(jobs)).hex()
    traceparent = TRACEPARENT.get()
    for index, fields in enumerate(jobs):
        if fields.get("id") is None:
            if not _OF_ONE_ID.isdisjoint(fields):
                check_put(as_json(job_fields({**fields, "body": None})))
            fields["id"] = ids[2 * _ID_BYTES * index : 2 * _ID_BYTES * (index + 1)]
            fields.setdefault("on_conflict", "keep")
        if traceparent is not None:
            fields.setdefault("traceparent", traceparent)
    return jobs


async def put_once(
    sender: Sender,
    fields: dict[str, Any],
    request: ApiRequest[Job],
    *,
    doubtful: bool = False,
    retry_for_s: float | None = None,
) -> Job:
    """Put one job that has an id. `request` is that of `fields`.

    `doubtful`: the job may have been put by an earlier request. `retry_for_s` overrides that of the sender.

    Raises:
        NoAnswer: a response was lost, and the job that had the id is gone.
        DeferdError: as `Client.put`.
    """
    outcome = await sender.try_to_send(request, retry_for_s=retry_for_s, doubtful=doubtful)
    if outcome.doubtful and isinstance(outcome.error, JobExists | JobReserved):
        stored = await _stored(sender, fields)
        if stored is None:
            raise NoAnswer(_gone_text(fields)) from outcome.error
        if matches_put(stored, fields):
            # The refusal was as durable as the put asks for, and the stored job with it.
            durability = outcome.error.durability
            return replace(stored, durability=durability)
    if outcome.doubtful and isinstance(outcome.error, BatchSealed):
        text = (
            f"a response to the put of {fields['topic']}/{fields['id']} was lost; at the next attempt its batch was "
            "sealed and the job not there: it may have been put, and have ended since"
        )
        raise NoAnswer(text) from outcome.error
    return outcome.result()


async def finish_once(
    sender: Sender,
    job: Delivery | JobRef,
    result: Any = None,
    put: Sequence[Mapping[str, Any]] = (),
    *,
    doubtful: bool = False,
    retry_for_s: float | None = None,
) -> None:
    """Finish one job and put others. `doubtful`: an earlier request may have done it. Raises as `Client.finish`."""
    request = finish(job, result, put)
    outcome = await sender.try_to_send(request, retry_for_s=retry_for_s, doubtful=doubtful)
    # A finished job without `retain` is gone, so after a lost response "not found" means that it was finished.
    if not (outcome.doubtful and isinstance(outcome.error, JobNotFound)):
        outcome.result()


async def cancel_once(
    sender: Sender, request: ApiRequest[Cancelled], *, doubtful: bool = False, retry_for_s: float | None = None
) -> Cancelled:
    """Cancel one job. `doubtful`: an earlier request may have cancelled it. Raises as `Client.cancel`."""
    outcome = await sender.try_to_send(request, retry_for_s=retry_for_s, doubtful=doubtful)
    error = outcome.error
    if outcome.doubtful and isinstance(error, JobNotFound):
        job = f"{error.topic}/{error.job_id}"
        text = f"a response to the cancel of {job} was lost; the job is gone, by this cancel or before it"
        raise NoAnswer(text) from error
    return outcome.result()


async def put_batch_once(sender: Sender, jobs: Sequence[dict[str, Any]], *, first_index: int = 0) -> list[PutResult]:
    """Put 1 to 1000 jobs that have an id each, in several requests if the service finds one too large.

    `first_index` is the position of the first job, for the paths in errors.
    """
    outcome = await sender.try_to_send(put_many(jobs))
    if isinstance(outcome.error, PayloadTooLarge):
        if len(jobs) == 1:
            [job] = jobs
            return [
                PutResult(
                    topic=job["topic"], id=job["id"], status=413, code=PayloadTooLarge.code, detail=str(outcome.error)
                )
            ]
        half = len(jobs) // 2
        return [
            *await put_batch_once(sender, jobs[:half], first_index=first_index),
            *await put_batch_once(sender, jobs[half:], first_index=first_index + half),
        ]
    if isinstance(outcome.error, InvalidInput):
        raise _with_index(outcome.error, first_index) from outcome.error
    results = outcome.result()
    if len(results) != len(jobs):
        raise UnexpectedAnswer(200, f"the response to a batch of {len(jobs)} puts has {len(results)} results")
    if not outcome.doubtful:
        return results
    return [
        await _resolved(sender, fields, result) if result.code in {JobExists.code, JobReserved.code} else result
        for fields, result in zip(jobs, results, strict=True)
    ]


async def _resolved(sender: Sender, fields: Mapping[str, Any], refused: PutResult) -> PutResult:
    """The result of a put that was refused because of a job that an earlier attempt may have stored."""
    stored = await _stored(sender, fields)
    if stored is None:
        return replace(refused, status=503, code=NoAnswer.code, detail=_gone_text(fields))
    return replace(refused, status=201, code=None) if matches_put(stored, fields) else refused


async def _stored(sender: Sender, fields: Mapping[str, Any]) -> Job | None:
    try:
        request = request_for(GET_JOB, fields["topic"], fields["id"])
        # An error must not deny the put itself.
        return (await sender.try_to_send(request, doubtful=True)).result()
    except JobNotFound:
        return None


def _gone_text(fields: Mapping[str, Any]) -> str:
    return (
        f"a response to the put of {fields['topic']}/{fields['id']} was lost; a job of this id was there at the next "
        "attempt and is gone now: either this job, finished or cancelled since, or another one"
    )


def _with_index(error: InvalidInput, first_index: int) -> InvalidInput:
    """An InvalidInput of one batch with paths that begin with the job's position in the whole stream."""
    field_errors = []
    for field_error in error.field_errors:
        path = field_error.path
        if len(path) > 2 and path[:2] == ("body", "jobs") and isinstance(path[2], int):
            path = (first_index + path[2], *path[3:])
        field_errors.append(FieldError(path, field_error.message, field_error.value))
    return InvalidInput(field_errors)


def matches_put(stored: Job, fields: Mapping[str, Any]) -> bool:
    """Whether a stored job has everything that a put asks for."""
    wanted = as_json(job_fields(fields))
    try:
        if stored.body != wanted.get("body"):
            return False
    except Undecryptable:  # this put has been encrypted with a key that is there
        return False
    asked_for, rounding_s = stored.due_at, _ROUNDING_S
    if stored.asked_for is not None:
        asked_for, rounding_s = stored.asked_for, _PLACED_ROUNDING_S
    if "run_at" in wanted:
        run_at = parse_instant(wanted["run_at"])
        differs = abs((run_at - asked_for).total_seconds()) > rounding_s
        if not stored.attempts and run_at > stored.created_at and differs:
            return False
    elif not stored.attempts:  # after a release the due time is another one
        delay_s = (asked_for - stored.created_at).total_seconds()
        if abs(delay_s - wanted.get("delay", 0)) > rounding_s:
            return False
    if "backoff" in wanted and stored.backoff != read_backoff(wanted["backoff"]):
        return False
    found = stored.fields
    if stored.batch is not None:  # the service has added its tag
        found["tags"] = [tag for tag in stored.tags if tag != BATCH_TAG + stored.batch]
        wanted["tags"] = [tag for tag in wanted.get("tags") or () if tag != BATCH_TAG + stored.batch]
    if any(_differ(found.get(name), wanted[name]) for name in _DURATIONS if name in wanted):
        return False
    if any((found.get(name) or None) != (wanted[name] or None) for name in _LABELS if name in wanted):
        return False
    return all(found.get(name) == wanted[name] for name in _EQUAL_FIELDS if name in wanted)


def _differ(stored_s: float | None, wanted_s: float | None) -> bool:
    if stored_s is None or wanted_s is None:
        return stored_s is not wanted_s
    return abs(stored_s - wanted_s) > _ROUNDING_S


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
    request = request_for(operations.PUT_JOB, body=body, success=success, repeatable=_is_repeatable(fields))
    return request.reading(reader_of(Job))


def put_many(jobs: Sequence[JobToPut]) -> ApiRequest[list[PutResult]]:
    """`POST /jobs/batch`: 1 to 1000 jobs, each a PutJob or the JSON object of the contract."""
    items = [job_fields(job) for job in jobs]
    repeatable = all(map(_is_repeatable, items))
    request = request_for(operations.PUT_JOBS, body=encode({"jobs": items}), repeatable=repeatable)
    return request.giving(lambda batch: batch.results)


def cancel(
    topic: str,
    id: str,
    *,
    if_reserved: IfReserved = "cancel",
    follow_up: FollowUp = "cancel",
    durability: DurabilityLevel | None = None,
) -> ApiRequest[Cancelled]:
    """`DELETE /jobs/{topic}/{id}`."""
    query = cancel_options(if_reserved, follow_up)
    if durability is not None:
        query["durability"] = durability
    return request_for(operations.CANCEL_JOB, topic, id, query=query or None)


def cancel_options(if_reserved: str, follow_up: str) -> dict[str, str]:
    """The options of a cancel that differ from the defaults."""
    options = {"if_reserved": if_reserved, "follow_up": follow_up}
    return {name: value for name, value in options.items() if value != "cancel"}


def finish(job: JobRef | Delivery, result: Any = None, put: Sequence[JobToPut] = ()) -> ApiRequest[None]:
    """`POST /jobs/{topic}/{id}/finish`: end this delivery with a result, which is kept if the job has a `retain`.

    `put` are jobs to put in the same step, each a PutJob or the JSON object of the contract.
    """
    fields: dict[str, Any] = {} if result is None else {"result": result}
    if put:
        fields["put"] = [job_fields(one) for one in put]
    return on_delivery(FINISH_JOB, job, fields).giving(lambda _: None)


def on_delivery(operation: Operation[Read], job: JobRef | Delivery, fields: dict[str, Any]) -> ApiRequest[Read]:
    """A request that ends or extends a delivery. Without a receipt it is not repeatable: it may hit the next one."""
    has_receipt = job.receipt is not None
    if has_receipt:
        fields["receipt"] = job.receipt
    return request_for(operation, job.topic, job.id, body=encode(fields), repeatable=has_receipt)
