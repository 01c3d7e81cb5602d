"""The pages Activity, Tasks and Events: what people and keys changed, work in the background, batches, and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import api_path, page_path
from deferd.console.undo import undoable
from deferd.console.views.filters import read_filtered, topics_filter
from deferd.console.views.redrive_rate import RedriveRate
from deferd.console.visit import PageList, Visit
from deferd.contract.operations.bulk import CANCEL_SELECTED_JOBS, RESCHEDULE_SELECTED_JOBS, STOP_TASK
from deferd.contract.operations.operation import all_operations
from deferd.contract.operations.topics import PURGE_TOPIC, REDRIVE_JOBS
from deferd.contract.timestamps import parse_instant
from deferd.engine.tasks import KEPT_MS

pages = PageList()
_SHOWN = 100
_BY_TASKS = {one.id for one in (CANCEL_SELECTED_JOBS, RESCHEDULE_SELECTED_JOBS, REDRIVE_JOBS, PURGE_TOPIC)}
"""Their `subject` is the task that did it, if one did."""
_WORDS = {operation.id: operation.done for operation in all_operations() if operation.done}


@pages.page("/console/activity")
async def activity(visit: Visit) -> Response:
    """Changes page by page, the newest first."""
    found, wrong = await read_filtered(
        visit, api_path("activity"), topics=topics_filter(visit), cursor=visit.query.get("cursor"), limit=_SHOWN
    )
    return visit.render(
        "activity.html",
        here="activity",
        changes=[
            {
                **one,
                "words": action_words(one),
                "page": subject_page(one, visit.now_ms or 0),
                "task": "subject" in one and one["operation"] in _BY_TASKS,
            }
            for one in (found["activity"] if found else ())
        ],
        next_cursor=found["next_cursor"] if found else None,
        wrong=wrong,
    )


def action_words(change: Mapping[str, Any]) -> str:
    """What was done, as `paused topic`. An operation of another version of the service is named by its id."""
    operation: str = change["operation"]
    return _WORDS.get(operation, operation.replace("_", " "))


def subject_page(change: Mapping[str, Any], now_ms: int) -> str | None:
    """The page of its `subject`: of a job, schedule, calendar, or a task that is kept; None for what has none."""
    operation, subject = change["operation"], change.get("subject")
    noun = operation.rpartition("_")[2]
    if subject is None or operation.startswith("delete_"):
        return None
    if noun == "job" and change.get("topic"):
        return page_path("console", "topics", change["topic"], "jobs", subject)
    if noun in {"schedule", "calendar"}:
        return page_path("console", f"{noun}s", subject)
    is_kept = parse_instant(change["at"]).timestamp() * 1000 > now_ms - KEPT_MS
    is_task = operation == STOP_TASK.id or operation in _BY_TASKS
    return page_path("console", "tasks", subject) if is_task and is_kept else None


_TASKS_SHOWN = 100
_BATCHES_SHOWN = 100
_UNAVAILABLE = 503


@pages.page("/console/tasks")
async def tasks(visit: Visit) -> Response:
    """The last tasks, the newest first, and batches by name."""
    listing = await visit.read(api_path("tasks"), limit=_TASKS_SHOWN)
    found = await visit.read(api_path("batches"), limit=_BATCHES_SHOWN)
    return visit.render(
        "tasks.html",
        here="activity",
        tasks=listing["tasks"],
        batches=found["batches"],
        has_more=found["next_cursor"] is not None,
    )


@pages.page("/console/tasks/{id}")
async def task(visit: Visit, id: str) -> Response:
    """The progress of a task, or its result, and what became of redriven jobs."""
    found = None
    if visit.wants(
        "became"
    ):  # where the store or the shelf can't be reached for the jobs, the task can still be stopped
        found = await visit.read_or_none({_UNAVAILABLE}, api_path("tasks", id), became="true")
    is_unknown = found is None
    if found is None:
        found = await visit.read(api_path("tasks", id))
    token = found.get("request_id") if "ended_at" in found else None
    per_s = found.get("action", {}).get("rate")
    left = None if per_s is None or found["total"] is None else max(found["total"] - found["done"], 0)
    return visit.render(
        "task.html",
        here="activity",
        task=found,
        ends_at=None if left is None else RedriveRate(per_s=per_s).ends_at(left, visit.now_ms),
        became=found.get("became"),
        is_unknown=is_unknown,
        undo=await undoable(visit, token),
    )


@pages.action("/console/tasks/{id}/stop")
async def stop(visit: Visit, id: str) -> Response:
    """End a task; what is done stays done."""
    await visit.write("DELETE", api_path("tasks", id))
    return visit.redirect(page_path("console", "tasks", id), notice="The task stops within a second.")


_SHOWN_AT_FIRST = 100


@pages.page("/console/events")
async def events(visit: Visit) -> Response:
    """The latest events; a script adds those that follow."""
    topics = topics_filter(visit)
    limit = _SHOWN_AT_FIRST if visit.fragment is None else 1
    latest, wrong = await read_filtered(visit, api_path("events", "latest"), topics=topics, limit=limit)
    return visit.render(
        "events.html",
        here="events",
        topics=topics,
        latest=latest,
        wrong=wrong,
        stream_command=visit.curl(f"/events?last=10{f'&topics={topics}' if topics and not wrong else ''}"),
    )


@pages.page("/console/events/stream", has_regions=False)
async def stream(visit: Visit) -> Response:
    """Server-Sent Events from the API, with the key of the session, behind the event `after` or `Last-Event-ID`."""
    return await visit.stream(api_path("events"), visit.query.get("after", ""), topics=topics_filter(visit))
