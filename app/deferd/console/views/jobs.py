"""The jobs of a topic: filters, pages, and which of them to act on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.undo import undoable
from deferd.console.views.filters import STATES, JobListFilter, read_filter, refuse_masked_error
from deferd.console.visit import PageList, Visit
from deferd.contract import limits

pages = PageList()
PAGE_SIZES = (50, 200, 1000)
_EVERY_S, _SEARCHED_EVERY_S = 2.0, 20.0
"""How often the rows are read again; a search reads up to 10,000 jobs."""
KEPT_IN_URL = (
    *("state", "id", "tag", "of_group", "error", "reason", "group", "retrying", "due_after", "due_before", "zone"),
    *("order", "limit"),
)
"""What says in a URL which jobs a list has, and how they are ordered."""
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("exact", "next_url", "first_url", "searched", "matching", "total", "refused")),
    "rows": [],
    "left": [],
}


class Action(NamedTuple):
    """What can be done with many jobs: the verb, what the jobs then are, and the scope that it needs.

    `states` are those of the jobs that it concerns; others stay as they are.
    """

    verb: str
    done: str
    scope: str
    states: Collection[str] = STATES


ACTIONS = {
    "run_now": Action("Run now", "made due now", "put", {"delayed"}),
    "reschedule": Action("Reschedule", "rescheduled", "put", {"delayed", "ready"}),
    "redrive": Action("Redrive", "redriven", "admin", {"dead"}),
    "cancel": Action("Cancel", "cancelled", "cancel"),
}


@pages.page("/console/topics/{topic}/jobs")
async def jobs(visit: Visit, topic: str) -> Response:
    """A page of jobs that match the filter in the URL."""
    wanted = read_filter(visit.query, visit.now_ms)
    values: dict[str, Any] = {
        "here": "topics",
        "topic": topic,
        "wanted": wanted,
        "given": wanted.given,
        "states": (None, *STATES),
        "problems": wanted.problems,
        "kept": {name: value for name, value in visit.query.items() if name in KEPT_IN_URL},
        "sizes": PAGE_SIZES,
        "size": _size(visit),
        "order": visit.query.get("order") if visit.query.get("order") in {"asc", "desc"} else _order_of(wanted),
        "default_order": _order_of(wanted),
        "link": jobs_url(topic, list_query(visit.query, wanted)),
        "actions": {
            name: action for name, action in ACTIONS.items() if wanted.state is None or wanted.state in action.states
        },
        "undo": await undoable(visit, visit.query.get("undo")) if visit.fragment is None else None,
        "every_s": _SEARCHED_EVERY_S if wanted.is_search and not wanted.tag else _EVERY_S,
    }
    among = visit.query.get("among", "").split(",")
    if visit.fragment == "rows" and among != [""]:
        return visit.render("jobs.html", **values, **await _read_shown(visit, topic, wanted, among))
    if visit.wants("tabs", "rows"):
        values["view"] = await visit.read(api_path("topics", topic))
    if visit.wants("rows"):
        values |= await _read_page(visit, topic, wanted, values)
    return visit.render("jobs.html", **values)


async def _read_shown(visit: Visit, topic: str, wanted: JobListFilter, ids: Sequence[str]) -> dict[str, Any]:
    """What became of jobs that the reader's page lists and this one does not; `left` match the filter no more."""
    page = await visit.read(api_path("topics", topic, "jobs"), ids=",".join(ids), bodies=False)
    rows = [_row(job, job["body_bytes"]) for job in page["jobs"]]
    matching, _ = await read_rows(visit, topic, wanted, order="asc", limit=limits.LISTED_IDS_MAX, ids=ids)
    still = {row["id"] for row in matching}
    return {**_NOTHING, "rows": rows, "total": len(rows), "left": [row["id"] for row in rows if row["id"] not in still]}


