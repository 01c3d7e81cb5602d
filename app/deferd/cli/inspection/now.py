"""The command `now`: what needs a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.options import client_command, topics_argument
from deferd.cli.inspection import alert_lines

if TYPE_CHECKING:
    from deferd.client import Client


@client_command("deferd now", "deferd now 'mail.*'", "deferd now --critical || page-somebody", json="print JSON")
@topics_argument
@click.option("--critical", is_flag=True, help="only critical alerts")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most alerts, up to 1000; default 100")
def now(topics: tuple[str, ...], critical: bool, limit: int | None, client: Client, as_json: bool) -> int:
    """Show what needs a person, the most urgent first, or that all is quiet and what is due next. The exit code is 6
    when something needs a person.
    """
    found = client.now(topics=topics or None, limit=limit)
    alerts = [alert for alert in found.alerts if not critical or alert.severity == alert_lines.CRITICAL]
    if as_json:
        output.json_line({**found.fields, "alerts": [alert.fields for alert in alerts]})
    elif alerts:
        left_out = 0 if critical else int(found.fields.get("left_out", 0))
        output.line(alert_lines.headline(len(alerts) + left_out))
        for alert in alerts:
            output.line(f"  {alert.severity:<8}  {output.printable(alert.text)}")
        if left_out:
            output.line(f"  and {left_out:,} more; --limit shows them")
        output.line(alert_lines.next_line(found))
    else:
        output.line(alert_lines.quiet_line(found))
    if not found.complete:
        output.complain("not all topics were read: alerts may be missing")
    return exit_codes.FINDINGS if alerts else exit_codes.DONE
