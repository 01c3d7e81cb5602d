"""For operators: actions on many jobs that run in the background."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from typing import Annotated, Any, Literal

import orjson
from fastapi import Query
from msgspec.structs import replace
from pydantic import BaseModel, Field
from starlette.responses import Response

from deferd.api.change_recording import filter_text, via_of, who_of
from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import JsonResponse, instant_or_none, whole
from deferd.api.routes.queries import page_limit
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import FieldError, InvalidInput, TaskNotFound
from deferd.contract.limits import BULK_MAX
from deferd.contract.model import JobId
from deferd.contract.operations import bulk as contract
from deferd.contract.operations.bulk import CANCEL_SELECTED_JOBS, RESCHEDULE_SELECTED_JOBS
from deferd.contract.operations.topics import PURGE_TOPIC, REDRIVE_JOBS
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant
from deferd.engine.record import instant_ms
from deferd.engine.tasks import KEPT, Task, request_of
from deferd.engine.topic_sweeps import Sweep

router = OperationRouter()

TaskId = Annotated[JobId, Field(description="Name of a task.", examples=["5f0c9a3be7d2481c"])]


class TasksQuery(StrictModel):
    """The parameters of a list of tasks."""

    limit: int = page_limit("tasks")


@router.serves(contract.LIST_TASKS)
async def list_tasks(request: CurrentRequest, query: Annotated[TasksQuery, Query()]) -> contract.Tasks:
    most = query.limit if request.admission.visible_topics is None else KEPT
    tasks = [task for task in await request.engine.tasks.newest(most) if _is_visible(request, task)]
    return contract.Tasks(tasks=[_shown(task) for task in tasks[: query.limit]])


class TaskQuery(StrictModel):
    """The parameters of one task."""

    became: bool = Field(False, description="`true`: of a redrive, with what became of the jobs, which is looked up.")


@router.serves(contract.GET_TASK)
async def get_task(request: CurrentRequest, id: TaskId, query: Annotated[TaskQuery, Query()]) -> contract.Task:
    task = await _visible_task(request, id)
    if not query.became or task.spec["kind"] != "redrive":
        return _shown(task)
    of_request = request_of(task.id, task.spec)
    became = await request.engine.redriven_jobs.became(task.spec["topic"], of_request, task.spec["cutoff"])
    errors = [contract.RepeatedError(error=error, jobs=jobs) for error, jobs in became.top_errors]
    counts = {name: getattr(became, name) for name in contract.Became.__struct_fields__ if name != "errors"}
    return replace(_shown(task), became=contract.Became(**counts, errors=errors))


@router.serves(contract.STOP_TASK)
async def stop_task(request: CurrentRequest, id: TaskId) -> contract.Task:
    task = await _visible_task(request, id)
    await request.engine.tasks.stop(id)
    request.changed_topic = task.spec["topic"]
    return _shown(task)


async def _visible_task(request: RequestContext, task_id: str) -> Task:
    task = await request.engine.tasks.get(task_id)
    if not _is_visible(request, task):
        raise TaskNotFound(task_id)
    return task


def _is_visible(request: RequestContext, task: Task) -> bool:
    visible, topic = request.admission.visible_topics, task.spec["topic"]
    is_own = task.spec["by"] == request.admission.key_name
    return visible is None or is_own or (topic is not None and visible.match(topic))


ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": contract.Task,
        "description": "With `as_task`: the task has begun.",
        "headers": {"Location": {"description": "The task's path.", "schema": {"type": "string"}}},
    }
}


_OPERATIONS = {
    "cancel": CANCEL_SELECTED_JOBS.id,
    "reschedule": RESCHEDULE_SELECTED_JOBS.id,
    "redrive": REDRIVE_JOBS.id,
    "purge": PURGE_TOPIC.id,
}
_NOT_OF_THE_ACTION = {"as_task", "dry_run", "samples", "request_id", "limit", "undo"}
_NOT_OF_THE_SELECTION = {"verb", "topic", "ids", "cutoff_ms", "limit", "rate", "frees_taken"}


async def begin_call(
    request: RequestContext, kind: Literal["cancel", "reschedule"], call: CancelSelected | RescheduleSelected
) -> Response:
    """Begin a call on many jobs, and respond with its task.

    Raises:
        InvalidInput: the `request_id` is that of a task which does something else, and runs or ended within an hour.
        RateLimited, StoreUnavailable.
    """
    select = call.select
    now_ms = await request.engine.task_actions.now_ms(await request.engine.bulk.shards_of(select))
    topics, visible = select.named_topics, request.admission.visible_topics
    fields = call.model_dump(mode="json", exclude_unset=True, exclude=_NOT_OF_THE_ACTION)
    spec = {
        "call": fields,
        "visible": None if visible is None else list(visible.patterns),
        "select": fields["select"],
        "action": {name: value for name, value in fields.items() if name != "select"},
        "topic": next(iter(topics)) if len(topics) == 1 and not select.patterns else None,
        "begun": now_ms,
        "cutoff": now_ms if select.cutoff is None else min(instant_ms(select.cutoff), now_ms),
        "limit": call.limit if "limit" in call.model_fields_set else None,
    }
    if isinstance(call, CancelSelected) and call.undo:
        spec |= {"undo": call.request_id, "limit": spec["limit"] or BULK_MAX}
    task = await _begin(request, kind, spec, call, call.request_id)
    asked = type(call).model_validate(task.spec["call"]), task.spec["limit"]
    if asked != (type(call).model_validate(fields), spec["limit"]):
        text = f"is that of task {task.id}, which selects or does something else: use another `request_id`"
        raise InvalidInput([FieldError(("body", "request_id"), text, call.request_id)])
    return _accepted(task)


async def begin_sweep(request: RequestContext, sweep: Sweep, given: BaseModel) -> Response:
    """Begin a redrive or purge, and respond with its task. Raises TopicNotFound, RateLimited, StoreUnavailable."""
    await request.engine.topics.get(sweep.topic)
    now_ms = await request.engine.sweeps.now_ms(sweep.topic)
    fields = {name: value for name, value in asdict(sweep).items() if value is not None}
    of_sweep = {name: value for name, value in fields.items() if name not in {"verb", "cutoff_ms", "limit"}}
    of_sweep["frees_taken"] = sweep.cutoff_ms is None
    spec = {
        "sweep": of_sweep,
        "select": {name: value for name, value in fields.items() if name not in _NOT_OF_THE_SELECTION},
        "action": {} if sweep.rate is None else {"rate": whole(sweep.rate)},
        "topic": sweep.topic,
        "begun": now_ms,
        "cutoff": now_ms if sweep.cutoff_ms is None else min(sweep.cutoff_ms, now_ms),
        "limit": sweep.limit,
    }
    return _accepted(await _begin(request, sweep.verb, spec, given, None))


async def _begin(
    request: RequestContext, kind: str, spec: dict[str, Any], given: BaseModel, request_id: str | None
) -> Task:
    by, via = who_of(request), via_of(request.incoming)
    change = {
        "operation": _OPERATIONS[kind],
        "by": by,
        "via": via,
        "topic": spec["topic"],
        "filter": filter_text(given),
        "by_admin": request.admission.is_of_admin,
    }
    task_id = os.urandom(8).hex()
    if request_id is not None:
        name = orjson.dumps([request.admission.key_name, kind, request_id])
        task_id = hashlib.sha256(name).hexdigest()[:16]
    request.changed = 0  # what it changes is recorded when it has ended
    stored = {**spec, "kind": kind, "by": by, "change": change, "key": request.admission.key_name}
    with request.room_for_task(given):
        return await request.engine.task_runner.begin(task_id, stored, request.admission.key_name)


def _accepted(task: Task) -> Response:
    return JsonResponse(_shown(task), 202, ((b"location", f"/tasks/{task.id}".encode()),))


def _shown(task: Task) -> contract.Task:
    """A task as the API shows it."""
    spec = task.spec
    return contract.Task(
        id=task.id,
        kind=spec["kind"],
        state=task.state,
        topic=spec["topic"],
        select=spec["select"],
        action=spec.get("action") or None,
        request_id=spec.get("undo"),
        cutoff=instant(spec["cutoff"]),
        by=spec["by"],
        via=spec["change"]["via"],
        done=task.done,
        total=task.total,
        started_at=instant(task.started_ms),
        ended_at=instant_or_none(task.ended_ms),
    )
