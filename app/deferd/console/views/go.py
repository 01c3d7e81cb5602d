"""Finds a page, a topic, a job, a schedule or a consumer by a part of its name, for Ctrl-K."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.views.search import may_be_of_job, read_names
from deferd.console.visit import NAVIGATION, PageList, Visit

pages = PageList()
_SHOWN = 8
_TYPED = 400
_ID = 256


@pages.page("/console/go")
async def go(visit: Visit) -> Response:
    """The links that match the typed text: jobs, then topics, schedules and consumers, then pages, then a search."""
    typed = visit.query.get("q", "").strip()[:_TYPED]
    found = [*await _jobs(visit, typed), *await _named(visit, typed)]
    pages_named = [("page", text, link) for _, text, link in NAVIGATION if typed.lower() in text.lower()]
    found = [*pages_named, *found] if len(typed) < 2 else [*found, *pages_named]
    if len(typed) > 1 and may_be_of_job(typed):
        text = f"jobs with the id or tag {typed}, in all topics"
        found.append(("search", text, f"console/search?{urlencode({'q': typed})}"))
    return visit.render("go.html", q=typed, found=found)


async def _named(visit: Visit, typed: str) -> list[tuple[str, str, str]]:
    if not typed:
        listing = await visit.read(api_path("overview"), sort="ready", limit=_SHOWN)
        names = sorted(topic["topic"] for topic in listing["topics"])
        return [("topic", name, page_path("console", "topics", name)) for name in names]
    matching = await read_names(visit, typed, _SHOWN)
    kinds = (("topic", matching.topics), ("schedule", matching.schedules), ("consumer", matching.consumers))
    return [(kind, name, page_path("console", f"{kind}s", name)) for kind, found in kinds for name in found]


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
