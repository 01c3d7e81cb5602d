"""Pop jobs: the long poll."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses.jobs import Deliveries
from deferd.contract.scopes import Scope

_SUMMARY = "Pop ready jobs"
_RESPONSE = "The jobs, each under a lease; an empty list after `wait` seconds without a job. Never cached."
_DESCRIPTION = """
Waits until a job of one of the topics is ready, and returns up to `count` ready jobs. Each comes with a lease of `ttr`
seconds and a `receipt`. Finish, release or bury the job, or touch it to extend the lease; when the lease ends, the job
becomes ready again.

After `wait` seconds without a job the response is an empty list. Several topics have strict priority: a job of a later
topic is handed out only when no earlier topic has one ready. A paused topic hands out no jobs. When the client
disconnects while it waits, no job is lost or held up; jobs of a repeated `request_id` come back when their leases end.

A pattern such as `orders.*` stands for all topics that match and that the key may pop, also those that come into being
while the pop waits; `*` stands for all topics. Topics named in full come first. Those that match a pattern have no
order among each other: they take turns, so that a busy one does not starve the others, and `count` is shared among
those that have jobs. A pop is of at most 1000 topics: with more, the status is 422 and the error says how many match.
"""

POP_JOBS_BY_GET = Operation(
    "pop_jobs_by_get",
    "GET",
    "/topics/{topic}/pop",
    tag="consumers",
    scope=Scope.POP,
    summary=_SUMMARY,
    description=(
        _DESCRIPTION + "\nThis GET has an effect and is never cached. Programs should use POST on the same path: an "
        "HTTP library may repeat a GET when its response is lost."
    ),
    response=Deliveries,
    response_description=_RESPONSE,
    errors=("topic_pushed",),
    repeatable=False,
)
POP_JOBS = Operation(
    "pop_jobs",
    "POST",
    "/topics/{topic}/pop",
    tag="consumers",
    scope=Scope.POP,
    summary=_SUMMARY,
    description=(_DESCRIPTION + "\nGET on the same path does the same."),
    response=Deliveries,
    response_description=_RESPONSE,
    errors=("topic_pushed",),
    repeatable=False,
    command="DEFERD.POP",
)
