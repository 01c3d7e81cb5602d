"""What needs a person, in the terminal."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from deferd.cli.inspection import alert_lines
from deferd.cli.inspection.top_snapshot import Snapshot
from deferd.cli.inspection.top_view import draw
from deferd.client import Alert, Now


def now(*alerts: tuple[str, str], next_due_at: datetime | None = None, jobs: int = 0, left_out: int = 0) -> Now:
    return Now(
        now=datetime.now(UTC),
        alerts=[Alert(severity=severity, code="behind", text=text) for severity, text in alerts],
        left_out=left_out,
        next_due_at=next_due_at,
        next_due_jobs=jobs,
        topics_looked_at=1,
        complete=True,
    )


def drawn(found: Now | None, height: int = 24, error: str | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=60, color_system=None)
    console.print(draw(Snapshot([], [], now=found), where="", sort="busy", width=60, height=height, error=error))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_quiet_says_what_is_due_next() -> None:
    at = datetime.now(UTC) + timedelta(seconds=100, milliseconds=500)
    line = alert_lines.quiet_line(now(next_due_at=at, jobs=1037))
    assert line == f"All quiet. Next: {at:%H:%M:%SZ} (in 1m 40s), 1,037 jobs."
    assert alert_lines.quiet_line(now()) == "All quiet. No job is delayed."
    later = datetime.now(UTC) + timedelta(days=3, seconds=0.5)
    assert f"{later:%Y-%m-%d %H:%M:%SZ} (in 3d), 1 job." in alert_lines.next_line(now(next_due_at=later, jobs=1))


@pytest.mark.parametrize(("count", "text"), [(1, "1 thing needs you:"), (1200, "1,200 things need you:")])
def test_the_headline_counts(count: int, text: str) -> None:
    assert alert_lines.headline(count) == text


def test_top_has_the_alerts_above_the_table() -> None:
    lines = drawn(now(("critical", "a: 5 ready"), ("warning", "b: \x1b[31mpaused")))
    assert lines[1:3] == ["a: 5 ready", "b: \\x1b[31mpaused"]
    assert lines[3].startswith("TOPIC")


def test_top_leaves_room_for_the_table() -> None:
    many = [("critical", f"t{number}: {'x' * 100}") for number in range(30)]
    lines = drawn(now(*many, left_out=70), height=24)
    assert [line[:3] for line in lines[1:6]] == ["t0:", "t1:", "t2:", "t3:", "t4:"]
    assert lines[6] == "and 95 more: deferd now"
    assert lines[7].startswith("TOPIC")
    assert max(map(len, lines)) <= 60
    assert drawn(now(*many), height=4)[2] == "and 29 more: deferd now"


def test_top_is_quiet_or_does_not_know() -> None:
    assert drawn(now())[1] == "All quiet. No job is delayed."
    assert drawn(None)[1].startswith("TOPIC")
    assert not any("quiet" in line for line in drawn(now(), error="gone"))
