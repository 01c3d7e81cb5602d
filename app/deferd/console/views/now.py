"""The pages about the whole service: Now, which has what needs a person and what comes due, Consumers, and System."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, QueryValue, api_path
from deferd.console.chart_series import due_series, lateness_series
from deferd.console.rendering import duration, shortened
from deferd.console.views.filters import read_filter, read_filtered
from deferd.console.views.topics import read_topics, without_now
from deferd.console.views.typed_times import NewDueTime, read_new_due_time
from deferd.console.visit import PageList, Visit
from deferd.contract import limits
from deferd.contract.counted import counted

pages = PageList()
HOURS = 6
"""On each side of now."""
_DUE_BUCKET_S = 600
"""Half as many searches of the store as with the 5 minutes of the history: thousands of topics are read."""
_ALERTS = limits.PAGE_MAX
_EQUAL = 4
"""So many alerts of one cause are one line, which opens."""
_NO_ALERT = "There is no such alert any more."
_SHOWN = 20
"""Alerts of a cause, unless all are asked for."""
_TOPICS_DUE = 1000
_CONSUMERS_READ, _CONSUMERS_SHOWN = 1000, 300


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
    found = without_now(await visit.read(api_path("now"), limit=_ALERTS))
    opened = visit.query.get("cause")
    return {
        "attention": found,
        "lines": lines_of(found.pop("alerts"), opened),
        "acknowledged": lines_of(found.pop("acknowledged", []), opened),
    }


def lines_of(alerts: list[dict[str, Any]], opened: str | None) -> list[dict[str, Any]]:
    """The alerts, in their order, those of one cause as one line where the first of them was.

    A line has `severity`, `cause` and the alerts that are `shown`; one for several alerts also their `text` and number,
    `equal`. Of the cause `opened` all are shown. Those that are acknowledged have one cause only if they are so alike.
    """
    causes: dict[str, list[dict[str, Any]]] = {}
    for alert in alerts:
        causes.setdefault(_cause(alert), []).append(alert)
    lines = []
    for cause, equal in causes.items():
        if len(equal) < _EQUAL:
            lines += [{"severity": alert["severity"], "cause": cause, "count": 1, "shown": [alert]} for alert in equal]
        else:
            shown = equal if cause == opened else equal[:_SHOWN]
            text = cause_words(equal)
            line = {"severity": equal[0]["severity"], "cause": cause, "count": len(equal), "shown": shown}
            lines.append({**line, "text": text, "equal": len(equal)})
    return lines


def _cause(alert: Mapping[str, Any]) -> str:
    """What alerts of one cause have in common, as a word for URLs."""
    said = "\n".join(str(alert.get(name, "")) for name in ("top_error", "last_error", "why", "by", "acknowledged"))
    return f"{alert['code']}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def cause_words(alerts: Sequence[Mapping[str, Any]]) -> str:
    """What many alerts of one cause say together."""
    first, count = alerts[0], f"{len(alerts):,}"

    def total(one: str, many: str, *names: str) -> str:
        return counted(sum(alert.get(name) or 0 for alert in alerts for name in names), one, many)

    error = first.get("top_error") or first.get("last_error")
    of_error = f": {shortened(error)}" if error else ""
    ready = total("job is", "jobs are", "ready")
    oldest = duration(max((alert.get("oldest_age") or 0 for alert in alerts), default=0))
    match first["code"]:
        case "no_consumer":
            return f"{count} topics have no consumer: {ready} ready, the oldest for {oldest}"
        case "behind":
            return f"{count} topics are behind: {ready} ready, the oldest for {oldest}"
        case "push_failing":
            return f"{count} push targets fail, and {ready} ready{of_error}"
        case "failing":
            return f"{total('attempt', 'attempts', 'released')} failed in {count} topics{of_error}"
        case "dying":
            return f"{total('job', 'jobs', 'dead')} died in {count} topics in the last hour{of_error}"
        case "late":
            return f"{total('job is', 'jobs are', 'jobs')} due and still delayed in {count} topics"
        case "topic_full":
            return f"{count} topics are full, or nearly full"
        case "paused":
            by = f" by {first['by']}" if first.get("by") else ""
            why = f" ({first['why']})" if first.get("why") else ""
            return f"{count} topics are paused{by}{why} and hold back {total('job', 'jobs', 'ready', 'due')}"
        case "schedules_missed":
            return f"{count} schedules missed {total('run', 'runs', 'missed')}"
        case "overload":
            due = total("job is", "jobs are", "due")
            return f"{due} due in {count} topics in the next hour, more than consumers handle"
        case "durability":
            return f"{count} topics ask for a durability that the store does not give ({first.get('why', 'unknown')})"
        case code:
            return f"{count} alerts of the kind {code.replace('_', ' ')}"


@pages.page("/console/acknowledge")
async def acknowledge_form(visit: Visit) -> Response:
    """The alerts of a cause, or one of them, with the form that acknowledges them."""
    return await _acknowledge_form(visit, visit.query)


async def _acknowledge_form(
    visit: Visit, fields: Mapping[str, str], problem: str | None = None, new: NewDueTime | None = None
) -> Response:
    alerts = await _alerts_of(visit, fields)
    return visit.render(
        "acknowledge.html",
        status=200 if problem is None else 422,
        here="now",
        alerts=alerts,
        line=lines_of(alerts, None)[0] if alerts else None,
        cause=fields.get("cause", ""),
        topic=fields.get("topic"),
        reason=fields.get("reason", ""),
        new=new,
        problem=problem,
    )


async def _alerts_of(visit: Visit, fields: Mapping[str, str], named: str = "alerts") -> list[dict[str, Any]]:
    """The alerts of the `cause`, with a `topic` only that of this one."""
    found = await visit.read(api_path("now"), limit=_ALERTS)
    cause, topic = fields.get("cause"), fields.get("topic")
    return [one for one in found.get(named, []) if _cause(one) == cause and topic in {None, one.get("topic")}]


@pages.action("/console/acknowledge")
async def acknowledge(visit: Visit) -> Response:
    """Acknowledge alerts until an end, once the page has shown which instant that is."""
    form = await visit.form()
    if not visit.may("admin"):
        raise ApiRefused(403, {"detail": "Your key can't acknowledge alerts."}, "admin")
    new = read_new_due_time(form, visit.now_ms)
    problem = new.problem
    if not form.get("reason", "").strip():
        problem = "Say why: others read it in place of the alert."
    elif new.is_past:
        problem = "The end must be in the future."
    if problem is not None or not new.is_seen:
        return await _acknowledge_form(visit, form, problem, new)
    done = await _acknowledge(visit, await _alerts_of(visit, form), form["reason"].strip(), new.at)
    text = f"Acknowledged {counted(done, 'alert')} until {new.at}."
    return visit.redirect("./", notice=text if done else None, problem=None if done else _NO_ALERT)


@pages.action("/console/acknowledge/end")
async def end_acknowledgement(visit: Visit) -> Response:
    """Let alerts that are acknowledged need somebody again."""
    alerts = await _alerts_of(visit, await visit.form(), "acknowledged")
    now = datetime.fromtimestamp((visit.now_ms or 0) / 1000, UTC).isoformat()
    done = await _acknowledge(visit, alerts, "ended", now)
    return visit.redirect("./", problem=None if done else _NO_ALERT)


async def _acknowledge(visit: Visit, alerts: Sequence[Mapping[str, Any]], reason: str, until: str | None) -> int:
    done = 0
    codes = {one["code"] for one in alerts}
    for code in codes:
        topics = sorted({one["topic"] for one in alerts if one["code"] == code and one.get("topic") is not None})
        call = {"code": code, "reason": reason, "until": until, **({"topics": topics} if topics else {})}
        done += (await visit.write("POST", api_path("now", "acknowledge"), call))["alerts"]
    return done


async def _read_series(visit: Visit) -> dict[str, Any]:
    """Six hours of lateness, and six hours of what comes due."""
    begin = _bucket_of_now(visit)
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


def _bucket_of_now(visit: Visit) -> datetime:
    """When the bucket of the forecast begins in which now is: so reads of some minutes are of the same period."""
    now_s = (visit.now_ms or 0) // 1000
    return datetime.fromtimestamp(now_s - now_s % _DUE_BUCKET_S, UTC)


@pages.page("/console/due")
async def due(visit: Visit) -> Response:
    """The topics whose jobs come due between two instants, which a bar of the chart on Now names, or somebody types."""
    wanted = read_filter(visit.query, visit.now_ms)
    begin = wanted.due_after or _bucket_of_now(visit).isoformat()
    query: dict[str, QueryValue] = {"from": begin, "to": wanted.due_before, "buckets": 1, "limit": _TOPICS_DUE}
    found, wrong = None, None
    if not wanted.problems:
        found, wrong = await read_filtered(visit, api_path("forecast"), **query)
    counts = [(topic["topic"], sum(topic["counts"])) for topic in found["topics"]] if found else []
    return visit.render(
        "due.html",
        here="now",
        wanted=wanted,
        found=found and without_now(found),
        topics=[one for one in counts if one[1]],
        wrong=wrong,
    )


_PARTS = {"attention": _read_attention, "series": _read_series, "topics": read_topics}
"""What the regions of the page show."""


@pages.page("/console")
async def console(visit: Visit) -> Response:
    """The values that people may type."""
    return visit.redirect("./")


@pages.page("/console/consumers")
async def consumers(visit: Visit) -> Response:
    """Consumers of the last minute and those that hold jobs, filtered by a part of their names and topics."""
    found = await visit.read(api_path("consumers"), limit=_CONSUMERS_READ)
    part = visit.query.get("q", "").strip().lower()
    matching = [one for one in found["consumers"] if part in _searched_text(one)]
    return visit.render(
        "consumers.html",
        here="consumers",
        found=found,
        shown=matching[:_CONSUMERS_SHOWN],
        matching=len(matching),
        waiting=sum(1 for one in found["consumers"] if one["waiting"]),
        held=sum(one["held"] or 0 for one in found["consumers"]) + found["nameless_held"],
        part=part,
        command=visit.curl("/topics/hello/pop?wait=30&consumer=me"),
    )


def _searched_text(consumer: Mapping[str, Any]) -> str:
    parts = [consumer["name"] or "", *consumer["topics"], *consumer["addresses"], *consumer["clients"]]
    return "\n".join(parts).lower()


@pages.page("/console/system")
async def system(visit: Visit) -> Response:
    """What the service runs on. A key that is not for all topics sees its own facts only."""
    found, relays = None, []
    if visit.sees("*"):
        found, listed = await asyncio.gather(visit.read(api_path("system")), visit.read(api_path("relays")))
        found, relays = without_now(found), listed["relays"]
    own = await visit.read(api_path("key"))
    return visit.render("system.html", here="system", system=found, relays=relays, own=own)


@pages.page("/console/system/audit")
async def audit_store(visit: Visit) -> Response:
    """The consistency check of the whole store."""
    found = await visit.read(api_path("audit"))
    return visit.render("audit.html", here="system", topic=None, found=found)


@pages.page("/console/topics/{topic}/audit")
async def audit_topic(visit: Visit, topic: str) -> Response:
    """The consistency check of a topic."""
    found = await visit.read(api_path("topics", topic, "audit"))
    return visit.render("audit.html", here="topics", topic=topic, found=found)
