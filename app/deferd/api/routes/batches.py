"""Batches: jobs that are counted under a name, so that one job is put when all of them have ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field
from starlette.responses import Response

from deferd.api.auth.api_keys import Arguments, Recorded
from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import JsonResponse, instant_or_none
from deferd.api.routes.queries import Cursor, page_limit
from deferd.contract.model import BatchName, IfReserved
from deferd.contract.operations import batches as contract
from deferd.contract.operations.batches import PutBatchOfJobs
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant
from deferd.engine.batches import ChangedMeanwhile, StoredBatch

router = OperationRouter()
_BY_PEOPLE = Recorded(via=frozenset(("console", "cli")))
"""Programs make batches all the time."""
NameOfBatch = Annotated[BatchName, Path(description="Name of the batch.", examples=["import-42"])]


class BatchesQuery(StrictModel):
    """The parameters of a list of batches."""

    cursor: Cursor = None
    limit: int = page_limit("batches")


class DeleteBatchQuery(StrictModel):
    """The parameters of the deletion of a batch."""

    if_reserved: IfReserved = Field(
        default="cancel",
        description="What to do with jobs that a consumer holds: `cancel` them too (the consumer's next request for "
        "one gets 410 `job_cancelled`), or leave them: `refuse`. They are of no batch then.",
    )


def _topics_of_put(arguments: Arguments) -> Collection[str]:
    batch: PutBatchOfJobs = arguments["batch"]
    return () if batch.on_end is None else (batch.on_end.topic,)


@router.serves(
    contract.SET_BATCH,
    topics=_topics_of_put,
    recorded=_BY_PEOPLE,
    responses={201: {"model": contract.Batch, "description": "The batch was created."}},
)
async def set_batch(request: CurrentRequest, name: NameOfBatch, batch: PutBatchOfJobs) -> Response:
    while True:
        try:
            stored, is_new = await _set(request, name, batch)
            break
        except ChangedMeanwhile:
            continue
    request.changed_topic, request.now = stored.topic, _recorded(stored)
    return JsonResponse(shown_batch(stored), 201 if is_new else 200)


async def _set(request: RequestContext, name: str, batch: PutBatchOfJobs) -> tuple[StoredBatch, bool]:
    before = await request.engine.batches.find(name)
    if before is not None:
        request.admission.check_topic(before.topic)
        request.was = _recorded(before)
    has_no_jobs = before is None or (before.joined == 0 and before.completed_ms is None)
    with request.room_for_batch(_topics_of_put({"batch": batch}), puts=batch.seal and has_no_jobs):
        return await request.engine.batches.put(name, batch, before)


@router.serves(contract.LIST_BATCHES)
async def list_batches(request: CurrentRequest, query: Annotated[BatchesQuery, Query()]) -> contract.BatchPage:
    found, next_cursor = await request.engine.batches.page(query.cursor, query.limit, request.admission.visible_topics)
    return contract.BatchPage(batches=[shown_batch(one) for one in found], next_cursor=next_cursor)


@router.serves(contract.GET_BATCH)
async def get_batch(request: CurrentRequest, name: NameOfBatch) -> contract.Batch:
    stored = await request.engine.batches.get(name)
    request.admission.check_topic(stored.topic)
    return shown_batch(stored)


@router.serves(contract.DELETE_BATCH, recorded=_BY_PEOPLE)
async def delete_batch(
    request: CurrentRequest, name: NameOfBatch, query: Annotated[DeleteBatchQuery, Query()]
) -> contract.DeletedBatch:
    stored = await request.engine.batches.get(name)
    request.admission.check_topic(stored.topic)
    request.changed_topic, request.was = stored.topic, _recorded(stored)
    cancelled, is_deleted = await request.engine.batches.delete(
        stored, request.admission.visible_topics, query.if_reserved
    )
    request.changed = cancelled or None
    return contract.DeletedBatch(name=name, cancelled=cancelled, deleted=is_deleted)


def _recorded(stored: StoredBatch) -> dict[str, Any]:
    """What the list of changes says of a batch."""
    return {"on_end": _end_of(stored).fields, "expect": stored.expect, "sealed": stored.is_sealed}


def _end_of(stored: StoredBatch) -> contract.EndOfBatch:
    return contract.EndOfBatch(topic=stored.topic, id=stored.job_id)


def shown_batch(stored: StoredBatch) -> contract.Batch:
    return contract.Batch(
        name=stored.name,
        on_end=_end_of(stored),
        expect=stored.expect,
        sealed=stored.is_sealed,
        joined=stored.joined,
        finished=stored.finished,
        dead=stored.dead,
        cancelled=stored.cancelled,
        created_at=instant(stored.created_ms),
        completed_at=instant_or_none(stored.completed_ms),
    )