def _size(visit: Visit) -> int:
    text = visit.query.get("limit", "")
    return int(text) if text in map(str, PAGE_SIZES) else PAGE_SIZES[0]


def _order_of(wanted: JobListFilter) -> str:
    return "asc" if wanted.is_oldest_first else "desc"


async def _read_page(visit: Visit, topic: str, wanted: JobListFilter, values: dict[str, Any]) -> dict[str, Any]:
    """The rows, where the next page begins, and how much of the topic has been searched."""
    if wanted.problems:
        return dict(_NOTHING)
    refused = None
    page: dict[str, Any] = {"jobs": [], "next_cursor": None}
    exact = None
    try:
        rows, page = await read_rows(
            visit, topic, wanted, order=values["order"], limit=values["size"], cursor=visit.query.get("cursor")
        )
        if wanted.id and "cursor" not in visit.query and all(row["id"] != wanted.id for row in rows):
            exact = await _exact(visit, topic, wanted.id)
    except ApiRefused as error:
        if error.status != 422:
            raise
        rows, refused = [], error.problem
    before = visit.query.get("searched", "")
    searched = page.get("looked_at")
    if searched is not None and before.isdecimal() and "cursor" in visit.query:
        searched += int(before[:15])
    next_cursor, matching = page["next_cursor"], page.get("matching")
    counts = values["view"]["counts"]
    return {
        "rows": rows,
        "left": [],
        "exact": exact,
        "refused": refused,
        "searched": None if matching is not None else searched,
        "matching": matching,
        "total": counts[wanted.state] if wanted.state else sum(counts.values()),
        "next_url": visit.url(cursor=next_cursor, searched=searched) if next_cursor else None,
        "first_url": visit.url(cursor=None, searched=None) if "cursor" in visit.query else None,
    }


async def read_rows(
    visit: Visit,
    topic: str,
    wanted: JobListFilter,
    *,
    order: str,
    limit: int,
    cursor: str | None = None,
    ids: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One page of the list: the jobs without their bodies, and the response of the API. Raises ApiRefused.

    `ids`: only of these jobs.
    """
    refuse_masked_error(visit, wanted.error or wanted.group)
    query = {**wanted.query(), "order": order, "limit": limit, "cursor": cursor, "ids": ",".join(ids) or None}
    page = await visit.read(api_path("topics", topic, "jobs"), **query, bodies=False)
    return [_row(job, job["body_bytes"]) for job in page["jobs"]], page


def _row(job: dict[str, Any], size: int) -> dict[str, Any]:
    names = (
        *("id", "state", "due_at", "attempts", "max_attempts", "tags", "last_error", "reason", "dead_at"),
        *("finished_at", "reserved_until", "reserved_since", "reserved_by", "created_at"),
    )
    return {**{name: job.get(name) for name in names}, "size": size}


async def _exact(visit: Visit, topic: str, job_id: str) -> str | None:
    """The job with exactly this id, if there is one: a search by prefix may take many pages to reach it."""
    try:
        await visit.read(api_path("jobs", topic, job_id), bodies=False)
    except ApiRefused:
        return None
    return job_id


def jobs_url(topic: str, query: Mapping[str, str] | None = None) -> str:
    """The page of a topic's jobs."""
    return page_path("console", "topics", topic, "jobs") + (f"?{urlencode(query)}" if query else "")


def list_query(fields: Mapping[str, str], wanted: JobListFilter) -> dict[str, str]:
    """The query of a list that is the same for everybody, and later: with instants in place of typed times."""
    # An empty group is that of the jobs without an error.
    kept = {name: fields[name] for name in KEPT_IN_URL if fields.get(name) or (name == "group" and name in fields)}
    instants = {name: at for name in ("due_after", "due_before") if (at := getattr(wanted, name)) is not None}
    if instants.keys() == kept.keys() & {"due_after", "due_before"}:  # otherwise one can't be read: it stays as typed
        kept.pop("zone", None)
    return {**kept, **instants}
