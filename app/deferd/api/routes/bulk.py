"""For producers: cancel or reschedule many jobs, of several topics, in one call."""

from __future__ import annotations

from collections.abc import Collection

from starlette.responses import Response

from deferd.api import task_requests
from deferd.api.auth.permissions import Arguments, Recorded
from deferd.api.openapi.task_schemas import ACCEPTED
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.response_values import instant
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.model import JobState
from deferd.contract.operations import bulk as operations
from deferd.contract.responses.bulk import BulkResult, SampleJob
from deferd.engine.bulk_actions import BulkOutcome

router = OperationRouter()

_RECORDED = Recorded(filter="call", joins=True)


def _topics(arguments: Arguments) -> Collection[str]:
    call: CancelSelected | RescheduleSelected = arguments["call"]
    return call.select.named_topics


@router.serves(operations.CANCEL_SELECTED_JOBS, topics=_topics, recorded=_RECORDED, responses=ACCEPTED)
async def cancel_selected_jobs(request: CurrentRequest, call: CancelSelected) -> BulkResult | Response:
    if call.as_task:
        return await task_requests.begin_call(request, "cancel", call)
    admission = request.admission
    with request.room_for_call(call):
        outcome = await request.engine.bulk.cancel(call, admission.visible_topics, admission.key_name)
    return _result(request, outcome)


@router.serves(operations.RESCHEDULE_SELECTED_JOBS, topics=_topics, recorded=_RECORDED, responses=ACCEPTED)
async def reschedule_selected_jobs(request: CurrentRequest, call: RescheduleSelected) -> BulkResult | Response:
    if call.as_task:
        return await task_requests.begin_call(request, "reschedule", call)
    admission = request.admission
    with request.room_for_call(call):
        outcome = await request.engine.bulk.reschedule(call, admission.visible_topics, admission.key_name)
    return _result(request, outcome)


def _result(request: RequestContext, outcome: BulkOutcome) -> BulkResult:
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
    )
