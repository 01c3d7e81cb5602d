"""The commands for opening hours: `calendars`, `calendar`."""

from __future__ import annotations

from typing import Any

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import connection_options, json_option
from deferd.cli.framework.output import Column

_COLUMNS = [Column("CALENDAR"), Column("WINDOWS")]


@command("deferd calendars", "deferd calendars --json | jq -r .name")
@json_option()
@connection_options
def calendars(as_json: bool, connection: Connection) -> None:
    """List all calendars, which are opening hours under a name."""
    with connection.open() as client:
        found = client.calendars()
    if as_json:
        for calendar in found:
            output.json_line(calendar.fields)
    elif not found:
        output.say_empty("there is no calendar yet")
    else:
        output.show_table(_COLUMNS, [[one.name, output.window(one.fields["windows"])] for one in found])


@command(
    "deferd calendar office",
    """deferd calendar office --set '[{"zone": "Europe/Berlin", "from": "09:00", "to": "18:00"}]'""",
    "deferd calendar office --delete",
)
@click.argument("name", help="its name")
@click.option("--set", "windows", type=values.windows, metavar="JSON", help="create or replace it: a list of windows")
@click.option("--delete", is_flag=True, help="delete it: jobs that still name it are always open")
@json_option()
@connection_options
def calendar(name: str, windows: list[Any] | None, delete: bool, as_json: bool, connection: Connection) -> None:
    """Show a calendar. With --set, create or replace it; with --delete, delete it."""
    if delete and windows is not None:
        raise UsageError("--set and --delete exclude each other: give one of them")
    with connection.open() as client:
        if delete:
            client.delete_calendar(name)
            if as_json:
                output.json_line({"name": name, "deleted": True})
            else:
                output.line(f"{name} deleted")
            return
        shown = client.calendar(name) if windows is None else client.put_calendar(name, windows)
    if as_json:
        output.json_line(shown.fields)
    else:
        facts = [(f"window {number}", output.window(one)) for number, one in enumerate(shown.fields["windows"], 1)]
        output.show_facts([("calendar", shown.name), *facts])
