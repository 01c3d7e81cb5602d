"""Tasks: background actions on many jobs, their progress, and stopping them."""

from __future__ import annotations

from starlette.responses import Response

from deferd.console.api_calls import api_path, page_path
from deferd.console.page_routes import PageList
from deferd.console.visit import Visit

pages = PageList()
_SHOWN = 100


@pages.page("/console/tasks")
async def tasks(visit: Visit) -> Response:
    """The last tasks, the newest first."""
    listing = await visit.read(api_path("tasks"), limit=_SHOWN)
    return visit.render("tasks.html", here="activity", tasks=listing["tasks"])


@pages.page("/console/tasks/{id}")
async def task(visit: Visit, id: str) -> Response:
    """The progress of a task, or its result."""
    return visit.render("task.html", here="activity", task=await visit.read(api_path("tasks", id)))


@pages.action("/console/tasks/{id}/stop")
async def stop(visit: Visit, id: str) -> Response:
    """End a task; what is done stays done."""
    await visit.write("DELETE", api_path("tasks", id))
    return visit.redirect(page_path("console", "tasks", id), notice="It stops within a second.")
