"""One topic: its jobs by state, what happened and what comes due, its consumers, its pause and its settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.chart_series import due_series, flow_series, lateness_series
from deferd.console.page_routes import PageList
from deferd.console.topic_form import field_values, fields_of, settings_of, unknown_settings
from deferd.console.visit import Visit
from deferd.contract.topic_patterns import TopicPatterns

pages = PageList()
SPANS = {"1h": (60, 60), "6h": (360, 72), "2d": (2880, 96)}
"""By the value in the URL: minutes on each side of now, and buckets of the forecast."""
_CONSUMERS_SHOWN = 20


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
        "form_errors": {},
        "form_values": None,
        **more,
    }
    if visit.wants("counts"):
        view = await visit.read(api_path("topics", topic))
        view.pop("oldest_ready_age")  # it changes with each read; the page has `oldest_ready_at`
        values["view"] = view
        values["target"] = await _read_target(visit, topic) if "push" in view else None
        if visit.fragment is None and values["form_values"] is None:
            values["form_values"] = field_values(view["settings"])
        values["fields"] = fields_of(values["form_values"] or {}, values["form_errors"])
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
    return {"flow": flow_series(history), "lateness": lateness_series(history), "due": due_series(forecast)}


async def _read_consumers(visit: Visit, topic: str) -> dict[str, Any]:
    """The consumers that pop from the topic or hold jobs of it."""
    found = await visit.read(api_path("consumers"), limit=1000)
    of_topic = [one for one in found["consumers"] if TopicPatterns(one["topics"]).match(topic)]
    return {"consumers": of_topic[:_CONSUMERS_SHOWN], "more_consumers": max(len(of_topic) - _CONSUMERS_SHOWN, 0)}


@pages.action("/console/topics/{topic}/pause")
async def pause(visit: Visit, topic: str) -> Response:
    """Pause it, with the reason of the form."""
    reason = (await visit.form()).get("reason", "").strip()
    await visit.write("POST", api_path("topics", topic, "pause"), {"reason": reason} if reason else None)
    return visit.redirect(page_path("console", "topics", topic), notice=f"{topic} is paused: it hands out no jobs.")


@pages.action("/console/topics/{topic}/resume")
async def resume(visit: Visit, topic: str) -> Response:
    """End a pause."""
    await visit.write("POST", api_path("topics", topic, "resume"))
    return visit.redirect(page_path("console", "topics", topic), notice=f"{topic} hands out jobs again.")


@pages.action("/console/topics/{topic}/settings")
async def settings(visit: Visit, topic: str) -> Response:
    """Replace the settings; with errors the form comes back, each error at its field."""
    form = await visit.form()
    wanted, errors = settings_of(form)
    if not errors:
        try:
            view = await visit.read(api_path("topics", topic))
            await visit.write("PUT", api_path("topics", topic), {**unknown_settings(view["settings"]), **wanted})
        except ApiRefused as refused:
            if refused.status != 422:
                raise
            for error in refused.problem.get("errors", []):
                name = error["field"].removeprefix("body.").partition(".")[0].partition("[")[0]
                errors.setdefault(name, error["message"])
            errors = errors or {"": refused.problem.get("detail", "The settings were refused.")}
    if errors:
        return await _page(visit, topic, status=422, form_errors=errors, form_values=form)
    return visit.redirect(
        page_path("console", "topics", topic), notice=f"The settings of {topic} apply to jobs put from now on."
    )
