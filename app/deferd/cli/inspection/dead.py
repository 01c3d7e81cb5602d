"""The command `dead`: dead jobs by error."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from deferd.cli.framework import output, topic_completion, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.options import connection_options, json_option
from deferd.cli.framework.output import Column

if TYPE_CHECKING:
    from deferd.client import DeadGroup

_COLUMNS = [
    Column("COUNT", right=True),
    Column("TOPIC"),
    Column("REASON"),
    Column("LAST"),
    Column("ERROR", cut=True),
    Column("SAMPLE", cut=True),
]


@command("deferd dead", "deferd dead 'mail.*' --since 2030-01-31T02:00Z", "deferd dead --json | jq .groups[0]")
@click.argument(
    "topics", metavar="[TOPIC]...", nargs=-1, help="names or patterns", shell_complete=topic_completion.complete_topic
)
@click.option("--since", type=values.instant, metavar="INSTANT", help="only jobs that died then or later")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most groups, up to 1000; default 100")
@click.option("--look-at", type=values.count_from_1, metavar="N", help="most jobs to read, up to 100000; default 5000")
@json_option("print JSON")
@connection_options
def dead(
    *,
    topics: tuple[str, ...],
    since: datetime | None,
    limit: int | None,
    look_at: int | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Show dead jobs by topic, reason and error: the largest groups first. Numbers and quoted texts of errors count as
    equal, and are shown as *.
    """
    with connection.open() as client:
        found = client.dead_errors(topics=topics or None, since=since, limit=limit, look_at=look_at)
    if as_json:
        output.json_line(found.fields)
        return
    if not found.groups:
        output.say_empty("no job is dead" if since is None else "no job has died since")
        return
    output.show_table(_COLUMNS, [_row(group) for group in found.groups])
    if not found.complete:
        output.complain(f"{found.looked_at:,} of {found.dead:,} dead jobs were read: --look-at reads more")


def _row(group: DeadGroup) -> list[str]:
    last_at = "-" if group.last_at is None else output.from_now(group.last_at)
    samples = ", ".join(group.samples[:1])
    return [output.number(group.count), group.topic, group.reason, last_at, group.error or "-", samples]
