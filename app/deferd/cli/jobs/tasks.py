"""The command `tasks`: actions on many jobs that run in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import connection_options, json_option
from deferd.cli.framework.output import Column

if TYPE_CHECKING:
    from deferd.client import Task

_COLUMNS = [
    Column("ID"),
    Column("KIND"),
    Column("TOPIC"),
    Column("STATE"),
    Column("DONE", right=True),
    Column("TOTAL", right=True),
    Column("STARTED"),
    Column("ENDED"),
    Column("BY", cut=True),
]


@command(
    "deferd tasks",
    "deferd tasks 5f0c9a3be7d2481c --stop",
    "deferd tasks --json | jq -r 'select(.state == \"running\").id'",
)
@click.argument("ids", metavar="[ID]...", nargs=-1, help="these tasks; without any, those that began last")
@click.option("--stop", is_flag=True, help="ask for their end; what is done stays done")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most tasks, up to 1000; default 100")
@json_option()
@connection_options
def tasks(*, ids: tuple[str, ...], stop: bool, limit: int | None, as_json: bool, connection: Connection) -> int:
    """Show how far actions on many jobs are that run in the background: those of `cancel`, `reschedule`, `redrive` and
    `purge` with --task. Ended ones are kept for 7 days.
    """
    if stop and not ids:
        raise UsageError("--stop needs the ID of a task")
    with connection.open() as client:
        if ids:
            found = [client.stop_task(task_id) if stop else client.task(task_id) for task_id in ids]
        else:
            found = client.tasks(limit=limit)
    if as_json:
        for task in found:
            output.json_line(task.fields)
    elif found:
        output.show_table(_COLUMNS, [_row(task) for task in found])
    else:
        output.say_empty("no task has begun within 7 days")
    return exit_codes.DONE


def show_begun(task: Task, *, as_json: bool) -> None:
    """Say that a task has begun, and where to see how far it is."""
    if as_json:
        output.json_line(task.fields)
    else:
        output.line(f"task {task.id} has begun: deferd tasks {task.id}")


def _row(task: Task) -> list[str]:
    return [
        task.id,
        task.kind,
        task.topic or "-",
        task.state,
        output.number(task.done),
        output.number(task.total),
        output.from_now(task.started_at),
        "-" if task.ended_at is None else output.from_now(task.ended_at),
        task.fields["by"] or "-",
    ]
