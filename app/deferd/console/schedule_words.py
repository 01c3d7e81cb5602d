"""Rules of schedules and opening hours in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deferd.console.rendering import duration

_WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class PreviewedRun:
    """A run to come: `at` in the zone of its schedule, and whether the zone's clocks change before it."""

    at: datetime
    utc: str
    clocks_change: bool


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
    places = sorted(_WEEK.index(day) for day in days)
    ranges: list[list[int]] = []
    for place in places:
        if ranges and ranges[-1][-1] == place - 1:
            ranges[-1].append(place)
        else:
            ranges.append([place])
    names = [[_WEEK[place].capitalize() for place in one] for one in ranges]
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
    but = f", closed on {len(closed)} {'date' if len(closed) == 1 else 'dates'}" if closed else ""
    return f"{days}{hours}, {window.get('zone', 'UTC')}{but}"


def previewed_runs(preview: Mapping[str, Any]) -> list[PreviewedRun]:
    """The runs of a preview, with the changes of the clocks between them."""
    runs = [(datetime.fromisoformat(run["at"]), run["utc"]) for run in preview["runs"]]
    offsets = [at.utcoffset() for at, _ in runs]
    before = [*offsets[:1], *offsets]
    return [PreviewedRun(*run, offset != last) for run, offset, last in zip(runs, offsets, before, strict=False)]
