"""Finds a page, a topic or a job by a part of its name, for Ctrl-K."""

from __future__ import annotations

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.visit import NAVIGATION, PageList, Visit

pages = PageList()
_TOPICS = 8
_TYPED = 400
_ID = 256


@pages.page("/console/go")
async def go(visit: Visit) -> Response:
    """The links that match the typed text: jobs, then topics, then pages."""
    typed = visit.query.get("q", "").strip()[:_TYPED]
    found = [*await _jobs(visit, typed), *await _topics(visit, typed)]
    pages_named = [("page", text, link) for _, text, link in NAVIGATION if typed.lower() in text.lower()]
    found = [*pages_named, *found] if len(typed) < 2 else [*found, *pages_named]
    return visit.render("go.html", q=typed, found=found)


async def _topics(visit: Visit, typed: str) -> list[tuple[str, str, str]]:
    if len(typed) > 128:
        return []
    listing = await visit.read(api_path("overview"), name=typed or None, sort="ready", limit=_TOPICS)
    names = sorted((topic["topic"] for topic in listing["topics"]), key=lambda name: (name != typed, name))
    return [("topic", name, page_path("console", "topics", name)) for name in names]


async def _jobs(visit: Visit, typed: str) -> list[tuple[str, str, str]]:
    """A job by `topic/id`, by `topic id`, or on the page of a topic by its id."""
    topic, _, job_id = typed.replace(" ", "/", 1).partition("/")
    wanted = [(topic, job_id)] if topic and job_id else []
    if typed and visit.query.get("here"):
        wanted.append((visit.query["here"], typed))
    found = []
    for in_topic, an_id in wanted:
        if len(an_id) <= _ID and "/" not in an_id and visit.sees(in_topic):
            try:
                why = await visit.read(api_path("jobs", in_topic, an_id, "why"))  # it reads no body
            except ApiRefused:
                continue
            if why["state"] is not None:
                found.append(("job", f"{in_topic}/{an_id}", page_path("console", "topics", in_topic, "jobs", an_id)))
    return found
