"""Events as they happen: the page, and the stream that it reads."""

from __future__ import annotations

from starlette.responses import Response

from deferd.console.api_calls import api_path
from deferd.console.curl_commands import curl
from deferd.console.page_routes import PageList
from deferd.console.views.filters import read_filtered, topics_filter
from deferd.console.visit import Visit

pages = PageList()
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
        stream_command=curl(visit, f"/events?last=10{f'&topics={topics}' if topics and not wrong else ''}"),
        settings_command=curl(visit, "/topics/hello", method="PUT", body={"events": 1000}),
    )


@pages.page("/console/events/stream", has_regions=False)
async def stream(visit: Visit) -> Response:
    """Server-Sent Events from the API, with the key of the session, behind the event `after` or `Last-Event-ID`."""
    return await visit.stream(api_path("events"), visit.query.get("after", ""), topics=topics_filter(visit))
