"""Pop jobs: the long poll."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from math import inf
from typing import Annotated

from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints
from starlette.responses import Response

from deferd.api.job_templates import written_deliveries
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.responses import JsonResponse
from deferd.api.routes.queries import TOPICS_PATTERN, distinct
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract import limits
from deferd.contract.errors import DeferdError
from deferd.contract.model import Ttr
from deferd.contract.operations import pop as operations
from deferd.contract.strict_model import StrictModel
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.engine import Engine
from deferd.engine.record import JobRecord
from deferd.engine.request_end import request_ending_at
from deferd.engine.stored_fields import to_ms
from deferd.engine.topic_search import TopicSelection

_log = logging.getLogger(__name__)
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
    consumer: Label | None = Field(
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


@router.serves(operations.POP_JOBS_BY_GET)
async def pop_jobs_by_get(request: CurrentRequest, topic: PopTopics, query: Annotated[PopQuery, Query()]) -> Response:
    return await _pop(request, topic, query)


@router.serves(operations.POP_JOBS)
async def pop_jobs(
    request: CurrentRequest, topic: PopTopics, query: Annotated[PopQuery, Query()], _body: EmptyBody = EMPTY_BODY
) -> Response:
    return await _pop(request, topic, query)
