"""For operators: actions on many jobs that run in the background."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from deferd.api import task_requests
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import Recorded, requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.routes.paging import page_limit
from deferd.contract.errors import TaskNotFound
from deferd.contract.model import JobId
from deferd.contract.responses import tasks as responses
from deferd.engine.tasks.task_store import KEPT, Task

router = APIRouter(route_class=Operation, tags=["tasks"])

TaskId = Annotated[JobId, Field(description="Name of a task.", examples=["5f0c9a3be7d2481c"])]


class TasksQuery(BaseModel):
    """The parameters of a list of tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = page_limit("tasks")


@router.get(
    "/tasks",
    operation_id="list_tasks",
    summary="List tasks",
    description="Lists the actions on many jobs that were begun with `as_task`, the newest first. Those that have "
    "ended are kept for 7 days, and the last 1000. A key for some topics sees its own tasks, and those of one of these "
    "topics.",
    response_model=responses.Tasks,
    response_description="The tasks.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_tasks(request: CurrentRequest, query: Annotated[TasksQuery, Query()]) -> responses.Tasks:
    most = query.limit if request.admission.visible_topics is None else KEPT
    tasks = [task for task in await request.engine.tasks.newest(most) if _is_visible(request, task)]
    return responses.Tasks(tasks=[task_requests.shown(task) for task in tasks[: query.limit]])


@router.get(
    "/tasks/{id}",
    operation_id="get_task",
    summary="Get a task",
    description="Shows how far an action on many jobs is.",
    response_model=responses.Task,
    response_description="The task.",
    responses=error_responses("task_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_task(request: CurrentRequest, id: TaskId) -> responses.Task:
    return task_requests.shown(await _visible_task(request, id))


@router.delete(
    "/tasks/{id}",
    operation_id="stop_task",
    summary="Stop a task",
    description="Asks for the end of a task: within about a second it changes no more jobs. What is done stays done. A "
    "task that has ended stays as it is.",
    response_model=responses.Task,
    response_description="The task; it may still be `running` for a moment.",
    responses=error_responses("task_not_found", "validation", "store_unavailable"),
)
@requires(Scope.CANCEL, recorded=Recorded())
async def stop_task(request: CurrentRequest, id: TaskId) -> responses.Task:
    task = await _visible_task(request, id)
    await request.engine.tasks.stop(id)
    request.changed_topic = task.spec["topic"]
    return task_requests.shown(task)


async def _visible_task(request: RequestContext, task_id: str) -> Task:
    task = await request.engine.tasks.get(task_id)
    if not _is_visible(request, task):
        raise TaskNotFound(task_id)
    return task


def _is_visible(request: RequestContext, task: Task) -> bool:
    visible, topic = request.admission.visible_topics, task.spec["topic"]
    is_own = task.spec["by"] == request.admission.key_name
    return visible is None or is_own or (topic is not None and visible.match(topic))
