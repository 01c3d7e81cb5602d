"""The pages about the whole service: Now, which has what needs a person and what comes due, Consumers, and System."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import QueryValue, api_path
from deferd.console.chart_series import due_series, lateness_series
from deferd.console.views.filters import read_filtered
from deferd.console.views.topics import read_topics, without_now
from deferd.console.visit import PageList, Visit

pages = PageList()
HOURS = 6
"""On each side of now."""
_DUE_BUCKET_S = 600
"""Half as many searches of the store as with the 5 minutes of the history: thousands of topics are read."""
_ALERTS = 20
_TOPICS_DUE = 1000
_CONSUMERS_READ, _CONSUMERS_SHOWN = 1000, 300


@pages.page("/")
async def now(visit: Visit) -> Response:
    """The first page."""
    parts = [read for name, read in _PARTS.items() if visit.wants(name)]
    found = await asyncio.gather(*(read(visit) for read in parts))
    values: dict[str, Any] = {"here": "now"}
    for part in found:
        values |= part
    return visit.render("now.html", **values)


async def _read_attention(visit: Visit) -> dict[str, Any]:
    return {"attention": without_now(await visit.read(api_path("now"), limit=_ALERTS))}


async def _read_series(visit: Visit) -> dict[str, Any]:
    """Six hours of lateness, and six hours of what comes due."""
    begin_s = (visit.now_ms or 0) // 1000
    begin = datetime.fromtimestamp(begin_s - begin_s % _DUE_BUCKET_S, UTC)
    history, forecast = await asyncio.gather(
        visit.read(api_path("history"), minutes=60 * HOURS),
        visit.read(
            api_path("forecast"),
            **{"from": begin.isoformat(), "to": (begin + timedelta(hours=HOURS)).isoformat()},
            buckets=HOURS * 3600 // _DUE_BUCKET_S,
            limit=1,
        ),
    )
    return {
        "lateness": lateness_series(history),
        "due": due_series(forecast),
        "complete": history["complete"] and forecast["complete"],
    }


@pages.page("/console/due")
async def due(visit: Visit) -> Response:
    """The topics whose jobs come due between two instants: what a bar of the chart on Now counts."""
    begin, end = visit.query.get("due_after") or None, visit.query.get("due_before") or None
    query: dict[str, QueryValue] = {"from": begin, "to": end, "buckets": 1, "limit": _TOPICS_DUE}
    found, wrong = await read_filtered(visit, api_path("forecast"), **query)
    counts = [(topic["topic"], sum(topic["counts"])) for topic in found["topics"]] if found else []
    return visit.render(
        "due.html",
        here="now",
        found=found and without_now(found),
        topics=[one for one in counts if one[1]],
        wrong=wrong,
    )


_PARTS = {"attention": _read_attention, "series": _read_series, "topics": read_topics}
"""What the regions of the page show."""


@pages.page("/console")
async def console(visit: Visit) -> Response:
    """The values that people may type."""
    return visit.redirect("./")


@pages.page("/console/consumers")
async def consumers(visit: Visit) -> Response:
    """Consumers of the last minute and those that hold jobs, filtered by a part of their names and topics."""
    found = await visit.read(api_path("consumers"), limit=_CONSUMERS_READ)
    part = visit.query.get("q", "").strip().lower()
    matching = [one for one in found["consumers"] if part in _searched_text(one)]
    return visit.render(
        "consumers.html",
        here="consumers",
        found=found,
        shown=matching[:_CONSUMERS_SHOWN],
        matching=len(matching),
        waiting=sum(1 for one in found["consumers"] if one["waiting"]),
        held=sum(one["held"] or 0 for one in found["consumers"]) + found["nameless_held"],
        part=part,
        command=visit.curl("/topics/hello/pop?wait=30&consumer=me"),
    )


def _searched_text(consumer: Mapping[str, Any]) -> str:
    parts = [consumer["name"] or "", *consumer["topics"], *consumer["addresses"], *consumer["clients"]]
    return "\n".join(parts).lower()


@pages.page("/console/system")
async def system(visit: Visit) -> Response:
    """What the service runs on. A key that is not for all topics sees its own facts only."""
    found = without_now(await visit.read(api_path("system"))) if visit.sees("*") else None
    return visit.render("system.html", here="system", system=found, own=await visit.read(api_path("key")))


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
