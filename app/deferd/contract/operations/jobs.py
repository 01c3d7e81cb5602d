"""For producers: put, get, change and cancel jobs."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses.job_calls import Cancelled, CancelResults, PutResults
from deferd.contract.responses.jobs import Job, StoredJob
from deferd.contract.scopes import Scope

PUT_JOB = Operation(
    "put_job",
    "POST",
    "/jobs",
    tag="jobs",
    scope=Scope.PUT,
    summary="Put a job",
    description=(
        "Stores one job. It becomes ready at its due time, `delay` seconds from now or at `run_at`, and is handed "
        "out from then on. Give `delay` or `run_at`, not both; without either the job is ready at once. The topic's "
        "settings supply `ttr`, `max_attempts`, `backoff`, `ttl`, `retain`, `window`, `spread` and `durability` "
        "where the job omits them. After a 201 or 200 the job is stored as durably as `durability` in the response "
        "says. After a 503 it may or may not be stored; repeating the request with the same id is safe. A durability "
        "level that the store cannot provide is refused with 422 `durability_unavailable`. A job without a "
        "`traceparent` takes the value of the `traceparent` header, if that is valid. A `window` moves the due time "
        "to the next opening, a `spread` moves it by a part that depends on the id: `asked_for` is then the due time "
        "without them."
    ),
    response=StoredJob,
    response_description="The job was put.",
    errors=("job_exists", "job_reserved", "durability_unavailable", "topic_full"),
    status=201,
    repeatable=False,
    command="DEFERD.PUT",
    done="put a job",
)
PUT_JOBS = Operation(
    "put_jobs",
    "POST",
    "/jobs/batch",
    tag="jobs",
    scope=Scope.PUT,
    summary="Put many jobs",
    description=(
        "Puts up to 1000 jobs. All are validated first: if one is invalid, the response is 422 with its index in the "
        "path of the field, and nothing is stored. Then each job is stored or refused on its own. The response has "
        "one result per job, in the order of the request. The jobs may have different levels of `durability`."
    ),
    response=PutResults,
    response_description="The result for each job.",
    errors=("durability_unavailable",),
    repeatable=False,
)
GET_JOB = Operation(
    "get_job",
    "GET",
    "/jobs/{topic}/{id}",
    tag="jobs",
    scope=Scope.READ,
    summary="Get a job",
    description="Returns the job in its current state; with `bodies=false` without its body and its result.",
    response=Job,
    response_description="The job.",
    errors=("job_not_found",),
    command="DEFERD.GET",
)
CHANGE_JOB = Operation(
    "change_job",
    "PATCH",
    "/jobs/{topic}/{id}",
    tag="jobs",
    scope=Scope.PUT,
    summary="Reschedule or change a job",
    description=(
        "Changes a delayed or ready job; its id stays the same. Omitted fields keep their values. Give `delay` or "
        "`run_at`, not both; a ready job with a later due time becomes delayed again. A new due time is moved by the "
        "job's `window` and `spread`; new ones of these move a delayed job from the time that was asked for. A dead "
        "or finished job gets 404 `job_not_found`."
    ),
    response=Job,
    response_description="The changed job.",
    errors=("job_not_found", "job_reserved"),
    repeatable=False,
    command="DEFERD.CHANGE",
    done="changed job",
)
CANCEL_JOB = Operation(
    "cancel_job",
    "DELETE",
    "/jobs/{topic}/{id}",
    tag="jobs",
    scope=Scope.CANCEL,
    summary="Cancel a job",
    description=(
        "Cancels a job in any state; it is never handed out afterwards. `was` in the response is the state it "
        "was in: `reserved` means that a consumer already had it. With `durability` the cancel has reached that level "
        "before its response, and so has what a 404 or 409 says. After a 503 the job may or may not be cancelled; "
        "repeating the request is safe."
    ),
    response=Cancelled,
    response_description="The job was cancelled.",
    errors=("job_not_found", "job_reserved", "durability_unavailable"),
    command="DEFERD.CANCEL",
    done="cancelled job",
)
CANCEL_JOBS = Operation(
    "cancel_jobs",
    "POST",
    "/topics/{topic}/cancel",
    tag="jobs",
    scope=Scope.CANCEL,
    summary="Cancel many jobs",
    description="Cancels up to 1000 jobs of one topic. Each has its own result, in the order of the request.",
    response=CancelResults,
    response_description="The result for each job.",
    done="cancelled jobs",
)
