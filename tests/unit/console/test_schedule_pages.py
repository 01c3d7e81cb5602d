"""Rules of schedules in words."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.console.views.schedule_pages import days_words, previewed_runs, rule_words, window_words


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"cron": "*/5 * * * *"}, "cron */5 * * * *"),
        ({"every": 2}, "every 2 s"),
        ({"every": 0.5}, "every 0.5 s"),
        ({"every": 5400}, "every 1 h 30 min"),
        ({"at": ["09:00"]}, "at 09:00 every day"),
        ({"at": ["09:00", "17:30"], "days": ["mon", "tue", "wed", "thu", "fri"]}, "at 09:00 and 17:30 on Mon-Fri"),
    ],
)
def test_the_rule_of_a_schedule(schedule: dict[str, Any], words: str) -> None:
    assert rule_words(schedule) == words


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (["sun", "mon", "tue", "wed"], "Mon-Wed, Sun"),
        (["sat", "sun"], "Sat, Sun"),
        (["wed"], "Wed"),
        (["mon", "wed", "thu", "fri"], "Mon, Wed-Fri"),
    ],
)
def test_days_in_a_row_are_a_range(days: list[str], words: str) -> None:
    assert days_words(days) == words


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ("office", "calendar office"),
        ({"from": "22:00", "to": "06:00", "zone": "America/New_York"}, "22:00 to 06:00, America/New_York"),
        ({"days": ["sat", "sun"]}, "Sat, Sun all day, UTC"),
        ({"to": "12:00", "except": ["2030-12-24"]}, "00:00 to 12:00, UTC, closed on 1 date"),
        ([{"to": "12:00"}, {"from": "13:00"}], "00:00 to 12:00, UTC; 13:00 to 24:00, UTC"),
    ],
)
def test_opening_hours(window: Any, words: str) -> None:
    assert window_words(window) == words


def test_a_run_says_when_the_clocks_have_changed_before_it() -> None:
    local = ["2031-03-29T03:30:00+01:00", "2031-03-30T03:30:00+02:00", "2031-03-31T03:30:00+02:00"]
    runs = previewed_runs({"runs": [{"at": at, "utc": "2031-03-29T02:30:00Z"} for at in local]})

    assert [run.clocks_change for run in runs] == [False, True, False]
    assert previewed_runs({"runs": []}) == []
