"""The commands for jobs that are counted together: `batches`, `batch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import client_command
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Batch, Client


def _state(batch: Batch) -> str:
    if batch.completed_at is not None:
        return f"completed {output.when(batch.completed_at)}"
    return "sealed" if batch.sealed else "open"


_CELLS: Cells[Batch] = {
    Column("NAME"): lambda batch: batch.name,
    Column("STATE"): _state,
    Column("JOBS", right=True): lambda batch: output.number(batch.joined),
    Column("LIVE", right=True): lambda batch: output.number(batch.live),
    Column("FINISHED", right=True): lambda batch: output.number(batch.finished),
    Column("DEAD", right=True): lambda batch: output.number(batch.dead),
    Column("CANCELLED", right=True): lambda batch: output.number(batch.cancelled),
    Column("PUTS INTO"): lambda batch: batch.on_end.topic,
}


@client_command("deferd batches", "deferd batches --json | jq -r .name")
def batches(client: Client, as_json: bool) -> None:
    """List all batches. A batch counts its jobs, and puts one job when it is sealed and all of them have ended."""
    output.json_or_table(client.batches(), _CELLS, "there is no batch yet", as_json=as_json)


@client_command(
    "deferd batch import-42 --on-end imports.done",
    "deferd put parse '\"part-1\"' --batch import-42",
    "deferd batch import-42 --seal",
    "deferd batch import-42 --delete",
)
@click.argument("name", help="its name")
@click.option(
    "--on-end",
    type=values.on_end,
    metavar="JSON|TOPIC",
    help="the job that it puts: a topic, or JSON with topic and id; a new batch needs it",
)
@click.option("--expect", type=values.count_from_1, metavar="N", help="it seals itself when it has so many jobs")
@click.option("--seal", is_flag=True, help="it takes no more jobs")
@click.option("--delete", is_flag=True, help="cancel its jobs and delete it; it puts no job")
@click.option("--refuse-reserved", is_flag=True, help="with --delete: leave jobs that a consumer holds")
def batch(
    *,
    name: str,
    on_end: Any,
    expect: int | None,
    seal: bool,
    delete: bool,
    refuse_reserved: bool,
    client: Client,
    as_json: bool,
) -> None:
    """Show a batch with its counts. --on-end, --expect and --seal create, change or seal it; --delete cancels its jobs
    and deletes it.
    """
    changes = on_end is not None or expect is not None or seal
    if delete and changes:
        raise UsageError("--delete excludes --on-end, --expect and --seal")
    if refuse_reserved and not delete:
        raise UsageError("--refuse-reserved needs --delete")
    if delete:
        cancelled = client.delete_batch(name, if_reserved="refuse" if refuse_reserved else "cancel")
        text = f"{name} deleted, {output.count(cancelled, 'job')} cancelled"
        output.json_or_line({"name": name, "cancelled": cancelled, "deleted": True}, text, as_json=as_json)
        return
    shown = client.set_batch(name, on_end=on_end, expect=expect, seal=seal) if changes else client.batch(name)
    facts = [
        ("batch", shown.name),
        ("state", _state(shown)),
        ("puts", output.on_end(shown.on_end.fields)),
        *([] if shown.expect is None else [("expects", output.number(shown.expect))]),
        ("jobs", output.number(shown.joined)),
        ("live", output.number(shown.live)),
        *((name, output.number(getattr(shown, name))) for name in ("finished", "dead", "cancelled")),
        ("created", output.when(shown.created_at)),
    ]
    output.json_or_facts(shown.fields, facts, as_json=as_json)
