"""For consumers, after the pop: finish, release, touch, bury, check and return jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.response_values import instant, instant_or_none
from deferd.contract.model import BuryJob, FinishBatch, FinishJob, HeldJobs, JobId, ReleaseJob, Topic, TouchJob
from deferd.contract.operations import deliveries as operations
from deferd.contract.responses import job_calls as responses
from deferd.engine.record import Receipt
from deferd.engine.stored_fields import to_ms

router = OperationRouter()

# What an omitted body means.
_FINISH, _RELEASE, _TOUCH, _BURY = FinishJob(), ReleaseJob(), TouchJob(), BuryJob()


def _topics_of_puts(arguments: Mapping[str, Any]) -> Collection[str]:
    finish: FinishJob = arguments.get("finish", _FINISH)
    return {job.topic for job in finish.put or ()}


@router.serves(operations.FINISH_JOB, puts_into=_topics_of_puts)
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


@router.serves(operations.RELEASE_JOB)
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


@router.serves(operations.TOUCH_JOB)
async def touch_job(request: CurrentRequest, topic: Topic, id: JobId, touch: TouchJob = _TOUCH) -> responses.Touched:
    ttr_ms = None if touch.ttr is None else to_ms(touch.ttr)
    reserved_until_ms = await request.engine.queue.touch(topic, id, Receipt.of(touch.receipt), ttr_ms=ttr_ms)
    return responses.Touched(reserved_until=instant(reserved_until_ms))


@router.serves(operations.BURY_JOB)
async def bury_job(request: CurrentRequest, topic: Topic, id: JobId, bury: BuryJob = _BURY) -> responses.Buried:
    with request.counting(bury.error):
        await request.engine.queue.bury(topic, id, Receipt.of(bury.receipt), error=bury.error)
    return responses.Buried(state="dead")


@router.serves(operations.FINISH_JOBS)
async def finish_jobs(
    request: CurrentRequest,
    topic: Topic,
    batch: FinishBatch,  # or EncodedFinishes
) -> responses.FinishResults:
    with request.counting_results(batch.jobs):
        return responses.FinishResults(results=await request.engine.queue.finish_many(topic, batch.jobs))


@router.serves(operations.CHECK_JOBS)
async def check_jobs(request: CurrentRequest, topic: Topic, held: HeldJobs) -> responses.FinishResults:
    return responses.FinishResults(results=await request.engine.held_jobs.check_many(topic, held.jobs))


@router.serves(operations.RETURN_JOBS)
async def return_jobs(request: CurrentRequest, topic: Topic, held: HeldJobs) -> responses.FinishResults:
    return responses.FinishResults(results=await request.engine.held_jobs.return_many(topic, held.jobs))
