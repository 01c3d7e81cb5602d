"""For producers: put, get, change and cancel jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import Recorded, requires
from deferd.api.job_responses import job as job_of
from deferd.api.job_responses import job_without_bodies
from deferd.api.job_templates import written_job, written_put
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.response_models import model_of
from deferd.api.responses import JsonResponse
from deferd.contract.collapsing import FollowUp
from deferd.contract.model import CancelBatch, ChangeJob, Durability, IfReserved, JobId, PutBatch, PutJob, Topic
from deferd.contract.responses.job_calls import Cancelled, CancelResults, PutResults
from deferd.contract.responses.jobs import Job, StoredJob

router = APIRouter(route_class=Operation, tags=["jobs"])

_BY_PEOPLE = Recorded(via=frozenset(("console", "cli")), joins=True)


@router.post(
    "/jobs",
    operation_id="put_job",
    summary="Put a job",
    description="Stores one job. It becomes ready at its due time, `delay` seconds from now or at `run_at`, and is "
    "handed out from then on. Give `delay` or `run_at`, not both; without either the job is ready at once. The topic's "
    "settings supply `ttr`, `max_attempts`, `backoff`, `ttl`, `retain`, `window`, `spread` and `durability` where the "
    "job omits them. After a 201 or 200 the job is stored as durably as `durability` in the response says. After a "
    "503 it may or may not be stored; repeating the request with the same id is safe. A durability level that the "
    "store cannot provide is refused with 422 `durability_unavailable`. A job without a `traceparent` takes the value "
    "of the `traceparent` header, if that is valid. A `window` moves the due time to the next opening, a `spread` "
    "moves it by a part that depends on the id: `asked_for` is then the due time without them.",
    status_code=201,
    response_model=StoredJob,
    response_description="The job was put.",
    responses={
        201: {"headers": {"Location": {"description": "The job's path.", "schema": {"type": "string"}}}},
        200: {
            "model": model_of(StoredJob),
            "description": "The topic already had a job with this id. With `keep` the response is the existing job, "
            "with `replace` the new one, with `append` its collection, of which `body` shows only the item of this "
            "put. `state` tells whether a job that was kept will still run.",
        },
        **error_responses(
            *("job_exists", "job_reserved", "validation", "durability_unavailable", "topic_full", "store_unavailable"),
            body=True,
        ),
    },
)
@requires(Scope.PUT, topics=lambda arguments: (arguments["job"].topic,), recorded=Recorded(via=frozenset(("console",))))
async def put_job(request: CurrentRequest, job: PutJob) -> Response:
    if job.traceparent is None and (traceparent := request.incoming.traceparent()) is not None:
        job = job.model_copy(update={"traceparent": traceparent})
    with request.room_for((job,)):
        put = await request.engine.queue.put(job, request.put_bounds())
    if put.outcome not in {"created", "follow_up"}:
        return JsonResponse(written_put(put))
    location = f"/jobs/{put.record.topic}/{put.record.id}".encode()
    return JsonResponse(written_put(put), 201, ((b"location", location),))


class PutBatchQuery(BaseModel):
    """The parameters of a batch put."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    with_jobs: bool = Field(
        False,
        description="Return the stored job with each result of status 201 or 200, as `job`. Jobs that existed already "
        "(`keep`) are left out beyond 1 MiB together: get those separately.",
    )


@router.post(
    "/jobs/batch",
    operation_id="put_jobs",
    summary="Put many jobs",
    description="Puts up to 1000 jobs. All are validated first: if one is invalid, the response is 422 with its index "
    "in the path of the field, and nothing is stored. Then each job is stored or refused on its own. The response has "
    "one result per job, in the order of the request. The jobs may have different levels of `durability`.",
    response_model=PutResults,
    response_description="The result for each job.",
    responses=error_responses("validation", "durability_unavailable", "store_unavailable", body=True),
)
@requires(Scope.PUT, topics=lambda arguments: {job.topic for job in arguments["batch"].jobs})
async def put_jobs(
    request: CurrentRequest,
    query: Annotated[PutBatchQuery, Query()],
    batch: PutBatch,  # or its EncodedBatch
) -> PutResults:
    queue = request.engine.queue
    with request.room_for(batch.jobs):
        if query.with_jobs:
            with_jobs = await queue.put_many_with_jobs(batch.jobs, request.put_bounds())
            return PutResults(
                results=[
                    result if record is None else replace(result, job=written_job(record))
                    for result, record in with_jobs
                ]
            )
        return PutResults(results=await queue.put_many(batch.jobs, request.put_bounds()))


