"""For operators: why a job does not run, dead jobs by error, what comes due, and who consumes."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import inspection as responses
from deferd.contract.scopes import Scope

EXPLAIN_JOB = Operation(
    "explain_job",
    "GET",
    "/jobs/{topic}/{id}/why",
    tag="inspection",
    scope=Scope.READ,
    summary="Explain why a job has not run",
    description=(
        "Returns the job's state and the reasons, what holds it back now first, each with a `code` and facts for "
        "programs and a `text` for people. This is one short read of the store, also for topics with millions of "
        "jobs. A job that does not exist is no error: its reason is `unknown_job`, with ids of the topic that are "
        "like its own."
    ),
    response=responses.Explanation,
    response_description="The reasons.",
)
LIST_DEAD_ERRORS = Operation(
    "list_dead_errors",
    "GET",
    "/dead",
    tag="inspection",
    scope=Scope.READ,
    summary="List dead jobs by error",
    description=(
        "Groups the dead jobs by topic, reason and the first line of their last error, in which numbers, hexadecimal "
        "digits, instants and quoted texts are replaced by `*`; numbers such as HTTP and SMTP statuses stay. Of a "
        "topic with more dead jobs than its share of `look_at`, those kept longest are read: without a `dead_retain` "
        "of their own, those that died last. `complete` says whether all were read. A look is kept for 5 seconds."
    ),
    response=responses.DeadErrors,
    response_description="The groups, the largest first.",
)
GET_FORECAST = Operation(
    "get_forecast",
    "GET",
    "/forecast",
    tag="inspection",
    scope=Scope.READ,
    summary="Forecast what comes due",
    description=(
        "Counts the delayed jobs by when they are due: for each bucket of time in all topics together, and in those "
        "topics that have the most. `before` are jobs due before the first bucket, such as overdue ones, `after` "
        "those due after the last: with the counts they sum up to `delayed`. `scheduled` are further runs of "
        "schedules, those after the next one, which is a delayed job already. The topics are counted one after the "
        "other, exactly, and a forecast is kept for 10 seconds. Beside the counts is what consumers `handled`: "
        "compare the two to see whether they will keep up. With `to` and without `from` the first bucket begins now."
    ),
    response=responses.Forecast,
    response_description="The counts.",
)
LIST_CONSUMERS = Operation(
    "list_consumers",
    "GET",
    "/consumers",
    tag="inspection",
    scope=Scope.READ,
    summary="List consumers",
    description=(
        "Lists who has popped, or waited in a pop, within a minute in any process of the service, and who "
        "holds jobs. Consumers that give a name are one entry for each name, others one for each address and client. "
        "Processes publish what they see every few seconds. A key for some topics sees only the consumers of those, "
        "without their other topics."
    ),
    response=responses.Consumers,
    response_description="The consumers, those that hold most jobs first.",
)
