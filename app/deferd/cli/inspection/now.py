"""The command `now`: what needs a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.options import client_command, topics_argument

if TYPE_CHECKING:
    from deferd.client import Client, Now

_CRITICAL = "critical"


@client_command("deferd now", "deferd now 'mail.*'", "deferd now --critical || page-somebody", json="print JSON")
@topics_argument
@click.option("--critical", is_flag=True, help="only critical alerts")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most alerts, up to 1000; default 100")
def now(topics: tuple[str, ...], critical: bool, limit: int | None, client: Client, as_json: bool) -> int:
    """Show what needs a person, the most urgent first, or that all is quiet and what is due next. The exit code is 6
    when something needs a person.
    """
    found = client.now(topics=topics or None, limit=limit)
    alerts = [alert for alert in found.alerts if not critical or alert.severity == _CRITICAL]
    if as_json:
        output.json_line({**found.fields, "alerts": [alert.fields for alert in alerts]})
    elif alerts:
        left_out = 0 if critical else int(found.fields.get("left_out", 0))
        output.line(_headline(len(alerts) + left_out))
        for alert in alerts:
            output.line(f"  {alert.severity:<8}  {output.printable(alert.text)}")
        if left_out:
            output.line(f"  and {left_out:,} more; --limit shows them")
        output.line(_next_line(found))
    else:
        output.line(f"All quiet. {_next_line(found)}")
    if not found.complete:
        output.complain("not all topics were read: alerts may be missing")
    return exit_codes.FINDINGS if alerts else exit_codes.DONE


def _headline(count: int) -> str:
    return "1 thing needs you:" if count == 1 else f"{count:,} things need you:"


def _next_line(now: Now) -> str:
    """What is due next: ``Next: 14:02:16Z (in 3m 4s), 37 jobs.``"""
    at, jobs = now.next_due_at, now.next_due_jobs
    if at is None:
        return "No job is delayed."
    is_soon = at - datetime.now(UTC) < timedelta(hours=12)
    when = at.astimezone(UTC).strftime("%H:%M:%SZ" if is_soon else "%Y-%m-%d %H:%M:%SZ")
    return f"Next: {when} ({output.from_now(at)}), {output.count(jobs, 'job')}."
