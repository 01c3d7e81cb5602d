"""The command `consumers`: who consumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.options import connection_options, json_option
from deferd.cli.framework.output import Column

if TYPE_CHECKING:
    from datetime import datetime

    from deferd.client import Consumer

_COLUMNS = [
    Column("NAME"),
    Column("ADDRESS"),
    Column("HELD", right=True),
    Column("LEASE ENDS"),
    Column("WAITING", right=True),
    Column("SEEN"),
    Column("TOPICS", cut=True),
    Column("CLIENT", cut=True),
]


@command("deferd consumers", "deferd consumers --json | jq -r 'select(.held > 100).name'")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most consumers, up to 1000; default 100")
@json_option()
@connection_options
def consumers(limit: int | None, as_json: bool, connection: Connection) -> None:
    """List who has popped within a minute, in all processes of the service, and who holds jobs."""
    with connection.open() as client:
        found = client.consumers(limit=limit)
    if as_json:
        for consumer in found:
            output.json_line(consumer.fields)
    elif found:
        output.show_table(_COLUMNS, [_row(consumer) for consumer in found])
    else:
        output.say_empty("nobody has popped within a minute, or holds jobs")


def _row(consumer: Consumer) -> list[str]:
    return [
        consumer.name or "-",
        ", ".join(consumer.addresses) or "-",
        output.number(consumer.held),
        _from_now(consumer.lease_ends_at),
        output.number(consumer.waiting),
        _from_now(consumer.last_seen_at),
        ", ".join(consumer.topics),
        ", ".join(consumer.clients) or "-",
    ]


def _from_now(instant: datetime | None) -> str:
    return "-" if instant is None else output.from_now(instant)
