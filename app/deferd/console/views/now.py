"""The page Now: what needs a person, what happened, what comes due, and the topics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import api_path
from deferd.console.chart_series import due_series, lateness_series
from deferd.console.page_routes import PageList
from deferd.console.views.topics import read_topics, without_now
from deferd.console.visit import Visit

pages = PageList()
HOURS = 6
"""On each side of now."""
_DUE_BUCKET_S = 600
"""Half as many searches of the store as with the 5 minutes of the history: thousands of topics are read."""
_ALERTS = 20


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


_PARTS = {"attention": _read_attention, "series": _read_series, "topics": read_topics}
"""What the regions of the page show."""


@pages.page("/console")
async def console(visit: Visit) -> Response:
    """The values that people may type."""
    return visit.redirect("./")
