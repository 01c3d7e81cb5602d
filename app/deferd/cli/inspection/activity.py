"""The command `activity`: what people and keys changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deferd.cli.framework import output, topic_completion, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.options import connection_options, json_option
from deferd.cli.framework.output import Column

if TYPE_CHECKING:
    from deferd.client import Change

_LIMIT_DEFAULT = 100
_COLUMNS = [
    Column("AT"),
    Column("BY"),
    Column("VIA"),
    Column("OPERATION"),
    Column("TOPIC"),
    Column("JOBS", right=True),
    Column("WHAT", cut=True),
]


@command("deferd activity", "deferd activity 'orders.*' --json | jq -r 'select(.via == \"console\").by'")
@click.argument(
    "topics", metavar="[TOPIC]...", nargs=-1, help="names or patterns", shell_complete=topic_completion.complete_topic
)
@click.option("--limit", type=values.count_from_1, metavar="N", help="most changes, up to 10000; default 100")
@json_option()
@connection_options
def activity(*, topics: tuple[str, ...], limit: int | None, as_json: bool, connection: Connection) -> None:
    """List what people and keys changed within 30 days, the newest first: settings, pauses, redrives, purges,
    schedules, calls on many jobs, and jobs changed in the console or by commands.
    """
    with connection.open() as client:
        found = list(client.activity(topics=topics or None, limit=limit or _LIMIT_DEFAULT))
    if as_json:
        for change in found:
            output.json_line(change.fields)
    elif found:
        output.show_table(_COLUMNS, [_row(change) for change in found])
    else:
        output.say_empty("nobody has changed anything")


def _row(change: Change) -> list[str]:
    doubt = "" if change.fields["outcome"] == "done" else " (outcome unknown)"
    times = "" if change.times == 1 else f" ({change.times} times)"
    what = " ".join(text for text in (change.subject, change.filter) if text)
    return [
        output.from_now(change.at),
        change.by or "-",
        change.via,
        change.operation + times,
        change.topic or "-",
        "-" if change.count is None else output.number(change.count),
        (what or "-") + doubt,
    ]
