"""The page System: the store, its timers, the process, the settings, the caller's key, and the consistency check."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path
from deferd.console.page_routes import PageList
from deferd.console.visit import Visit

pages = PageList()


@pages.page("/console/system")
async def system(visit: Visit) -> Response:
    """What the service runs on. A key that is not for all topics sees its own facts only."""
    values: dict[str, Any] = {"here": "system", "system": None, "refused": None}
    try:
        found = await visit.read(api_path("system"))
    except ApiRefused as refused:
        if refused.status != 403:
            raise
        values["refused"] = refused.problem.get("detail")
    else:
        values["system"] = {name: value for name, value in found.items() if name != "now"}
    values["own"] = await visit.read(api_path("key"))
    return visit.render("system.html", **values)


@pages.page("/console/system/audit")
async def audit_store(visit: Visit) -> Response:
    """The consistency check of the whole store."""
    found = await visit.read(api_path("audit"))
    return visit.render("audit.html", here="system", topic=None, found=found)


@pages.page("/console/topics/{topic}/audit")
async def audit_topic(visit: Visit, topic: str) -> Response:
    """The consistency check of a topic."""
    found = await visit.read(api_path("topics", topic, "audit"))
    return visit.render("audit.html", here="topics", topic=topic, found=found)
