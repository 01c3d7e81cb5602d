"""For producers: cancel or reschedule many jobs, of several topics, in one call."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from deferd.api import task_requests
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import Recorded, requires
from deferd.api.openapi.document import error_responses
from deferd.api.openapi.task_schemas import ACCEPTED
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.response_values import instant
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.model import JobState
from deferd.contract.responses.bulk import BulkResult, SampleJob
from deferd.engine.bulk_actions import BulkOutcome

router = APIRouter(route_class=Operation, tags=["jobs"])

_RECORDED = Recorded(filter="call", joins=True)
_STEPS = (
    "Each job changes atomically, the whole does not. Only jobs that were put before the call are meant. A key for "
    "some topics must be for those that are named; of a tag or a pattern it gets the jobs in its topics. After a 503 "
    "some jobs may be done: repeat the call"
)


@router.post(
    "/jobs/cancel",
    operation_id="cancel_selected_jobs",
    summary="Cancel jobs by tag, name or state",
    description="Cancels the selected jobs, in any state and any number of topics. A tag finds its jobs through an "
    f"index, at a cost that does not depend on the number of other jobs. {_STEPS}.",
    response_model=BulkResult,
    response_description="What was cancelled.",
    responses=ACCEPTED | error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.CANCEL, topics=lambda arguments: arguments["call"].select.named_topics, recorded=_RECORDED)
async def cancel_selected_jobs(request: CurrentRequest, call: CancelSelected) -> BulkResult | Response:
    if call.as_task:
        return await task_requests.begin_call(request, "cancel", call)
    admission = request.admission
    with request.room_for_call(call):
        outcome = await request.engine.bulk.cancel(call, admission.visible_topics, admission.key_name)
    request.changed = outcome.done
    return _result(outcome)


@router.post(
    "/jobs/reschedule",
    operation_id="reschedule_selected_jobs",
    summary="Reschedule jobs by tag, name or state",
    description="Gives the selected jobs that are delayed or ready a new due time: `by` seconds later than theirs, "
    f"after `delay` seconds, or at `run_at`. {_STEPS} with the same `request_id`, which moves none twice.",
    response_model=BulkResult,
    response_description="What was rescheduled.",
    responses=ACCEPTED | error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.PUT, topics=lambda arguments: arguments["call"].select.named_topics, recorded=_RECORDED)
async def reschedule_selected_jobs(request: CurrentRequest, call: RescheduleSelected) -> BulkResult | Response:
    if call.as_task:
        return await task_requests.begin_call(request, "reschedule", call)
    admission = request.admission
    with request.room_for_call(call):
        outcome = await request.engine.bulk.reschedule(call, admission.visible_topics, admission.key_name)
    request.changed = outcome.done
    return _result(outcome)


def _result(outcome: BulkOutcome) -> BulkResult:
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
