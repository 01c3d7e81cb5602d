"""For consumers, after the pop: finish, release, touch, bury, check and return jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import APIRouter

from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.response_values import instant, instant_or_none
from deferd.contract.model import (
    BuryJob,
    FinishBatch,
    FinishJob,
    HeldJobs,
    JobId,
    ReleaseJob,
    Topic,
    TouchJob,
)
from deferd.contract.responses import job_calls as responses
from deferd.engine.record import Receipt
from deferd.engine.stored_fields import to_ms

router = APIRouter(route_class=Operation, tags=["consumers"])

# What an omitted body means.
_FINISH, _RELEASE, _TOUCH, _BURY = FinishJob(), ReleaseJob(), TouchJob(), BuryJob()
_ENDED = (
    " Without a `receipt` this applies to the current delivery, whichever that is. 409 `receipt_stale`: the delivery "
    "has ended, and another consumer may hold the job. 410 `job_cancelled`: the job was cancelled; stop working on it."
)
_PROBLEMS = error_responses(
    "job_not_found", "receipt_stale", "job_cancelled", "validation", "store_unavailable", body=True
)


def _topics_of_puts(arguments: Mapping[str, Any]) -> Collection[str]:
    finish: FinishJob = arguments.get("finish", _FINISH)
    return {job.topic for job in finish.put or ()}


@router.post(
    "/jobs/{topic}/{id}/finish",
    operation_id="finish_job",
    summary="Finish a job",
    description="The job is done. A job with `retain` is kept that long with its `result`; any other is removed. With "
    "`put` up to 10 other jobs are put in the same step: all of it is done, or nothing. A key needs the scope `put` "
    "for their topics." + _ENDED,
    response_model=responses.Finished,
    response_description="The job was finished.",
    responses=error_responses(
        *("job_not_found", "receipt_stale", "job_exists", "job_reserved", "job_cancelled", "validation"),
        *("durability_unavailable", "different_shard", "topic_full", "store_unavailable"),
        body=True,
    ),
)
@requires(Scope.POP, puts_into=_topics_of_puts)
async def finish_job(
    request: CurrentRequest, topic: Topic, id: JobId, finish: FinishJob = _FINISH
) -> responses.Finished:
    results = None
    if finish.put is not None:
        with request.counting(finish.result), request.room_for(finish.put):
            results = await request.engine.queue.finish_and_put(
                topic,
                id,
                Receipt.of(finish.receipt),
                finish.put,
                result=finish.result,
                bounds=request.put_bounds(),
            )
    else:
        with request.counting(finish.result):
            await request.engine.queue.finish(topic, id, Receipt.of(finish.receipt), finish.result)
    return responses.Finished(topic=topic, id=id, state="finished", put=results or None)


@router.post(
    "/jobs/{topic}/{id}/release",
    operation_id="release_job",
    summary="Release a job",
    description="Ends the delivery without success. The job becomes ready again after `delay` seconds, by default "
    "after its backoff; without attempts left it is dead. With `count: false` the delivery is no attempt: it is one of "
    "the job's `snoozes`, which no `max_attempts` limits." + _ENDED,
    response_model=responses.Released,
    response_description="The new state of the job.",
    responses=_PROBLEMS,
)
@requires(Scope.POP)
async def release_job(
    request: CurrentRequest, topic: Topic, id: JobId, release: ReleaseJob = _RELEASE
) -> responses.Released:
    with request.counting(release.error):
        released = await request.engine.queue.release(
            topic,
            id,
            Receipt.of(release.receipt),
            delay_ms=None if release.delay is None else to_ms(release.delay),
            error=release.error,
            counts=release.count,
        )
    due_at = instant_or_none(released.due_at_ms)
    return responses.Released(state=released.state, due_at=due_at, attempts=released.attempts)


@router.post(
    "/jobs/{topic}/{id}/touch",
    operation_id="touch_job",
    summary="Extend a lease",
    description="The lease ends `ttr` seconds from now, by default the `ttr` of the job." + _ENDED,
    response_model=responses.Touched,
    response_description="The lease was extended.",
    responses=_PROBLEMS,
)
@requires(Scope.POP)
async def touch_job(request: CurrentRequest, topic: Topic, id: JobId, touch: TouchJob = _TOUCH) -> responses.Touched:
    ttr_ms = None if touch.ttr is None else to_ms(touch.ttr)
    reserved_until_ms = await request.engine.queue.touch(topic, id, Receipt.of(touch.receipt), ttr_ms=ttr_ms)
    return responses.Touched(reserved_until=instant(reserved_until_ms))


@router.post(
    "/jobs/{topic}/{id}/bury",
    operation_id="bury_job",
    summary="Bury a job",
    description="The job is dead: it is not handed out again unless it is redriven." + _ENDED,
    response_model=responses.Buried,
    response_description="The job was buried.",
    responses=_PROBLEMS,
)
@requires(Scope.POP)
async def bury_job(request: CurrentRequest, topic: Topic, id: JobId, bury: BuryJob = _BURY) -> responses.Buried:
    with request.counting(bury.error):
        await request.engine.queue.bury(topic, id, Receipt.of(bury.receipt), error=bury.error)
    return responses.Buried(state="dead")


@router.post(
    "/topics/{topic}/finish",
    operation_id="finish_jobs",
    summary="Finish many jobs",
    description="Finishes up to 1000 jobs of one topic. Each has its own result, in the order of the request. Only "
    "the finish of a single job takes a `put`.",
    response_model=responses.FinishResults,
    response_description="The result for each job.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.POP)
async def finish_jobs(
    request: CurrentRequest,
    topic: Topic,
    batch: FinishBatch,  # or EncodedFinishes
) -> responses.FinishResults:
    with request.counting_results(batch.jobs):
        return responses.FinishResults(results=await request.engine.queue.finish_many(topic, batch.jobs))


@router.post(
    "/topics/{topic}/check",
    operation_id="check_jobs",
    summary="Check many deliveries",
    description="Tells which of up to 1000 deliveries of one topic are over, and why: 410 `job_cancelled`, or 404 or "
    "409 when nobody holds the job. It changes nothing, extends no lease, and costs the store little, so a consumer "
    "can call it each second for all jobs that it holds. A delivery whose lease has ended and whose job another "
    "consumer has by now counts as held: a touch tells.",
    response_model=responses.CheckResults,
    response_description="The result for each delivery, in the order of the request.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.POP)
async def check_jobs(request: CurrentRequest, topic: Topic, held: HeldJobs) -> responses.FinishResults:
    return responses.FinishResults(results=await request.engine.queue.check_many(topic, held.jobs))


@router.post(
    "/topics/{topic}/return",
    operation_id="return_jobs",
    summary="Return jobs that nobody worked on",
    description="Returns up to 1000 jobs of one topic to the head of the queue, in their order: they are ready at "
    "once, as if they had not been popped. No attempt and no snooze is counted, and the receipts are void. For jobs "
    "that a consumer popped and will not begin.",
    response_model=responses.ReturnResults,
    response_description="The result for each delivery, in the order of the request.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.POP)
async def return_jobs(request: CurrentRequest, topic: Topic, held: HeldJobs) -> responses.FinishResults:
    return responses.FinishResults(results=await request.engine.queue.return_many(topic, held.jobs))
