"""The list of topics."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import api_path
from deferd.console.page_routes import PageList
from deferd.console.visit import Visit

pages = PageList()
_SHOWN = 100
SORTS = (
    ("topic", "Topic"),
    ("delayed", "Delayed"),
    ("ready", "Ready"),
    ("reserved", "Reserved"),
    ("dead", "Dead"),
    ("rate", "Taken/s"),
    ("oldest", "Oldest ready"),
    ("due", "Next due"),
)


async def read_topics(visit: Visit) -> dict[str, Any]:
    """One page of topics, by the order, the part of their names and the offset in the URL."""
    sort = visit.query.get("sort", "")
    sort = sort if sort in dict(SORTS) else "topic"
    offset = visit.query.get("offset", "")
    first = int(offset[:6]) if offset.isdecimal() else 0
    name = visit.query.get("name", "").strip()[:128]
    found = await visit.read(api_path("overview"), sort=sort, name=name or None, offset=first, limit=_SHOWN)
    return {
        "listing": without_now(found),
        "sorts": SORTS,
        "sort": sort,
        "name": name,
        "first": first,
        "next_offset": first + _SHOWN if found["matching"] > first + _SHOWN else None,
    }


def without_now(found: dict[str, Any]) -> dict[str, Any]:
    """A response without the instant of the read, which would differ each time although the page does not."""
    return {name: value for name, value in found.items() if name != "now"}


@pages.page("/console/topics")
async def topics(visit: Visit) -> Response:
    """All topics, page by page."""
    return visit.render("topics.html", here="topics", **await read_topics(visit))
