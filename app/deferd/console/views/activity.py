"""The pages Activity, Tasks and Events: what people and keys changed, work in the background, and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import api_path, page_path
from deferd.console.undo import undoable
from deferd.console.views.filters import read_filtered, topics_filter
from deferd.console.visit import PageList, Visit
from deferd.contract.operations.operation import all_operations

pages = PageList()
_SHOWN = 100
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
        changes=[{**one, "words": action_words(one), "kind": subject_kind(one)} for one in found["activity"]]
        if found
        else [],
        next_cursor=found["next_cursor"] if found else None,
        wrong=wrong,
    )


def action_words(change: Mapping[str, Any]) -> str:
    """What was done, as `paused topic`. An operation of another version of the service is named by its id."""
    operation: str = change["operation"]
    return _WORDS.get(operation, operation.replace("_", " "))


def subject_kind(change: Mapping[str, Any]) -> str | None:
    """The kind of its `subject`: a `job`, a `schedule`, or None for something without a page."""
    if change.get("subject") is None:
        return None
    noun = change["operation"].rpartition("_")[2]
    return noun if noun == "schedule" or (noun == "job" and change.get("topic")) else None


_TASKS_SHOWN = 100


@pages.page("/console/tasks")
async def tasks(visit: Visit) -> Response:
    """The last tasks, the newest first."""
    listing = await visit.read(api_path("tasks"), limit=_TASKS_SHOWN)
    return visit.render("tasks.html", here="activity", tasks=listing["tasks"])


@pages.page("/console/tasks/{id}")
async def task(visit: Visit, id: str) -> Response:
    """The progress of a task, or its result."""
    found = await visit.read(api_path("tasks", id))
    token = found.get("request_id") if "ended_at" in found else None
    return visit.render("task.html", here="activity", task=found, undo=await undoable(visit, token))


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
