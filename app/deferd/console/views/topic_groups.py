"""The groups of a topic: what they have ready, in flight and delayed, their limits, and to pause and resume one."""

from __future__ import annotations

from starlette.responses import Response

from deferd.console.api_calls import api_path, page_path
from deferd.console.views.filters import read_filtered
from deferd.console.visit import PageList, Visit

pages = PageList()
_SHOWN = 50
_ORDERS = (("Most ready", ""), ("Most in flight", "reserved"), ("Oldest ready job", "age"))


@pages.page("/console/topics/{topic}/groups")
async def groups(visit: Visit, topic: str) -> Response:
    """Its groups, in the order of the URL."""
    found, wrong = await read_filtered(
        visit,
        api_path("topics", topic, "groups"),
        order=visit.query.get("order") or None,
        cursor=visit.query.get("cursor") or None,
        limit=_SHOWN,
    )
    view = await visit.read(api_path("topics", topic))
    return visit.render(
        "topic_groups.html",
        here="topics",
        topic=topic,
        base=page_path("console", "topics", topic),
        orders=_ORDERS,
        found=found,
        wrong=wrong,
        limits=view["settings"].get("limits") or {},
        command=visit.curl("/jobs", body={"topic": topic, "group": "customer-7"}),
    )


@pages.action("/console/topics/{topic}/groups/{group}/pause")
async def pause(visit: Visit, topic: str, group: str) -> Response:
    """Hand out no jobs of the group."""
    return await _change(visit, topic, group, "pause", "is paused: none of its jobs is handed out")


@pages.action("/console/topics/{topic}/groups/{group}/resume")
async def resume(visit: Visit, topic: str, group: str) -> Response:
    """End a pause."""
    return await _change(visit, topic, group, "resume", "takes turns again")


async def _change(visit: Visit, topic: str, group: str, verb: str, done: str) -> Response:
    order = (await visit.form()).get("order", "")
    await visit.write("POST", api_path("topics", topic, "groups", group, verb))
    query = f"?order={order}" if order in {value for _, value in _ORDERS if value} else ""
    return visit.redirect(page_path("console", "topics", topic, "groups") + query, notice=f"Group {group} {done}.")
