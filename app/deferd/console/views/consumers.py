"""Who consumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import api_path
from deferd.console.curl_commands import curl
from deferd.console.page_routes import PageList
from deferd.console.visit import Visit

pages = PageList()
_READ, _SHOWN = 1000, 300


@pages.page("/console/consumers")
async def consumers(visit: Visit) -> Response:
    """Consumers of the last minute and those that hold jobs, filtered by a part of their names and topics."""
    found = await visit.read(api_path("consumers"), limit=_READ)
    part = visit.query.get("q", "").strip().lower()
    matching = [one for one in found["consumers"] if part in _text(one)]
    return visit.render(
        "consumers.html",
        here="consumers",
        found=found,
        shown=matching[:_SHOWN],
        matching=len(matching),
        waiting=sum(1 for one in found["consumers"] if one["waiting"]),
        held=sum(one["held"] or 0 for one in found["consumers"]) + found["nameless_held"],
        part=part,
        command=curl(visit, "/topics/hello/pop?wait=30&consumer=me"),
    )


def _text(consumer: Mapping[str, Any]) -> str:
    parts = [consumer["name"] or "", *consumer["topics"], *consumer["addresses"], *consumer["clients"]]
    return "\n".join(parts).lower()
