"""The producer's side: put, look, change, cancel."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from deferd.api import serialization
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi import schemas
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.responses import JsonResponse
from deferd.contract.model import ChangeJob, Job, JobId, PutBatch, PutJob, Topic

router = APIRouter(route_class=Operation, tags=["jobs"])


@router.post(
    "/jobs",
    operation_id="put_job",
    summary="Put a job",
    description="Stores one job. It becomes ready at its due time (`delay` seconds from now, or at `run_at`; at once "
    "when both are left out) and is handed out from then on. Give `delay` or `run_at`, not both. What the job leaves "
    "out of `ttr`, `max_attempts`, `backoff`, `ttl`, `retain` and `durability` comes from the topic's settings. When "
    "this answers 201 or 200 the job is stored, as durably as `durability` in the answer says; a 503 says that it may "
    "be, and asking again with the same id is safe. A level that the store cannot give is refused with 422 "
    "`durability_unavailable`. A job without a `traceparent` takes that of the request's header of this name, if "
    "there is a valid one.",
    status_code=201,
    response_model=schemas.StoredJob,
    response_description="The job is put.",
    responses={
        201: {"headers": {"Location": {"description": "The job's path.", "schema": {"type": "string"}}}},
        200: {
            "model": schemas.StoredJob,
            "description": "The topic had a job of this id: with `keep` this is the old job, with `replace` the new "
            "one that took its place.",
        },
        **error_responses(
            *("job_exists", "job_reserved", "validation", "durability_unavailable", "topic_full", "store_unavailable"),
            body=True,
        ),
    },
)
@requires(Scope.PUT, topics=lambda arguments: (arguments["job"].topic,))
async def put_job(request: CurrentRequest, job: PutJob) -> Response:
    if job.traceparent is None and (traceparent := request.incoming.traceparent()) is not None:
        job = job.model_copy(update={"traceparent": traceparent})
    with request.room_for((job,)):
        put = await request.engine.queue.put(job, request.put_bounds())
    if put.outcome != "created":
        return JsonResponse(serialization.put_job(put))
    location = f"/jobs/{put.record.topic}/{put.record.id}".encode()
    return JsonResponse(serialization.put_job(put), 201, ((b"location", location),))


@router.post(
    "/jobs/batch",
    operation_id="put_jobs",
    summary="Put many jobs",
    description="Puts up to 1000 jobs. They are validated as a whole: one bad job, and the answer is 422 with its "
    "index in the field's path, and nothing is stored. Then each is stored or refused on its own, and has its own "
    "line in the answer, in the order of the request. Jobs may name different levels of `durability`.",
    response_model=schemas.PutResults,
    response_description="What became of each job.",
    responses=error_responses("validation", "durability_unavailable", "store_unavailable", body=True),
)
@requires(Scope.PUT, topics=lambda arguments: {job.topic for job in arguments["batch"].jobs})
async def put_jobs(request: CurrentRequest, batch: PutBatch) -> Response:
    with request.room_for(batch.jobs):
        results = await request.engine.queue.put_many(batch.jobs, request.put_bounds())
    return JsonResponse(serialization.put_results(results))


@router.get(
    "/jobs/{topic}/{id}",
    operation_id="get_job",
    summary="Look at a job",
    description="Shows the job as it is now and changes nothing.",
    response_model=Job,
    response_description="The job.",
    responses=error_responses("job_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_job(request: CurrentRequest, topic: Topic, id: JobId) -> Response:
    return JsonResponse(serialization.job(await request.engine.queue.look(topic, id)))


@router.patch(
    "/jobs/{topic}/{id}",
    operation_id="change_job",
    summary="Reschedule or change a job",
    description="Changes a delayed or ready job; it keeps its id. What is left out stays as it is. Give `delay` or "
    "`run_at`, not both: a ready job that is given a later due time waits again. A job that is dead or finished "
    "answers 404.",
    response_model=Job,
    response_description="The job as it is now.",
    responses=error_responses("job_not_found", "job_reserved", "validation", "store_unavailable", body=True),
)
@requires(Scope.PUT)
async def change_job(request: CurrentRequest, topic: Topic, id: JobId, change: ChangeJob) -> Response:
    with request.room_for_change(change):
        return JsonResponse(serialization.job(await request.engine.queue.change(topic, id, change)))


class CancelQuery(BaseModel):
    """How to cancel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    if_reserved: Literal["cancel", "refuse"] = Field(
        "cancel",
        description="What to do when a consumer holds the job: `cancel` it all the same (its holder's next call "
        "answers 410 `job_cancelled`), or `refuse` with 409 `job_reserved`.",
    )


@router.delete(
    "/jobs/{topic}/{id}",
    operation_id="cancel_job",
    summary="Cancel a job",
    description="Cancels a job in any state; it is not handed out after this. `was` in the answer tells whether that "
    "was in time: `reserved` means that a consumer had it already.",
    response_model=schemas.Cancelled,
    response_description="The job is cancelled.",
    responses=error_responses("job_not_found", "job_reserved", "validation", "store_unavailable"),
)
@requires(Scope.CANCEL)
async def cancel_job(
    request: CurrentRequest, topic: Topic, id: JobId, query: Annotated[CancelQuery, Query()]
) -> Response:
    refuse = query.if_reserved == "refuse"
    was = await request.engine.queue.cancel(topic, id, refuse_reserved=refuse)
    return JsonResponse({"topic": topic, "id": id, "state": "cancelled", "was": was})
