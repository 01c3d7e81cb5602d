"""For consumers: pop jobs, the long poll; then finish, release, touch, bury, check and return them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from math import inf
from typing import Annotated

from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints
from starlette.responses import Response

from deferd.api.auth.api_keys import Arguments, Recorded, end_topics
from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.job_responses import written_deliveries
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import JsonResponse, instant_or_none
from deferd.api.routes.queries import TOPICS_PATTERN, distinct
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract import limits
from deferd.contract.errors import DeferdError
from deferd.contract.model import (
    BuryJob,
    ConsumerName,
    FinishBatch,
    FinishJob,
    HeldJobs,
    JobId,
    JobsToReturn,
    PutJob,
    ReleaseJob,
    Topic,
    TouchJob,
    Ttr,
)
from deferd.contract.operations import jobs as contract
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.engine import Engine
from deferd.engine.record import JobRecord, Receipt, to_ms
from deferd.engine.scripts import request_ending_at
from deferd.engine.topic_search import TopicSelection

_log = logging.getLogger("deferd.api.routes.pop")  # filters of logs know the name
NO_STORE = ((b"cache-control", b"no-store"),)

router = OperationRouter()


PopTopics = Annotated[
    str,
    Path(
        pattern=TOPICS_PATTERN,
        description=f"One topic, or up to {limits.POP_TOPICS_MAX} distinct topics separated by commas, in strict "
        "priority order. A topic need not exist yet. A name with `*`, which stands for any characters, is a pattern.",
        examples=["orders.close", "orders.urgent,orders.close", "orders.urgent,orders.*"],
    ),
    AfterValidator(distinct),
]
Label = Annotated[str, StringConstraints(pattern=limits.ID_PATTERN)]


class PopQuery(StrictModel):
    """The parameters of a pop."""

    wait: float = Field(
        limits.WAIT_DEFAULT_S,
        strict=True,
        ge=0,
        le=limits.WAIT_MAX_S,
        allow_inf_nan=False,
        description="Maximum seconds to wait for a job, 0 to 60; 0 does not wait.",
    )
    count: int = Field(
        1,
        strict=True,
        ge=1,
        le=limits.POP_COUNT_MAX,
        description="Maximum number of jobs, 1 to 1000. The pop returns as soon as there is one.",
    )
    ttr: Ttr | None = Field(
        None, description="Length of the leases in seconds, 0.1 to 86400; overrides the `ttr` of each job."
    )
    consumer: ConsumerName | None = Field(
        None,
        description="Name of the consumer, returned as `reserved_by`. 1 to 255 characters, like a job id.",
        examples=["worker-1"],
    )
    request_id: Label | None = Field(
        None,
        description="Makes the pop safe to repeat: a pop with the same `request_id` returns the same jobs again while "
        "their leases last, so none is held up by a lost response. 1 to 255 characters, like a job id.",
        examples=["worker-1.000017"],
    )


def named_topics(topics: str, visible: TopicPatterns | None) -> tuple[Sequence[str], TopicSelection | None]:
    """The topics that a pop names, and the selection of those that its patterns match among the `visible` ones."""
    names = tuple(topics.split(","))
    if not is_pattern(topics):
        return names, None
    patterns = [name for name in names if is_pattern(name)]
    names = tuple(name for name in names if not is_pattern(name))
    return names, TopicSelection(patterns, names, visible)


async def _pop(request: RequestContext, topics: str, query: PopQuery) -> Response:
    names, selection = named_topics(topics, request.admission.visible_topics)
    key_name = request.incoming.key_name
    usage = request.admission.usage
    unsent = request.app.unsent
    seen = request.app.consumers.general_pops(request.incoming, topics, query.consumer)
    seen.waiting += 1
    try:
        with usage.waiting_pop() if query.wait and usage is not None else nullcontext():
            unsent.check(topics, key_name)
            jobs = await request.incoming.cancel_on_disconnect(
                request.engine.dispatcher.pop(
                    names,
                    selection=selection,
                    count=query.count,
                    wait_ms=to_ms(query.wait),
                    ttr_ms=None if query.ttr is None else to_ms(query.ttr),
                    consumer=query.consumer,
                    request_id=query.request_id,
                )
            )
    finally:
        seen.waiting -= 1
    try:
        if jobs:
            request.admission.check_again(list(dict.fromkeys([*names, *(job.topic for job in jobs)])))
        response = JsonResponse(written_deliveries(jobs), headers=NO_STORE)
        if len(response.body) > LARGE_BYTES:
            unsent.claim(len(response.body), key_name, topics)
    except DeferdError:
        await return_undelivered(request.engine, jobs)
        raise
    return response


async def return_undelivered(engine: Engine, jobs: list[JobRecord]) -> None:
    """Return jobs of a refused response to the head of their queues; if that fails, they come back by their leases."""
    try:
        with request_ending_at(inf):
            await engine.held_jobs.return_popped(jobs)
    except DeferdError as error:
        _log.warning("%d jobs of a refused pop become ready only when their leases end: %s", len(jobs), error)


@router.serves(contract.POP_JOBS_BY_GET)
async def pop_jobs_by_get(request: CurrentRequest, topic: PopTopics, query: Annotated[PopQuery, Query()]) -> Response:
    return await _pop(request, topic, query)


@router.serves(contract.POP_JOBS)
async def pop_jobs(
    request: CurrentRequest, topic: PopTopics, query: Annotated[PopQuery, Query()], _body: EmptyBody = EMPTY_BODY
) -> Response:
    return await _pop(request, topic, query)


# What an omitted body means.
_FINISH, _RELEASE, _TOUCH, _BURY = FinishJob(), ReleaseJob(), TouchJob(), BuryJob()


def _puts_of(arguments: Arguments) -> Sequence[PutJob]:
    finish: FinishJob = arguments.get("finish", _FINISH)
    return finish.put or ()


@router.serves(
    contract.FINISH_JOB,
    puts_into=lambda arguments: {job.topic for job in _puts_of(arguments)},
    ends_into=lambda arguments: end_topics(_puts_of(arguments)),
)
async def finish_job(
    request: CurrentRequest, topic: Topic, id: JobId, finish: FinishJob = _FINISH
) -> contract.Finished:
    results = None
    if finish.put is not None:
        await request.check_batches(finish.put)
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
    return contract.Finished(topic=topic, id=id, state="finished", put=results or None)


@router.serves(contract.RELEASE_JOB)
async def release_job(
    request: CurrentRequest, topic: Topic, id: JobId, release: ReleaseJob = _RELEASE
) -> contract.Released:
    with request.counting(release.error):
        released = await request.engine.deliveries.release(
            topic,
            id,
            Receipt.of(release.receipt),
            delay_ms=None if release.delay is None else to_ms(release.delay),
            error=release.error,
            counts=release.count,
        )
    due_at = instant_or_none(released.due_at_ms)
    return contract.Released(state=released.state, due_at=due_at, attempts=released.attempts)


@router.serves(contract.TOUCH_JOB)
async def touch_job(request: CurrentRequest, topic: Topic, id: JobId, touch: TouchJob = _TOUCH) -> contract.Touched:
    ttr_ms = None if touch.ttr is None else to_ms(touch.ttr)
    receipt = Receipt.of(touch.receipt)
    with request.counting(touch.progress):
        reserved_until_ms = await request.engine.deliveries.touch(
            topic, id, receipt, ttr_ms=ttr_ms, progress=touch.progress
        )
    return contract.Touched(reserved_until=instant(reserved_until_ms))


@router.serves(contract.BURY_JOB)
async def bury_job(request: CurrentRequest, topic: Topic, id: JobId, bury: BuryJob = _BURY) -> contract.Buried:
    with request.counting(bury.error):
        await request.engine.deliveries.bury(topic, id, Receipt.of(bury.receipt), error=bury.error)
    return contract.Buried(state="dead")


@router.serves(contract.FINISH_JOBS)
async def finish_jobs(
    request: CurrentRequest,
    topic: Topic,
    batch: FinishBatch,  # or EncodedFinishes
) -> contract.FinishResults:
    with request.counting_results(batch.jobs):
        return contract.FinishResults(results=await request.engine.queue.finish_many(topic, batch.jobs))


@router.serves(contract.CHECK_JOBS)
async def check_jobs(request: CurrentRequest, topic: Topic, held: HeldJobs) -> contract.FinishResults:
    return contract.FinishResults(results=await request.engine.held_jobs.check_many(topic, held.jobs))


@router.serves(contract.RETURN_JOBS, recorded=Recorded(filter="batch"))
async def return_jobs(request: CurrentRequest, topic: Topic, batch: JobsToReturn) -> contract.FinishResults:
    if all(job.receipt is not None for job in batch.jobs):
        request.changed = 0  # what consumers return of their own is no change that people look for
    results = await request.engine.held_jobs.return_many(topic, batch.jobs, batch.consumer)
    request.changed = sum(
        job.receipt is None and result.status == 200 for job, result in zip(batch.jobs, results, strict=True)
    )
    return contract.FinishResults(results=results)
