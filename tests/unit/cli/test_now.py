"""What is due next, as `deferd now` says it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deferd.cli.inspection.now import _calm, _headline, _next_line
from deferd.client import Now


def now(next_due_at: datetime | None = None, jobs: int = 0, *, complete: bool = True) -> Now:
    return Now(
        now=datetime.now(UTC),
        alerts=[],
        left_out=0,
        next_due_at=next_due_at,
        next_due_jobs=jobs,
        topics_looked_at=1,
        complete=complete,
    )


def test_the_next_due_time_has_a_date_when_it_is_far_away() -> None:
    at = datetime.now(UTC) + timedelta(seconds=100, milliseconds=500)
    assert _next_line(now(at, jobs=1037)) == f"Next: {at:%H:%M:%SZ} (in 1m 40s), 1,037 jobs."
    assert _next_line(now()) == "No job is delayed."
    assert _next_line(now(complete=False)) == "What is due next is not known."
    later = datetime.now(UTC) + timedelta(days=3, seconds=0.5)
    assert f"{later:%Y-%m-%d %H:%M:%SZ} (in 3d), 1 job." in _next_line(now(later, jobs=1))


def test_all_is_quiet_only_if_all_was_read() -> None:
    assert _calm(now()) == "All quiet."
    assert _calm(now(complete=False)) == "No alerts so far."


@pytest.mark.parametrize(("count", "text"), [(1, "1 thing needs you:"), (1200, "1,200 things need you:")])
def test_the_headline_counts(count: int, text: str) -> None:
    assert _headline(count) == text
