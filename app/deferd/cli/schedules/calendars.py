"""The commands for opening hours: `calendars`, `calendar`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import client_command
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Calendar, Client

_CELLS: Cells[Calendar] = {
    Column("CALENDAR"): lambda calendar: calendar.name,
    Column("WINDOWS"): lambda calendar: output.window(calendar.fields["windows"]),
}


@client_command("deferd calendars", "deferd calendars --json | jq -r .name")
def calendars(client: Client, as_json: bool) -> None:
    """List all calendars, which are opening hours under a name."""
    output.json_or_table(client.calendars(), _CELLS, "there is no calendar yet", as_json=as_json)


@client_command(
    "deferd calendar office",
    """deferd calendar office --set '[{"zone": "Europe/Berlin", "from": "09:00", "to": "18:00"}]'""",
    "deferd calendar office --delete",
)
@click.argument("name", help="its name")
@click.option("--set", "windows", type=values.windows, metavar="JSON", help="create or replace it: a list of windows")
@click.option("--delete", is_flag=True, help="delete it: jobs that still name it are always open")
def calendar(name: str, windows: list[Any] | None, delete: bool, client: Client, as_json: bool) -> None:
    """Show a calendar. With --set, create or replace it; with --delete, delete it."""
    if delete and windows is not None:
        raise UsageError("--set and --delete exclude each other: give one of them")
    if delete:
        client.delete_calendar(name)
        output.json_or_line({"name": name, "deleted": True}, f"{name} deleted", as_json=as_json)
        return
    shown = client.calendar(name) if windows is None else client.put_calendar(name, windows)
    fields = shown.fields
    facts = ((f"window {number}", output.window(one)) for number, one in enumerate(fields["windows"], 1))
    output.json_or_facts(fields, [("calendar", shown.name), *facts], as_json=as_json)
