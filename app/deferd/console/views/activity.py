"""What people and keys changed."""

from __future__ import annotations

from starlette.responses import Response

from deferd.console.activity_words import action_words, subject_kind
from deferd.console.api_calls import api_path
from deferd.console.curl_commands import curl
from deferd.console.page_routes import PageList
from deferd.console.views.filters import read_filtered, topics_filter
from deferd.console.visit import Visit

pages = PageList()
_SHOWN = 100


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
        command=curl(visit, "/topics/hello", method="PUT", body={"max_attempts": 5}),
    )
