"""The command `consumers`: who consumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.options import client_command
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Client, Consumer

_CELLS: Cells[Consumer] = {
    Column("NAME"): lambda consumer: consumer.name or "-",
    Column("ADDRESS"): lambda consumer: ", ".join(consumer.addresses) or "-",
    Column("HELD", right=True): lambda consumer: output.number(consumer.held),
    Column("LEASE ENDS"): lambda consumer: output.from_now(consumer.lease_ends_at),
    Column("WAITING", right=True): lambda consumer: output.number(consumer.waiting),
    Column("SEEN"): lambda consumer: output.from_now(consumer.last_seen_at),
    Column("TOPICS", cut=True): lambda consumer: ", ".join(consumer.topics),
    Column("CLIENT", cut=True): lambda consumer: ", ".join(consumer.clients) or "-",
}


@client_command("deferd consumers", "deferd consumers --json | jq -r 'select(.held > 100).name'")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most consumers, up to 1000; default 100")
def consumers(limit: int | None, client: Client, as_json: bool) -> None:
    """List who has popped within a minute, in all processes of the service, and who holds jobs."""
    found = client.consumers(limit=limit)
    output.json_or_table(found, _CELLS, "nobody has popped within a minute, or holds jobs", as_json=as_json)
