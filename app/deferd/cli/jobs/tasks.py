"""The command `tasks`, and the output of all commands on many jobs: the task that has begun, or what would be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import client_command
from deferd.cli.framework.output import Cells, Column
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from deferd.client import Client, Preview, Task

_CELLS: Cells[Task] = {
    Column("ID"): lambda task: task.id,
    Column("KIND"): lambda task: task.kind,
    Column("TOPIC"): lambda task: task.topic or "-",
    Column("STATE"): lambda task: task.state,
    Column("DONE", right=True): lambda task: output.number(task.done),
    Column("TOTAL", right=True): lambda task: output.number(task.total),
    Column("STARTED"): lambda task: output.from_now(task.started_at),
    Column("ENDED"): lambda task: output.from_now(task.ended_at),
    Column("BY", cut=True): lambda task: task.by or "-",
}


@client_command(
    "deferd tasks",
    "deferd tasks 5f0c9a3be7d2481c --stop",
    "deferd tasks --json | jq -r 'select(.state == \"running\").id'",
)
@click.argument("ids", metavar="[ID]...", nargs=-1, help="these tasks; without any, those that began last")
@click.option("--stop", is_flag=True, help="ask for their end; what is done stays done")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most tasks, up to 1000; default 100")
def tasks(ids: tuple[str, ...], stop: bool, limit: int | None, client: Client, as_json: bool) -> None:
    """Show how far actions on many jobs are that run in the background: those of `cancel`, `reschedule`, `redrive` and
    `purge` with --task. Ended ones are kept for 7 days.
    """
    if stop and not ids:
        raise UsageError("--stop needs the ID of a task")
    read = client.stop_task if stop else client.task
    found = [read(task_id) for task_id in ids] if ids else client.tasks(limit=limit)
    output.json_or_table(found, _CELLS, "no task has begun within 7 days", as_json=as_json)


def show_begun(task: Task, *, as_json: bool) -> None:
    """Say that a task has begun, and how to see its progress."""
    output.json_or_line(task.fields, f"task {task.id} has begun: deferd tasks {task.id}", as_json=as_json)


def show_preview(preview: Preview, *, as_json: bool) -> None:
    """Print the count, the cutoff with which the command acts on nothing else, and samples."""
    if as_json:
        output.json_line(preview.fields)
        return
    noun = "job matches" if preview.matched == 1 else "jobs match"
    more = "" if preview.complete else ", and there may be more"
    cutoff = format_instant(preview.cutoff)
    output.line(f"{preview.matched:,} {noun}{more}; to act on no other: --cutoff {cutoff}")
    for sample in preview.samples:
        output.line(f"{sample.topic}/{sample.id} ({sample.state.value})")
