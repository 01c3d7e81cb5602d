"""What needs a person, as lines of text: for `deferd now` and `deferd top`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from deferd.cli.framework import output

if TYPE_CHECKING:
    from deferd.client import Now

CRITICAL = "critical"


def quiet_line(now: Now) -> str:
    """``All quiet. Next: 14:02:16Z (in 3m 4s), 37 jobs.``"""
    return f"All quiet. {next_line(now)}"


def next_line(now: Now) -> str:
    """A sentence about what is due next."""
    at, jobs = now.next_due_at, now.next_due_jobs
    if at is None:
        return "No job is delayed."
    is_soon = at - datetime.now(UTC) < timedelta(hours=12)
    when = at.astimezone(UTC).strftime("%H:%M:%SZ" if is_soon else "%Y-%m-%d %H:%M:%SZ")
    return f"Next: {when} ({output.from_now(at)}), {output.count(jobs, 'job')}."


def headline(count: int) -> str:
    """``2 things need you:``"""
    return "1 thing needs you:" if count == 1 else f"{count:,} things need you:"