class GetQuery(BaseModel):
    """The parameters of a get."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bodies: bool = Field(
        True,
        description="`false`: leave out `body` and `result`, and say how long they are: `body_bytes`, `result_bytes`.",
    )


@router.get(
    "/jobs/{topic}/{id}",
    operation_id="get_job",
    summary="Get a job",
    description="Returns the job in its current state; with `bodies=false` without its body and its result.",
    response_model=Job,
    response_description="The job.",
    responses=error_responses("job_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_job(request: CurrentRequest, topic: Topic, id: JobId, query: Annotated[GetQuery, Query()]) -> Job:
    shown = job_of if query.bodies else job_without_bodies
    return shown(await request.engine.queue.get(topic, id))


@router.patch(
    "/jobs/{topic}/{id}",
    operation_id="change_job",
    summary="Reschedule or change a job",
    description="Changes a delayed or ready job; its id stays the same. Omitted fields keep their values. Give `delay` "
    "or `run_at`, not both; a ready job with a later due time becomes delayed again. A new due time is moved by the "
    "job's `window` and `spread`; new ones of these move a delayed job from the time that was asked for. A dead or "
    "finished job gets 404 `job_not_found`.",
    response_model=Job,
    response_description="The changed job.",
    responses=error_responses("job_not_found", "job_reserved", "validation", "store_unavailable", body=True),
)
@requires(Scope.PUT, recorded=_BY_PEOPLE)
async def change_job(request: CurrentRequest, topic: Topic, id: JobId, change: ChangeJob) -> Job:
    with request.room_for_change(change):
        return job_of(await request.engine.queue.change(topic, id, change))


class CancelQuery(BaseModel):
    """The parameters of a cancel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    if_reserved: IfReserved = "cancel"
    follow_up: FollowUp = "cancel"
    durability: Durability | None = Field(
        default=None,
        description="How durable the cancel must be before its response. `replicated:1`: it holds also through a "
        "failover. Default: as the store is configured.",
    )


@router.delete(
    "/jobs/{topic}/{id}",
    operation_id="cancel_job",
    summary="Cancel a job",
    description="Cancels a job in any state; it is never handed out afterwards. `was` in the response is the state it "
    "was in: `reserved` means that a consumer already had it. With `durability` the cancel has reached that level "
    "before its response, and so has what a 404 or 409 says. After a 503 the job may or may not be cancelled; "
    "repeating the request is safe.",
    response_model=Cancelled,
    response_description="The job was cancelled.",
    responses=error_responses(
        "job_not_found", "job_reserved", "validation", "durability_unavailable", "store_unavailable"
    ),
)
@requires(Scope.CANCEL, recorded=_BY_PEOPLE)
async def cancel_job(
    request: CurrentRequest, topic: Topic, id: JobId, query: Annotated[CancelQuery, Query()]
) -> Cancelled:
    refuse = query.if_reserved == "refuse"
    keep = query.follow_up == "keep"
    queue = request.engine.queue
    reached = None
    if query.durability is None:
        was = await queue.cancel(topic, id, refuse_reserved=refuse, keep_follow_up=keep)
    else:
        was, reached = await queue.cancel_durably(
            topic, id, query.durability, refuse_reserved=refuse, keep_follow_up=keep
        )
    return Cancelled(topic=topic, id=id, state="cancelled", was=was, durability=reached)


@router.post(
    "/topics/{topic}/cancel",
    operation_id="cancel_jobs",
    summary="Cancel many jobs",
    description="Cancels up to 1000 jobs of one topic. Each has its own result, in the order of the request.",
    response_model=CancelResults,
    response_description="The result for each job.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.CANCEL, recorded=_BY_PEOPLE)
async def cancel_jobs(request: CurrentRequest, topic: Topic, batch: CancelBatch) -> CancelResults:
    results = await request.engine.queue.cancel_many(topic, batch.jobs)
    request.changed = sum(result.was is not None for result in results)
    return CancelResults(results=results)
