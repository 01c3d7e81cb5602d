"""For consumers, after the pop: finish, release, touch, bury, check and return jobs."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import job_calls as responses
from deferd.contract.scopes import Scope

_ENDED = (
    " Without a `receipt` this applies to the current delivery, whichever that is. 409 `receipt_stale`: the delivery "
    "has ended, and another consumer may hold the job. 410 `job_cancelled`: the job was cancelled; stop working on it."
)

FINISH_JOB = Operation(
    "finish_job",
    "POST",
    "/jobs/{topic}/{id}/finish",
    tag="consumers",
    scope=Scope.POP,
    summary="Finish a job",
    description=(
        "The job is done. A job with `retain` is kept that long with its `result`; any other is removed. With `put` "
        "up to 10 other jobs are put in the same step: all of it is done, or nothing. A key needs the scope `put` "
        "for their topics." + _ENDED
    ),
    response=responses.Finished,
    response_description="The job was finished.",
    errors=(
        "job_not_found",
        "receipt_stale",
        "job_exists",
        "job_reserved",
        "job_cancelled",
        "durability_unavailable",
        "different_shard",
        "topic_full",
    ),
    repeatable=False,
    command="DEFERD.FINISH",
)
RELEASE_JOB = Operation(
    "release_job",
    "POST",
    "/jobs/{topic}/{id}/release",
    tag="consumers",
    scope=Scope.POP,
    summary="Release a job",
    description=(
        "Ends the delivery without success. The job becomes ready again after `delay` seconds, by default after its "
        "backoff; without attempts left it is dead. With `count: false` the delivery is no attempt: it is one of the "
        "job's `snoozes`, which no `max_attempts` limits." + _ENDED
    ),
    response=responses.Released,
    response_description="The new state of the job.",
    errors=("job_not_found", "receipt_stale", "job_cancelled"),
    repeatable=False,
    command="DEFERD.RELEASE",
)
TOUCH_JOB = Operation(
    "touch_job",
    "POST",
    "/jobs/{topic}/{id}/touch",
    tag="consumers",
    scope=Scope.POP,
    summary="Extend a lease",
    description=("The lease ends `ttr` seconds from now, by default the `ttr` of the job." + _ENDED),
    response=responses.Touched,
    response_description="The lease was extended.",
    errors=("job_not_found", "receipt_stale", "job_cancelled"),
    repeatable=False,
    command="DEFERD.TOUCH",
)
BURY_JOB = Operation(
    "bury_job",
    "POST",
    "/jobs/{topic}/{id}/bury",
    tag="consumers",
    scope=Scope.POP,
    summary="Bury a job",
    description=("The job is dead: it is not handed out again unless it is redriven." + _ENDED),
    response=responses.Buried,
    response_description="The job was buried.",
    errors=("job_not_found", "receipt_stale", "job_cancelled"),
    repeatable=False,
    command="DEFERD.BURY",
)
FINISH_JOBS = Operation(
    "finish_jobs",
    "POST",
    "/topics/{topic}/finish",
    tag="consumers",
    scope=Scope.POP,
    summary="Finish many jobs",
    description=(
        "Finishes up to 1000 jobs of one topic. Each has its own result, in the order of the request. Only "
        "the finish of a single job takes a `put`."
    ),
    response=responses.FinishResults,
    response_description="The result for each job.",
    repeatable=False,
)
CHECK_JOBS = Operation(
    "check_jobs",
    "POST",
    "/topics/{topic}/check",
    tag="consumers",
    scope=Scope.POP,
    summary="Check many deliveries",
    description=(
        "Tells which of up to 1000 deliveries of one topic are over, and why: 410 `job_cancelled`, or 404 or 409 "
        "when nobody holds the job. It changes nothing, extends no lease, and costs the store little, so a consumer "
        "can call it each second for all jobs that it holds. A delivery whose lease has ended and whose job another "
        "consumer has by now counts as held: a touch tells."
    ),
    response=responses.CheckResults,
    response_description="The result for each delivery, in the order of the request.",
)
RETURN_JOBS = Operation(
    "return_jobs",
    "POST",
    "/topics/{topic}/return",
    tag="consumers",
    scope=Scope.POP,
    summary="Return jobs that nobody worked on",
    description=(
        "Returns up to 1000 jobs of one topic to the head of the queue, in their order: they are ready at once, as "
        "if they had not been popped. No attempt and no snooze is counted, and the receipts are void. For jobs that "
        "a consumer popped and will not begin."
    ),
    response=responses.ReturnResults,
    response_description="The result for each delivery, in the order of the request.",
)
