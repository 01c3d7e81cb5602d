"""Actions on many jobs, in one call or as tasks that run in the background."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from deferd.contract.model import JobId, JobState, Topic
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response, one_of
from deferd.contract.scopes import Scope


class SampleJob(Response, frozen=True, kw_only=True):
    """A job that a call on many jobs would act on."""

    topic: Topic
    id: JobId
    state: JobState


class BulkResult(Response, frozen=True, kw_only=True):
    """What a call on many jobs did."""

    matched: Annotated[int, "The jobs that were selected."]
    done: Annotated[
        int,
        "Those of them that were cancelled or rescheduled: 0 in a dry run. A reschedule changes "
        "delayed and ready jobs only, and with `by` none that would be due more than 10 years ahead.",
    ]
    was: Annotated[dict[JobState, int], "The states that the selected jobs were in; states without jobs are left out."]
    complete: Annotated[
        bool,
        "False when the `limit` was reached and there may be more: repeat the call, a reschedule with "
        "the same `request_id`.",
    ]
    undoable: Annotated[
        int | None,
        "Only with `undo`: how many of the jobs `POST /jobs/undo` puts back now. Not those that a consumer held, dead "
        "and finished ones, those with a follow-up, collections, and what there was no room for.",
    ] = None
    cutoff: Annotated[
        datetime | None, "Only with `samples`: only jobs that were there, or dead, by then were counted."
    ] = None
    samples: Annotated[list[SampleJob] | None, "Only with `samples`: some of the jobs."] = None
    first_due_at: Annotated[
        datetime | None, "Only with `samples`: when the first of the delayed and ready jobs is due, if there are any."
    ] = None
    last_due_at: Annotated[datetime | None, "Only with `samples`: when the last of them is due."] = None

    schema_examples = ({"matched": 4, "done": 4, "was": {"delayed": 3, "ready": 1}, "complete": True},)


_Matched = Annotated[int | None, "Only of a dry run: how many jobs it would be, 0 of others."]
_Complete = Annotated[bool | None, "Only of a dry run: `false` when the `limit` was reached and there may be more."]
_Cutoff = Annotated[datetime | None, "Only of a dry run: only jobs that were there, or dead, by then were counted."]
_Samples = Annotated[list[SampleJob] | None, "Only of a dry run: up to ten of the jobs."]


class Redriven(Response, frozen=True, kw_only=True):
    """The number of dead jobs that are ready again."""

    redriven: int
    matched: _Matched = None
    complete: _Complete = None
    cutoff: _Cutoff = None
    samples: _Samples = None

    schema_examples = ({"redriven": 3},)


class Removed(Response, frozen=True, kw_only=True):
    """The number of removed jobs."""

    removed: int
    matched: _Matched = None
    complete: _Complete = None
    cutoff: _Cutoff = None
    samples: _Samples = None

    schema_examples = ({"removed": 12},)


class DryRun(Response, frozen=True, kw_only=True):
    """What a redrive, a purge or a call on many jobs would do: each of their dry runs with samples can be read so.

    Given the `cutoff`, the call acts on nothing that was not counted.
    """

    matched: Annotated[int, "On how many jobs it would act."]
    complete: Annotated[bool, "False when a limit was reached."]
    cutoff: Annotated[datetime, "Only jobs that were there, or dead, by then count."]
    samples: Annotated[list[SampleJob], "Some of the jobs."]


class CancelUndone(Response, frozen=True, kw_only=True):
    """What an undo of a cancel did."""

    put_back: Annotated[int, "Jobs that are there again, as they were."]
    left: Annotated[
        int,
        "Jobs that are not: their ids were put again or are taken, they are runs of a schedule that has gone on, or "
        "their topics have more partitions now, or no room for them. When there is room, the undo can be repeated.",
    ]

    schema_examples = ({"put_back": 49_998, "left": 2},)


class RepeatedError(Response, frozen=True, kw_only=True):
    """An error that redriven jobs have again."""

    error: Annotated[
        str,
        "The error, with `*` in place of what varies, as in `GET /dead`; for dead jobs without an error, the reason, "
        "such as `expired`.",
    ]
    jobs: Annotated[int, "How many of the jobs have it."]


class Became(Response, frozen=True, kw_only=True):
    """What has become of the jobs that a task has redriven."""

    looked_at: Annotated[
        int, "How many jobs were looked at: all that were redriven; of more than 1000, 1000 drawn at random."
    ]
    waiting: Annotated[int, "Jobs that are delayed or ready."]
    retrying: Annotated[int, "The waiting jobs that had a failed attempt since."]
    running: Annotated[int, "Jobs that a consumer holds."]
    finished: Annotated[int, "Finished jobs that are kept."]
    dead: Annotated[int, "Jobs that are dead again."]
    gone: Annotated[int, "Jobs that are not kept: finished without `retain`, cancelled, or removed."]
    errors: Annotated[list[RepeatedError], "The most frequent errors of the dead and the retrying jobs, at most three."]


class Task(Response, frozen=True, kw_only=True):
    """An action on many jobs that runs in the background."""

    id: Annotated[str, "Name of the task."]
    kind: Annotated[str, one_of("cancel", "reschedule", "redrive", "purge"), "What it does."]
    state: Annotated[
        str,
        one_of("running", "done", "stopped", "failed"),
        "`failed`: because of a fault of the service, which its log describes. While the store is away it waits.",
    ]
    topic: Annotated[str | None, "The topic, if it concerns one alone."] = None
    select: Annotated[dict[str, Any], "What selects the jobs, as it was given."]
    action: Annotated[dict[str, Any] | None, "What happens to the jobs, as it was given, if anything."] = None
    request_id: Annotated[
        str | None, "Only with `undo`: for ten minutes after its end `POST /jobs/undo` with this undoes the cancel."
    ] = None
    cutoff: Annotated[
        datetime,
        "It acts on jobs that were put until then, and on dead ones that died until then: when it "
        "began, without another `cutoff`.",
    ]
    by: Annotated[str | None, "Who began it: see `GET /activity`."]
    via: Annotated[str, one_of("console", "cli", "api"), "By which way: see `GET /activity`."]
    done: Annotated[int, "How many jobs it has changed, as of the last second."]
    total: Annotated[int | None, "How many it found to change; `null` until they are counted."]
    started_at: Annotated[datetime, "When it began."]
    ended_at: Annotated[datetime | None, "When it ended."] = None
    became: Annotated[
        Became | None, "Only with `became=true`, of a `redrive`: what became of its jobs, kept for 7 days."
    ] = None

    schema_examples = (
        {
            "id": "5f0c9a3be7d2481c",
            "kind": "redrive",
            "state": "running",
            "topic": "orders.close",
            "select": {"reason": "attempts_exhausted"},
            "cutoff": "2026-11-21T07:26:58.123Z",
            "by": "ops",
            "via": "console",
            "done": 180_000,
            "total": 312_402,
            "started_at": "2026-11-21T07:26:58.123Z",
        },
    )


class Tasks(Response, frozen=True, kw_only=True):
    """The tasks that began last."""

    tasks: Annotated[list[Task], "The newest first."]

    schema_examples = ({"tasks": [*Task.schema_examples]},)


_STEPS = (
    "Each job changes atomically, the call as a whole does not. It acts only on jobs that were put before it. A topic "
    "that is named must be one of the key's; a tag or a pattern finds only jobs in the key's topics. After a 503 some "
    "jobs may be done: repeat the call"
)

CANCEL_SELECTED_JOBS = Operation(
    "cancel_selected_jobs",
    "POST",
    "/jobs/cancel",
    tag="jobs",
    scope=Scope.CANCEL,
    summary="Cancel jobs by tag, group, name or state",
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
    summary="Reschedule jobs by tag, group, name or state",
    description=(
        "Gives the selected jobs that are delayed or ready a new due time: `by` seconds later than theirs, "
        "after `delay` seconds, or at `run_at`; with `spread` not all at once. "
        f"{_STEPS} with the same `request_id`, which moves none twice."
    ),
    response=BulkResult,
    response_description="What was rescheduled.",
    repeatable=False,
    done="rescheduled jobs",
)
UNDO_CANCEL = Operation(
    "undo_cancel",
    "POST",
    "/jobs/undo",
    tag="jobs",
    scope=Scope.PUT,
    summary="Undo a cancel",
    description=(
        "Puts back the jobs that a cancel with `undo` and this `request_id`, made with the same key, has cancelled "
        "within ten minutes. Each job is as it was, with its attempts and its due time; jobs that are due by now come "
        "behind those that are ready. A job whose id was put again stays away. The limits of keys are not checked. A "
        "repeated undo puts no job back twice; when there is nothing to put back, or it is too late, both numbers are "
        "0. A repetition of the cancel leaves the jobs that are back alone: another cancel needs another `request_id`."
    ),
    response=CancelUndone,
    response_description="What was put back.",
    done="undid a cancel",
)

LIST_TASKS = Operation(
    "list_tasks",
    "GET",
    "/tasks",
    tag="tasks",
    scope=Scope.READ,
    summary="List tasks",
    description=(
        "Lists the actions on many jobs that were begun with `as_task`, the newest first. The last 1000 that ended are "
        "kept for 7 days. A key for some topics sees its own tasks, and those that concern only one of its topics."
    ),
    response=Tasks,
    response_description="The tasks.",
)
GET_TASK = Operation(
    "get_task",
    "GET",
    "/tasks/{id}",
    tag="tasks",
    scope=Scope.READ,
    summary="Get a task",
    description=(
        "Shows the progress of an action on many jobs. With `became=true` it looks up what has become of the jobs of a "
        "redrive: of more than 1000, it looks at 1000 that are drawn at random."
    ),
    response=Task,
    response_description="The task.",
    errors=("task_not_found",),
)
STOP_TASK = Operation(
    "stop_task",
    "DELETE",
    "/tasks/{id}",
    tag="tasks",
    scope=Scope.CANCEL,
    summary="Stop a task",
    description=(
        "Stops a task: within about a second it changes no more jobs. What is done stays done. A task that has ended "
        "stays as it is."
    ),
    response=Task,
    response_description="The task; it may still be `running` for a moment.",
    errors=("task_not_found",),
    done="stopped task",
)
