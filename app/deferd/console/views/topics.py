"""The list of topics, and the page of one: its jobs by state, what happened and comes due, its pause and settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.chart_series import due_series, flow_series, lateness_series, run_time_series
from deferd.console.views.forms import Form, setting
from deferd.console.visit import PageList, Visit
from deferd.contract.fields import POLICY, TOPIC
from deferd.contract.model import TopicSettings
from deferd.contract.topic_patterns import TopicPatterns

pages = PageList()
_TOPICS_SHOWN = 100
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
SPANS = {"1h": (60, 60), "6h": (360, 72), "2d": (2880, 96)}
"""By the value in the URL: minutes on each side of now, and buckets of the forecast."""
_CONSUMERS_SHOWN = 20
FIELDS = tuple(map(setting, (*POLICY, *TOPIC)))


async def read_topics(visit: Visit) -> dict[str, Any]:
    """One page of topics, by the order, the part of their names and the offset in the URL."""
    sort = visit.query.get("sort", "")
    sort = sort if sort in dict(SORTS) else "topic"
    offset = visit.query.get("offset", "")
    first = int(offset[:6]) if offset.isdecimal() else 0
    name = visit.query.get("name", "").strip()[:128]
    page = {"offset": first, "limit": _TOPICS_SHOWN}
    found = await visit.read(api_path("overview"), sort=sort, name=name or None, **page, ready_history=True)
    return {
        "listing": without_now(found),
        "sorts": SORTS,
        "sort": sort,
        "name": name,
        "first": first,
        "next_offset": first + _TOPICS_SHOWN if found["matching"] > first + _TOPICS_SHOWN else None,
    }


def without_now(found: dict[str, Any]) -> dict[str, Any]:
    """A response without the instant of the read, which would differ each time although the page does not."""
    return {name: value for name, value in found.items() if name != "now"}


@pages.page("/console/topics")
async def topics(visit: Visit) -> Response:
    """All topics, page by page."""
    return visit.render("topics.html", here="topics", selectable=True, **await read_topics(visit))


@pages.page("/console/topics/{topic}")
async def topic(visit: Visit, topic: str) -> Response:
    """The page of a topic."""
    return await _page(visit, topic)


async def _page(visit: Visit, topic: str, *, status: int = 200, **more: Any) -> Response:
    span = visit.query.get("span", "")
    span = span if span in SPANS else "1h"
    values: dict[str, Any] = {
        "here": "topics",
        "topic": topic,
        "span": span,
        "spans": list(SPANS),
        "base": page_path("console", "topics", topic),
        "form": None,
        **more,
    }
    if visit.wants("counts"):
        view = await visit.read(api_path("topics", topic))
        view.pop("oldest_ready_age")  # it changes with each read; the page has `oldest_ready_at`
        values["view"] = view
        values["target"] = await _read_target(visit, topic) if "push" in view else None
        if visit.fragment is None and values["form"] is None:
            values["form"] = Form.of_stored(FIELDS, view["settings"])
    if visit.wants("series"):
        values |= await _read_series(visit, topic, span)
    if visit.wants("consumers"):
        values |= await _read_consumers(visit, topic)
        values["is_pushed"] = "push" in (values.get("view") or await visit.read(api_path("topics", topic)))
    return visit.render("topic.html", status=status, **values)


async def _read_target(visit: Visit, topic: str) -> str | None:
    """Scheme, host and path of a pushed topic's target: a query may be a secret. None without the scope to read it."""
    if not visit.may("admin"):
        return None
    push = await visit.read_or_none({403, 404}, api_path("topics", topic, "push"))
    return None if push is None else str(push["url"]).partition("?")[0]


async def _read_series(visit: Visit, topic: str, span: str) -> dict[str, Any]:
    minutes, buckets = SPANS[span]
    history = await visit.read(api_path("topics", topic, "history"), minutes=minutes)
    length_s = minutes * 60 // buckets
    begin_s = (visit.now_ms or 0) // 1000
    begin = datetime.fromtimestamp(begin_s - begin_s % length_s, UTC)
    forecast = await visit.read(
        api_path("forecast"),
        **{"from": begin.isoformat(), "to": (begin + timedelta(minutes=minutes)).isoformat()},
        topics=topic,
        buckets=buckets,
        limit=1,
    )
    return {
        "flow": flow_series(history),
        "lateness": lateness_series(history),
        "run_times": run_time_series(history),
        "due": due_series(forecast),
        "complete": forecast["complete"],
    }


async def _read_consumers(visit: Visit, topic: str) -> dict[str, Any]:
    """The consumers that pop from the topic or hold jobs of it."""
    found = await visit.read(api_path("consumers"), limit=1000)
    of_topic = [one for one in found["consumers"] if TopicPatterns(one["topics"]).match(topic)]
    return {"consumers": of_topic[:_CONSUMERS_SHOWN], "more_consumers": max(len(of_topic) - _CONSUMERS_SHOWN, 0)}


@pages.action("/console/topics/{topic}/pause")
async def pause(visit: Visit, topic: str) -> Response:
    """Pause it, with the reason of the form."""
    reason = (await visit.form()).get("reason", "").strip()
    view = await visit.write("POST", api_path("topics", topic, "pause"), {"reason": reason} if reason else None)
    page = page_path("console", "topics", topic)
    if view.get("paused_reason", "") != reason:
        return visit.redirect(page, problem=f"{topic} was paused already: below is why.")
    return visit.redirect(page, notice=f"{topic} is paused: it hands out no jobs.")


@pages.action("/console/topics/{topic}/resume")
async def resume(visit: Visit, topic: str) -> Response:
    """End a pause."""
    await visit.write("POST", api_path("topics", topic, "resume"))
    return visit.redirect(page_path("console", "topics", topic), notice=f"{topic} hands out jobs again.")


@pages.action("/console/topics/{topic}/settings")
async def settings(visit: Visit, topic: str) -> Response:
    """Replace the settings; with errors the form comes back, each error at its field."""
    form = Form(FIELDS, await visit.form())
    wanted = form.body()
    form.check(TopicSettings, wanted)
    if not form.errors:
        try:
            view = await visit.read(api_path("topics", topic))
            await visit.write("PUT", api_path("topics", topic), {**form.unshown(view["settings"]), **wanted})
        except ApiRefused as refused:
            form.add_refusal(refused)
    if form.errors:
        visit.page = "/" + page_path("console", "topics", topic)
        return await _page(visit, topic, status=422, form=form)
    return visit.redirect(
        page_path("console", "topics", topic), notice=f"The settings of {topic} apply to jobs put from now on."
    )
