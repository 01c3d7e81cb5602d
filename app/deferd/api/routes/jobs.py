"""For producers: put, get, change and cancel jobs, one by one, many by name, or all that a selection finds."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import orjson
from fastapi import Query
from msgspec.structs import replace
from pydantic import Field
from starlette.responses import Response

from deferd.api.auth.api_keys import Arguments, Recorded, end_topics, no_topics
from deferd.api.change_recording import is_recorded
from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.job_responses import job as job_of
from deferd.api.job_responses import job_without_bodies, written_job, written_put
from deferd.api.operation_router import OperationRouter
from deferd.api.recorded_values import names_of, size_of, values_before
from deferd.api.responses import JsonResponse, encode, instant_or_none
from deferd.api.routes.queries import WithBodies
from deferd.api.routes.tasks import ACCEPTED, begin_call
from deferd.contract import limits
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected, UndoCancel
from deferd.contract.model import (
    CancelBatch,
    ChangeJob,
    Durability,
    FollowUp,
    IfReserved,
    Instant,
    JobId,
    JobState,
    PutBatch,
    PutJob,
    Topic,
)
from deferd.contract.operations import bulk
from deferd.contract.operations import jobs as contract
from deferd.contract.operations.bulk import BulkResult, CancelUndone, SampleJob
from deferd.contract.operations.jobs import Cancelled, CancelResults, Job, PutResults, StoredJob
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.record import JobRecord, instant_ms, to_ms

router = OperationRouter()

_BY_PEOPLE = Recorded(via=frozenset(("console", "cli")), joins=True)


@router.serves(
    contract.PUT_JOB,
    topics=lambda arguments: (arguments["job"].topic,),
    ends_into=lambda arguments: end_topics((arguments["job"],)),
    recorded=Recorded(via=frozenset(("console",))),
    responses={
        201: {"headers": {"Location": {"description": "The job's path.", "schema": {"type": "string"}}}},
        200: {
            "model": StoredJob,
            "description": "The topic already had a job with this id. With `keep` the response is the existing job, "
            "with `replace` the new one, with `append` its collection, of which `body` shows only the item of this "
            "put. `state` tells whether a job that was kept will still run.",
        },
    },
)
async def put_job(request: CurrentRequest, job: PutJob) -> Response:
    if job.traceparent is None and (traceparent := request.incoming.traceparent()) is not None:
        job = job.model_copy(update={"traceparent": traceparent})
    await request.check_batches((job,))
    with request.room_for((job,)):
        put = await request.engine.puts.put(job, request.put_bounds())
    if put.outcome not in {"created", "follow_up"}:
        return JsonResponse(written_put(put))
    location = f"/jobs/{put.record.topic}/{put.record.id}".encode()
    return JsonResponse(written_put(put), 201, ((b"location", location),))


class PutBatchQuery(StrictModel):
    """The parameters of a batch put."""

    with_jobs: bool = Field(
        False,
        description="Return the stored job with each result of status 201 or 200, as `job`. Jobs that existed already "
        "(`keep`) are left out beyond 1 MiB together: get those separately.",
    )


@router.serves(
    contract.PUT_JOBS,
    topics=lambda arguments: {job.topic for job in arguments["batch"].jobs},
    ends_into=lambda arguments: end_topics(arguments["batch"].jobs),
)
async def put_jobs(
    request: CurrentRequest,
    query: Annotated[PutBatchQuery, Query()],
    batch: PutBatch,  # or its EncodedBatch
) -> PutResults:
    puts = request.engine.puts
    await request.check_batches(batch.jobs)
    with request.room_for(batch.jobs):
        if query.with_jobs:
            with_jobs = await puts.put_many_with_jobs(batch.jobs, request.put_bounds())
            return PutResults(
                results=[
                    result if record is None else replace(result, job=written_job(record))
                    for result, record in with_jobs
                ]
            )
        return PutResults(results=await puts.put_many(batch.jobs, request.put_bounds()))


class GetQuery(StrictModel):
    """The parameters of a get."""

    bodies: WithBodies = True
    wait: float | None = Field(
        None,
        strict=True,
        ge=0,
        le=limits.WAIT_MAX_S,
        allow_inf_nan=False,
        description="Maximum seconds to wait until the job has ended, 0 to 60. With it, also with 0, the response says "
        "the `outcome` of a job that has ended.",
    )
    until: Literal["end", "progress"] = Field(
        "end", description="With `wait`. `progress`: wait only until the next progress of the job, or its end."
    )
    after: Instant | None = Field(
        None,
        description="With `until=progress`: respond at once if the job has a progress from later than this, such as "
        "the `progress_at` of the last response. Default: only what is reported from now on counts.",
    )


@router.serves(contract.GET_JOB)
async def get_job(request: CurrentRequest, topic: Topic, id: JobId, query: Annotated[GetQuery, Query()]) -> Job:
    if query.wait is not None:
        return await _wait_for(request, topic, id, query, to_ms(query.wait))
    shown = job_of if query.bodies else job_without_bodies
    return shown(await request.engine.queue.get(topic, id))


async def _wait_for(request: RequestContext, topic: str, job_id: str, query: GetQuery, wait_ms: int) -> Job:
    after_ms = None if query.after is None else instant_ms(query.after)
    usage = request.admission.usage
    with usage.waiting_pop() if wait_ms and usage is not None else nullcontext():
        waited = await request.incoming.cancel_on_disconnect(
            request.engine.waits.wait(topic, job_id, wait_ms, until=query.until, after_ms=after_ms)
        )
    request.admission.check_again([topic])
    shown = job_without_bodies(waited.job) if waited.left_out or not query.bodies else job_of(waited.job)
    if waited.left_out:
        shown = replace(shown, body_bytes=waited.left_out)
    return replace(shown, outcome=waited.outcome)


@router.serves(contract.CHANGE_JOB, ends_into=lambda arguments: end_topics((arguments["change"],)), recorded=_BY_PEOPLE)
async def change_job(request: CurrentRequest, topic: Topic, id: JobId, change: ChangeJob) -> Job:
    is_by_people = is_recorded(_BY_PEOPLE, request.incoming)
    request.was = await values_before(_recorded_before(request, topic, id)) if is_by_people else None
    with request.room_for_change(change):
        record = await request.engine.queue.change(topic, id, change)
    if is_by_people:
        request.now = _recorded(record)
    return job_of(record)


_CHANGING = {"body", "body_bytes", "headers", "result", "result_bytes", "followed_by", "attempts_log", "last_error"}


async def _recorded_before(request: RequestContext, topic: str, job_id: str) -> dict[str, Any]:
    return _recorded(await request.engine.queue.get(topic, job_id))


def _recorded(record: JobRecord) -> dict[str, Any]:
    """What the list of changes says of a job."""
    fields: dict[str, Any] = orjson.loads(encode(job_without_bodies(record)))
    shown = {name: value for name, value in fields.items() if name not in _CHANGING}
    return {**shown, "headers": names_of(fields.get("headers") or {}), "body": size_of(record.body)}


class CancelQuery(StrictModel):
    """The parameters of a cancel."""

    if_reserved: IfReserved = "cancel"
    follow_up: FollowUp = "cancel"
    durability: Durability | None = Field(
        default=None,
        description="How durable the cancel must be before its response. `replicated:1`: it holds also through a "
        "failover. Default: as the store is configured.",
    )


@router.serves(contract.CANCEL_JOB, recorded=_BY_PEOPLE)
async def cancel_job(
    request: CurrentRequest, topic: Topic, id: JobId, query: Annotated[CancelQuery, Query()]
) -> Cancelled:
    refuse = query.if_reserved == "refuse"
    keep = query.follow_up == "keep"
    cancels = request.engine.cancels
    reached = None
    if query.durability is None:
        was = await cancels.cancel(topic, id, refuse_reserved=refuse, keep_follow_up=keep)
    else:
        was, reached = await cancels.cancel_durably(
            topic, id, query.durability, refuse_reserved=refuse, keep_follow_up=keep
        )
    return Cancelled(topic=topic, id=id, state="cancelled", was=was, durability=reached)


@router.serves(contract.CANCEL_JOBS, recorded=_BY_PEOPLE)
async def cancel_jobs(request: CurrentRequest, topic: Topic, batch: CancelBatch) -> CancelResults:
    results = await request.engine.cancels.cancel_many(topic, batch.jobs)
    request.changed = sum(result.was is not None for result in results)
    return CancelResults(results=results)


_BULK = Recorded(filter="call", joins=True)


def _topics_of_selection(arguments: Arguments) -> Collection[str]:
    call: CancelSelected | RescheduleSelected = arguments["call"]
    return call.select.named_topics


@router.serves(bulk.CANCEL_SELECTED_JOBS, topics=_topics_of_selection, recorded=_BULK, responses=ACCEPTED)
async def cancel_selected_jobs(request: CurrentRequest, call: CancelSelected) -> BulkResult | Response:
    if call.as_task:
        return await begin_call(request, "cancel", call)
    admission = request.admission
    with request.room_for_call(call):
        outcome = await request.engine.bulk.cancel(call, admission.visible_topics, admission.key_name)
    result = _bulk_result(request, outcome)
    if not call.undo or call.request_id is None:
        return result
    kept = await request.engine.undos.undoable(call.request_id, admission.key_name)
    return replace(result, undoable=kept.jobs)


@router.serves(bulk.UNDO_CANCEL, topics=no_topics)
async def undo_cancel(request: CurrentRequest, call: UndoCancel) -> CancelUndone:
    admission = request.admission
    undone = await request.engine.undos.undo_cancel(call.request_id, admission.key_name, admission.visible_topics)
    request.changed = undone.put_back
    return CancelUndone(put_back=undone.put_back, left=undone.left)


@router.serves(bulk.RESCHEDULE_SELECTED_JOBS, topics=_topics_of_selection, recorded=_BULK, responses=ACCEPTED)
async def reschedule_selected_jobs(request: CurrentRequest, call: RescheduleSelected) -> BulkResult | Response:
    if call.as_task:
        return await begin_call(request, "reschedule", call)
    admission = request.admission
    with request.room_for_call(call):
        outcome = await request.engine.bulk.reschedule(call, admission.visible_topics, admission.key_name)
    return _bulk_result(request, outcome)


def _bulk_result(request: RequestContext, outcome: BulkOutcome) -> BulkResult:
    request.changed = outcome.done
    preview = outcome.preview
    return BulkResult(
        matched=outcome.matched,
        done=outcome.done,
        was=outcome.was,
        complete=outcome.complete,
        cutoff=None if preview is None else instant(preview.cutoff_ms),
        samples=None
        if preview is None
        else [SampleJob(topic=topic, id=job_id, state=JobState(state)) for topic, job_id, state in preview.samples],
        first_due_at=None if preview is None else instant_or_none(preview.first_due_ms),
        last_due_at=None if preview is None else instant_or_none(preview.last_due_ms),
    )
