"""Times that people type, in the zone that their form names."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from deferd.console.views.filters import read_filter
from deferd.console.views.typed_times import read_instant, read_length, read_new_due_time

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("typed", "instant"),
    [
        ("now", "2026-03-01T12:00:00.000Z"),
        ("+2h", "2026-03-01T14:00:00.000Z"),
        ("+2h30m", "2026-03-01T14:30:00.000Z"),
        ("+ 1d 2 h 3min 4s", "2026-03-02T14:03:04.000Z"),
        ("now - 30 min", "2026-03-01T11:30:00.000Z"),
        ("-1d12h", "2026-02-28T00:00:00.000Z"),
        ("19:00", "2026-03-01T18:00:00.000Z"),
        ("9:00", "2026-03-01T08:00:00.000Z"),
        ("19:00 UTC", "2026-03-01T19:00:00.000Z"),
        ("tomorrow 9:00", "2026-03-02T08:00:00.000Z"),
        ("Tomorrow 09:00:30", "2026-03-02T08:00:30.000Z"),
        ("yesterday", "2026-02-27T23:00:00.000Z"),
        ("2030-01-31", "2030-01-30T23:00:00.000Z"),
        ("2030-01-31 09:30", "2030-01-31T08:30:00.000Z"),
        ("2030-07-31 9:30", "2030-07-31T07:30:00.000Z"),
        ("2030-01-31 09:30 UTC", "2030-01-31T09:30:00.000Z"),
        ("2030-01-31T09:30:00.250Z", "2030-01-31T09:30:00.250Z"),
        ("2030-01-31T09:30-05:00", "2030-01-31T14:30:00.000Z"),
        ("2030-01-31 09:30 +0530", "2030-01-31T04:00:00.000Z"),
        ("2031-03-30 02:30", "2031-03-30T01:00:00.000Z"),  # clocks skip it
        ("2031-10-26 02:30", "2031-10-26T00:30:00.000Z"),  # clocks show it twice
    ],
)
def test_instants_are_typed_as_people_think_in_the_zone_of_their_form(typed: str, instant: str) -> None:
    assert read_instant(typed, NOW, "Europe/Berlin") == instant


def test_a_day_is_that_of_the_zone() -> None:
    late = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
    assert read_instant("9:00", late, "Europe/Berlin") == "2026-03-02T08:00:00.000Z"
    assert read_instant("9:00", late) == "2026-03-01T09:00:00.000Z"


@pytest.mark.parametrize(
    "typed",
    ["", "soon", "+2", "2h", "31.1.2030", "+999999999w", "24:30", "9", "tomorow 9:00", "2030-13-01", "Z", "+1h-1m"],
)
def test_other_instants_are_refused_with_examples(typed: str) -> None:
    with pytest.raises(ValueError, match=r"an instant, such as 19:00, tomorrow 9:00, .*\+2h30m"):
        read_instant(typed, NOW)


def test_an_unknown_zone_is_refused_rather_than_read_as_utc() -> None:
    for zone in ("Mars/Phobos", "../etc/passwd", ""):
        with pytest.raises(ValueError, match="known time zone"):
            read_instant("19:00", NOW, zone)
    wanted = read_filter({"due_after": "19:00", "zone": "Mars/Phobos"}, NOW_MS)
    assert wanted.problems == {"due_after": "in a known time zone, which Mars/Phobos is not"}


def test_a_new_due_time_counts_only_as_it_was_shown() -> None:
    first = read_new_due_time({"when": "+2h", "when_zone": "Europe/Berlin"}, NOW_MS)
    assert (first.at, first.is_seen, first.is_past) == ("2026-03-01T14:00:00.000Z", False, False)
    shown = {"when": "+2h", "when_zone": "Europe/Berlin", "seen": "+2h Europe/Berlin", "seen_at": first.at or ""}
    later_ms = NOW_MS + 60_000
    assert read_new_due_time(shown, later_ms)[2:5] == (first.at, None, True)
    for change in ({"when": "+3h"}, {"when_zone": "UTC"}):
        changed = read_new_due_time({**shown, **change}, later_ms)
        assert not changed.is_seen
    for never in ("soon", "0001-01-01T00:00:00+14:00"):
        assert read_new_due_time({**shown, "seen_at": never}, NOW_MS).at is None
    assert read_new_due_time({"when": "9:00"}, NOW_MS).is_past
    refused = read_new_due_time({"when": "soon"}, NOW_MS)
    assert (refused.when, refused.at) == ("soon", None)
    assert (refused.problem or "").startswith("Say when: it must be an instant, such as")


@pytest.mark.parametrize(
    ("text", "length_s"), [("30m", 1800.0), ("+2h30m", 9000.0), (" -1d ", -86_400.0), ("1 h 5 min", 3900.0)]
)
def test_a_length_of_time_is_read(text: str, length_s: float) -> None:
    assert read_length(text) == length_s


@pytest.mark.parametrize("text", ["", "5", "0m", "now+5m", "19:00", "--1h", "+"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a length of time, such as 30m"):
        read_length(text)


def test_many_jobs_move_by_a_length_of_time_and_are_spread() -> None:
    first = read_new_due_time({"by": "-30m", "spread": "1h"}, NOW_MS)
    assert (first.options(), first.is_read, first.is_seen) == ({"by": -1800.0, "spread": 3600.0}, True, False)
    shown = {"by": "-30m", "spread": "1h", "seen": first.seen}
    assert read_new_due_time(shown, NOW_MS).is_seen
    for change in ({"by": "30m"}, {"spread": ""}, {"spread": "2h"}, {"by": "", "when": "-30m"}):
        assert not read_new_due_time({**shown, **change}, NOW_MS).is_seen
    at = read_new_due_time({"when": "+1h", "spread": "10m"}, NOW_MS)
    assert at.options() == {"run_at": "2026-03-01T13:00:00.000Z", "spread": 600.0}
    for given, problem in (
        ({"when": "+1h", "by": "1h"}, "not both"),
        ({"by": "soon"}, "Say by how much each job moves"),
        ({"by": "1h", "spread": "2d"}, "at most a day"),
        ({"by": "1h", "spread": "-1m"}, "more than 0 s"),
        ({"spread": "1h"}, "Say when"),
    ):
        refused = read_new_due_time(given, NOW_MS)
        assert (refused.is_read, problem in (refused.problem or "")) == (False, True), given
