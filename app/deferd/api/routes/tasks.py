"""For operators: actions on many jobs that run in the background."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from deferd.api import task_requests
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.routes.queries import page_limit
from deferd.contract.errors import TaskNotFound
from deferd.contract.model import JobId
from deferd.contract.operations import tasks as operations
from deferd.contract.responses import tasks as responses
from deferd.contract.strict_model import StrictModel
from deferd.engine.tasks.task_store import KEPT, Task

router = OperationRouter()

TaskId = Annotated[JobId, Field(description="Name of a task.", examples=["5f0c9a3be7d2481c"])]


class TasksQuery(StrictModel):
    """The parameters of a list of tasks."""

    limit: int = page_limit("tasks")


@router.serves(operations.LIST_TASKS)
async def list_tasks(request: CurrentRequest, query: Annotated[TasksQuery, Query()]) -> responses.Tasks:
    most = query.limit if request.admission.visible_topics is None else KEPT
    tasks = [task for task in await request.engine.tasks.newest(most) if _is_visible(request, task)]
    return responses.Tasks(tasks=[task_requests.shown(task) for task in tasks[: query.limit]])


@router.serves(operations.GET_TASK)
async def get_task(request: CurrentRequest, id: TaskId) -> responses.Task:
    return task_requests.shown(await _visible_task(request, id))


@router.serves(operations.STOP_TASK)
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
