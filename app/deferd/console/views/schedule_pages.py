"""Schedules with their next runs and the outcome of the last one, and calendars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import api_path, page_path
from deferd.console.rendering import duration
from deferd.console.views.filters import read_filtered
from deferd.console.visit import PageList, Visit
from deferd.contract.counted import counted

pages = PageList()
_SHOWN = 100
_PREVIEWED = 12
_PAUSED = {"yes": True, "no": False}
_NO_RUNS: dict[str, Any] = {"runs": [], "tzdata": ""}
_EXAMPLE = {"topic": "hello", "cron": "*/5 * * * *", "job": {"body": {"text": "hi"}}}


@dataclass(frozen=True, slots=True)
class PreviewedRun:
    """A run to come: `at` in the zone of its schedule, and whether the zone's clocks change before it."""

    at: datetime
    utc: str
    clocks_change: bool


WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@pages.page("/console/schedules")
async def schedules(visit: Visit) -> Response:
    """Schedules page by page, and all calendars."""
    found, wrong = await read_filtered(
        visit,
        api_path("schedules"),
        prefix=visit.query.get("prefix", "").strip() or None,
        topic=visit.query.get("topic") or None,
        paused=_PAUSED.get(visit.query.get("paused", "")),
        cursor=visit.query.get("cursor"),
        limit=_SHOWN,
        jobs=False,
    )
    calendars = await visit.read(api_path("calendars")) if visit.fragment is None else {"calendars": []}
    return visit.render(
        "schedules.html",
        here="schedules",
        found=found,
        wrong=wrong,
        rules={one["name"]: rule_words(one) for one in found["schedules"]} if found else {},
        calendars={one["name"]: [window_words(window) for window in one["windows"]] for one in calendars["calendars"]},
        command=visit.curl("/schedules/every-five-minutes", method="PUT", body=_EXAMPLE),
    )


@pages.page("/console/schedules/{name}")
async def schedule(visit: Visit, name: str) -> Response:
    """One schedule."""
    found = await visit.read(api_path("schedules", name))
    of_runs, of_facts = visit.wants("runs"), visit.wants("facts")
    preview = await visit.read(api_path("schedules", name, "preview"), count=_PREVIEWED) if of_runs else _NO_RUNS
    states = [
        await _state_of(visit, found["topic"], found[field]) if of_facts else None for field in ("next_job", "last_job")
    ]
    return visit.render(
        "schedule.html",
        here="schedules",
        found=found,
        next_job=states[0],
        last_job=states[1],
        runs=previewed_runs(preview),
        tzdata=preview["tzdata"],
        rule=rule_words(found),
        window=window_words(found["window"]) if "window" in found else None,
    )


async def _state_of(visit: Visit, topic: str, job_id: str | None) -> str | None:
    """The state of a run's job; None when it is not there any more, or the key may not see it."""
    if job_id is None:
        return None
    job = await visit.read_or_none({404}, api_path("jobs", topic, job_id))
    return None if job is None else str(job["state"])


@pages.action("/console/schedules/{name}/pause")
async def pause(visit: Visit, name: str) -> Response:
    """Cancel the next run, and make no others."""
    await visit.write("POST", api_path("schedules", name, "pause"))
    return visit.redirect(page_path("console", "schedules", name), notice=f"Paused {name}.")


@pages.action("/console/schedules/{name}/resume")
async def resume(visit: Visit, name: str) -> Response:
    """Go on with the next run from now."""
    await visit.write("POST", api_path("schedules", name, "resume"))
    return visit.redirect(page_path("console", "schedules", name), notice=f"Resumed {name}.")


@pages.action("/console/schedules/{name}/run")
async def run(visit: Visit, name: str) -> Response:
    """Put its job now, in addition to its runs."""
    put = await visit.write("POST", api_path("schedules", name, "run"))
    return visit.redirect(page_path("console", "schedules", name), notice=f"Put {put['id']}, due now.")


@pages.action("/console/schedules/{name}/delete")
async def delete(visit: Visit, name: str) -> Response:
    """Delete it, if its name was typed."""
    if (await visit.form()).get("typed", "").strip() != visit.to_confirm(name):
        problem = f"Nothing was deleted: type {visit.to_confirm(name)} to delete it."
        return visit.redirect(page_path("console", "schedules", name), problem=problem)
    await visit.write("DELETE", api_path("schedules", name))
    return visit.redirect("console/schedules", notice=f"Deleted {name} and cancelled its next run.")


def rule_words(schedule: Mapping[str, Any]) -> str:
    """When a schedule runs: `every 5 min`, `at 09:00 and 17:30 on Mon-Fri`, or its cron expression."""
    if "cron" in schedule:
        return f"cron {schedule['cron']}"
    if "every" in schedule:
        every_s = schedule["every"]
        return f"every {every_s} s" if every_s < 60 else f"every {duration(every_s)}"
    times, days = " and ".join(schedule["at"]), schedule.get("days")
    return f"at {times}" + (f" on {days_words(days)}" if days else " every day")


def days_words(days: Iterable[str]) -> str:
    """Days of the week, three or more in a row as a range: `Mon-Fri, Sun`."""
    places = sorted(WEEK.index(day) for day in days)
    ranges: list[list[int]] = []
    for place in places:
        if ranges and ranges[-1][-1] == place - 1:
            ranges[-1].append(place)
        else:
            ranges.append([place])
    names = [[WEEK[place].capitalize() for place in one] for one in ranges]
    return ", ".join(f"{one[0]}-{one[-1]}" if len(one) > 2 else ", ".join(one) for one in names)


def window_words(window: Any) -> str:
    """Opening hours: one window, a list of them, or the name of a calendar."""
    if isinstance(window, str):
        return f"calendar {window}"
    if isinstance(window, list):
        return "; ".join(map(window_words, window))
    opens, closes = window.get("from", "00:00"), window.get("to", "24:00")
    hours = "all day" if (opens, closes) == ("00:00", "24:00") else f"{opens} to {closes}"
    days = f"{days_words(window['days'])} " if window.get("days") else ""
    closed = window.get("except") or []
    but = f", closed on {counted(len(closed), 'date')}" if closed else ""
    return f"{days}{hours}, {window.get('zone', 'UTC')}{but}"


def previewed_runs(preview: Mapping[str, Any]) -> list[PreviewedRun]:
    """The runs of a preview, with the changes of the clocks between them."""
    runs = [(datetime.fromisoformat(run["at"]), run["utc"]) for run in preview["runs"]]
    offsets = [at.utcoffset() for at, _ in runs]
    before = [*offsets[:1], *offsets]
    return [PreviewedRun(*run, offset != last) for run, offset, last in zip(runs, offsets, before, strict=False)]
