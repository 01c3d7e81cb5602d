"""For producers: cancel or reschedule many jobs, of several topics, in one call."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses.bulk import BulkResult
from deferd.contract.scopes import Scope

_STEPS = (
    "Each job changes atomically, the whole does not. Only jobs that were put before the call are meant. A key for "
    "some topics must be for those that are named; of a tag or a pattern it gets the jobs in its topics. After a 503 "
    "some jobs may be done: repeat the call"
)

CANCEL_SELECTED_JOBS = Operation(
    "cancel_selected_jobs",
    "POST",
    "/jobs/cancel",
    tag="jobs",
    scope=Scope.CANCEL,
    summary="Cancel jobs by tag, name or state",
    description=(
        "Cancels the selected jobs, in any state and any number of topics. A tag finds its jobs through an "
        f"index, at a cost that does not depend on the number of other jobs. {_STEPS}."
    ),
    response=BulkResult,
    response_description="What was cancelled.",
    repeatable=False,
    done="cancelled jobs",
)
RESCHEDULE_SELECTED_JOBS = Operation(
    "reschedule_selected_jobs",
    "POST",
    "/jobs/reschedule",
    tag="jobs",
    scope=Scope.PUT,
    summary="Reschedule jobs by tag, name or state",
    description=(
        "Gives the selected jobs that are delayed or ready a new due time: `by` seconds later than theirs, "
        f"after `delay` seconds, or at `run_at`. {_STEPS} with the same `request_id`, which moves none twice."
    ),
    response=BulkResult,
    response_description="What was rescheduled.",
    repeatable=False,
    done="rescheduled jobs",
)
