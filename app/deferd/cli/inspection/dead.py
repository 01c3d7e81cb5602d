"""The command `dead`: dead jobs by error."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.options import client_command, topics_argument
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Client, DeadGroup

_CELLS: Cells[DeadGroup] = {
    Column("COUNT", right=True): lambda group: output.number(group.count),
    Column("TOPIC"): lambda group: group.topic,
    Column("REASON"): lambda group: group.reason,
    Column("LAST"): lambda group: output.from_now(group.last_at),
    Column("ERROR", cut=True): lambda group: group.error or "-",
    Column("SAMPLE", cut=True): lambda group: ", ".join(group.samples[:1]),
}


@client_command(
    "deferd dead",
    "deferd dead 'mail.*' --since 2030-01-31T02:00Z",
    "deferd dead --json | jq .groups[0]",
    json="print JSON",
)
@topics_argument
@click.option("--since", type=values.instant, metavar="INSTANT", help="only jobs that died then or later")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most groups, up to 1000; default 100")
@click.option("--look-at", type=values.count_from_1, metavar="N", help="most jobs to read, up to 100000; default 5000")
def dead(topics: tuple[str, ...], since: datetime | None, client: Client, as_json: bool, **limits: Any) -> None:
    """Show dead jobs by topic, reason and error: the largest groups first. Numbers and quoted texts of errors count as
    equal, and are shown as *.
    """
    found = client.dead_errors(topics=topics or None, since=since, **limits)
    if as_json:
        output.json_line(found.fields)
        return
    empty = "no job is dead" if since is None else "no job has died since"
    output.json_or_table(found.groups, _CELLS, empty, as_json=False)
    if found.groups and not found.complete:
        output.complain(f"{found.looked_at:,} of {found.dead:,} dead jobs were read: --look-at reads more")
