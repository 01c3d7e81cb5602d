"""The command `activity`: what people and keys changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.options import client_command, topics_argument
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Change, Client

_LIMIT_DEFAULT = 100


def _times(change: Change) -> str:
    return "" if change.times == 1 else f" ({change.times} times)"


def _what(change: Change) -> str:
    what = " ".join(text for text in (change.subject, change.filter) if text)
    return (what or "-") + ("" if change.fields["outcome"] == "done" else " (outcome unknown)")


_CELLS: Cells[Change] = {
    Column("AT"): lambda change: output.from_now(change.at),
    Column("BY"): lambda change: change.by or "-",
    Column("VIA"): lambda change: change.via,
    Column("OPERATION"): lambda change: change.operation + _times(change),
    Column("TOPIC"): lambda change: change.topic or "-",
    Column("JOBS", right=True): lambda change: output.number(change.count),
    Column("WHAT", cut=True): _what,
}


@client_command("deferd activity", "deferd activity 'orders.*' --json | jq -r 'select(.via == \"console\").by'")
@topics_argument
@click.option("--limit", type=values.count_from_1, metavar="N", help="most changes, up to 10000; default 100")
def activity(topics: tuple[str, ...], limit: int | None, client: Client, as_json: bool) -> None:
    """List what people and keys changed within 30 days, the newest first: settings, pauses, redrives, purges,
    schedules, calls on many jobs, and jobs changed in the console or by commands.
    """
    found = list(client.activity(topics=topics or None, limit=limit or _LIMIT_DEFAULT))
    output.json_or_table(found, _CELLS, "nobody has changed anything", as_json=as_json)
