"""Schedules: recurring jobs."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import schedules as responses
from deferd.contract.responses.jobs import StoredJob
from deferd.contract.scopes import Scope

PUT_SCHEDULE = Operation(
    "put_schedule",
    "PUT",
    "/schedules/{name}",
    tag="schedules",
    scope=Scope.PUT,
    summary="Create or replace a schedule",
    description=(
        "Each run of a schedule is a job with an id such as `NAME:20261122T030000Z`. The next one waits in the topic "
        "as a delayed job: to cancel it skips that run, to change it changes that run. Counters stay when a schedule "
        "is replaced; one that is put again unchanged is left alone. Without `paused` a paused schedule stays "
        "paused. An `every` counts from `start_at`, else from when the schedule was created."
    ),
    response=responses.Schedule,
    response_description="The schedule was replaced, or is unchanged.",
    errors=("schedule_exists",),
    repeatable=False,
    done="put schedule",
)
LIST_SCHEDULES = Operation(
    "list_schedules",
    "GET",
    "/schedules",
    tag="schedules",
    scope=Scope.READ,
    summary="List schedules",
    description=(
        "Returns the schedules page by page, by name within each shard of the store. About 2000 are looked at "
        "for a page, and it ends after 1 MiB of jobs, so it may be short or empty and yet have a `next_cursor`. A key "
        "for some topics sees only the schedules of those."
    ),
    response=responses.SchedulePage,
    response_description="One page of schedules.",
)
GET_SCHEDULE = Operation(
    "get_schedule",
    "GET",
    "/schedules/{name}",
    tag="schedules",
    scope=Scope.READ,
    summary="Get a schedule",
    description=(
        "Returns the schedule, its next and its last run, and how many runs there were. The next run has no "
        "`next_job` if the one that waited was cancelled."
    ),
    response=responses.Schedule,
    response_description="The schedule.",
    errors=("schedule_not_found",),
)
DELETE_SCHEDULE = Operation(
    "delete_schedule",
    "DELETE",
    "/schedules/{name}",
    tag="schedules",
    scope=Scope.PUT,
    summary="Delete a schedule",
    description=(
        "Deletes the schedule and cancels its next run, and those that were postponed. Runs that are due stay."
    ),
    response=responses.Schedule,
    response_description="The schedule as it was.",
    errors=("schedule_not_found",),
    done="deleted schedule",
)
PAUSE_SCHEDULE = Operation(
    "pause_schedule",
    "POST",
    "/schedules/{name}/pause",
    tag="schedules",
    scope=Scope.PUT,
    summary="Pause a schedule",
    description="Cancels the next run and postponed ones; there are no others until the schedule is resumed.",
    response=responses.Schedule,
    response_description="The schedule in its new state.",
    errors=("schedule_not_found",),
    done="paused schedule",
)
RESUME_SCHEDULE = Operation(
    "resume_schedule",
    "POST",
    "/schedules/{name}/resume",
    tag="schedules",
    scope=Scope.PUT,
    summary="Resume a schedule",
    description="Ends a pause. The next run is the first one from now; none counts as missed.",
    response=responses.Schedule,
    response_description="The schedule in its new state.",
    errors=("schedule_not_found",),
    done="resumed schedule",
)
RUN_SCHEDULE = Operation(
    "run_schedule",
    "POST",
    "/schedules/{name}/run",
    tag="schedules",
    scope=Scope.PUT,
    summary="Run a schedule now",
    description=(
        "Puts the schedule's job now, in addition to its runs: it does not count as one, and `overlap` and "
        "`max_runs` do not concern it. Each call puts another job, with an id such as `NAME:20261122T030012.345Z`."
    ),
    response=StoredJob,
    response_description="The job was put.",
    errors=("schedule_not_found", "durability_unavailable", "topic_full"),
    status=201,
    repeatable=False,
    done="ran schedule",
)
PREVIEW_SCHEDULE = Operation(
    "preview_schedule",
    "GET",
    "/schedules/{name}/preview",
    tag="schedules",
    scope=Scope.READ,
    summary="Preview a schedule's runs",
    description="Returns when the next runs are due, as if the schedule was not paused; none when it has ended.",
    response=responses.Preview,
    response_description="The runs to come.",
    errors=("schedule_not_found", "rate_limited"),
)
PREVIEW_UNSAVED_SCHEDULE = Operation(
    "preview_unsaved_schedule",
    "POST",
    "/schedules/preview",
    tag="schedules",
    scope=Scope.READ,
    summary="Preview a schedule that is not stored",
    description=(
        "Returns when its first runs would be due if it was created now, and stores nothing. With a "
        "`spread` the moments depend on the name that it will have."
    ),
    response=responses.Preview,
    response_description="The runs to come.",
    errors=("rate_limited",),
)
