"""For operators: actions on many jobs that run in the background."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import tasks as responses
from deferd.contract.scopes import Scope

LIST_TASKS = Operation(
    "list_tasks",
    "GET",
    "/tasks",
    tag="tasks",
    scope=Scope.READ,
    summary="List tasks",
    description=(
        "Lists the actions on many jobs that were begun with `as_task`, the newest first. Those that have ended are "
        "kept for 7 days, and the last 1000. A key for some topics sees its own tasks, and those of one of these "
        "topics."
    ),
    response=responses.Tasks,
    response_description="The tasks.",
)
GET_TASK = Operation(
    "get_task",
    "GET",
    "/tasks/{id}",
    tag="tasks",
    scope=Scope.READ,
    summary="Get a task",
    description="Shows how far an action on many jobs is.",
    response=responses.Task,
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
        "Asks for the end of a task: within about a second it changes no more jobs. What is done stays done. A "
        "task that has ended stays as it is."
    ),
    response=responses.Task,
    response_description="The task; it may still be `running` for a moment.",
    errors=("task_not_found",),
    done="stopped task",
)
