"""The commands for jobs that are put again and again, and for opening hours: `schedules`, `calendars`, `calendar`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command, command_group
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import (
    Connection,
    Decorator,
    all_of,
    client_command,
    complete_schedule,
    connection_options,
    durability_option,
    label_options,
    policy_options,
    topic_argument,
)
from deferd.cli.framework.output import Cells, Column
from deferd.contract.limits import PREVIEW_DEFAULT, PREVIEW_MAX
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from deferd.client import Client, Schedule


def _rule(view: Schedule) -> str:
    if view.every is not None:
        return f"every {output.span(view.every)}"
    text = view.cron if view.cron is not None else " ".join([",".join(view.at or ()), ",".join(view.days or ())])
    return f"{text.strip()} {view.zone}"


_CELLS: Cells[Schedule] = {
    Column("NAME"): lambda view: view.name + (" (ended)" if view.ended else " (paused)" if view.paused else ""),
    Column("RUNS AT"): _rule,
    Column("TOPIC"): lambda view: view.topic,
    Column("NEXT RUN", right=True): lambda view: output.from_now(view.next_run_at),
    Column("RUNS", right=True): lambda view: output.number(view.runs),
    Column("SKIPS", right=True): lambda view: output.number(view.skips),
    Column("MISSED", right=True): lambda view: output.number(view.missed),
}
_CALENDAR_CELLS: Cells[Calendar] = {
    Column("CALENDAR"): lambda calendar: calendar.name,
    Column("WINDOWS"): lambda calendar: output.window(calendar.fields["windows"]),
}
_timing_options: Final = all_of(
    [
        click.option("--cron", metavar="EXPRESSION", help="a cron expression, such as '0 3 * * mon-fri', or @daily"),
        click.option("--every", type=values.duration, metavar="DURATION", help="the time from one run to the next"),
        click.option("--at", type=values.names, metavar="HH:MM,...", help="times of day"),
        click.option("--days", type=values.names, metavar="DAY,...", help="with --at: mon,tue,wed,thu,fri,sat,sun"),
        click.option("--zone", metavar="ZONE", help="time zone of --cron and --at, such as Europe/Berlin; default UTC"),
        click.option("--start-at", type=values.instant, metavar="INSTANT", help="no run is earlier"),
        click.option("--end-at", type=values.instant, metavar="INSTANT", help="no run is later"),
        click.option("--max-runs", type=values.count_from_1, metavar="N", help="it ends after so many runs"),
    ]
)
_placement_options: Final = all_of(
    [
        click.option("--window", type=values.window, metavar="JSON|NAME", help="opening hours, to which runs move"),
        click.option("--spread", type=values.duration, metavar="DURATION", help="all runs later, by a part of this"),
    ]
)
_policy_of_runs_options: Final = all_of(
    [
        click.option(
            "--overlap",
            type=click.Choice(["allow", "skip", "replace"]),
            help="when the run before is still live: allow both, skip the new one, or replace the old one",
        ),
        click.option(
            "--catch-up",
            type=click.Choice(["none", "last", "all"]),
            help="which missed runs to make up for; all: at most 1000",
        ),
        click.option("--paused/--active", default=None, help="whether it makes no runs; default: as it is"),
    ]
)


@command_group(
    """deferd schedules put nightly reports '{"of": "all"}' --cron '0 3 * * *' --zone Europe/Berlin""",
    "deferd schedules preview nightly --count 5",
    "deferd schedules list",
    "deferd schedules sync schedules.toml --prune --dry-run",
    name="schedules",
)
def schedules() -> None:
    """Schedules put a job again and again: by a cron expression, at an interval, or at times of day."""


def _name_argument(about: str = "its name", **attributes: Any) -> Decorator:
    return click.argument("name", help=about, shell_complete=complete_schedule, **attributes)


@client_command(
    "deferd schedules list", "deferd schedules list --paused --json | jq -r .name", group=schedules, name="list"
)
@click.option("--topic", metavar="TOPIC", help="only those of this topic")
@click.option("--prefix", metavar="TEXT", help="only those whose names begin so")
@click.option("--paused/--active", default=None, help="only those that are paused, or are not")
def list_(client: Client, as_json: bool, **filters: Any) -> None:
    """List schedules with their next runs and counts."""
    found = client.schedules(jobs=as_json, **filters)
    output.json_or_table(found, _CELLS, "there is no such schedule", as_json=as_json)


@client_command("deferd schedules get nightly", "deferd schedules get nightly --json | jq .missed", group=schedules)
@_name_argument()
def get(name: str, client: Client, as_json: bool) -> None:
    """Show a schedule: its definition, its next and last runs, and its counts."""
    view = client.schedule(name)
    output.json_or_facts(view.fields, _facts(view), as_json=as_json)


@client_command(
    """deferd schedules put nightly reports '{"of": "all"}' --cron '0 3 * * *' --zone Europe/Berlin""",
    "deferd schedules put poll feeds.poll --every 5m --overlap skip --catch-up none",
    "deferd schedules put open shop --at 09:00,13:30 --days mon,tue,wed,thu,fri --zone America/New_York",
    group=schedules,
)
@_name_argument()
@topic_argument("the topic of its jobs")
@click.argument("body", required=False, type=values.body, help="the body of its jobs, any JSON value")
@_timing_options
@_policy_of_runs_options
@policy_options
@label_options
@durability_option("durability level of its jobs")
@click.option("--create-only", is_flag=True, help="exit code 3 when there is one of this name")
def put(
    *,
    name: str,
    topic: str,
    body: values.Body | Literal["-"] | None,
    durability: str | None,
    create_only: bool,
    client: Client,
    as_json: bool,
    fields: dict[str, Any],
    **options: Any,
) -> None:
    """Create a schedule, or replace it as a whole: what is left out has its default, but a pause continues."""
    from deferd.client.scheduling import put_schedule

    job = {**fields, **values.body_field(body)}
    if durability is not None:
        job["durability"] = durability
    # The window and the spread of a schedule are those of its runs.
    placement = {field: job.pop(field) for field in ("window", "spread") if job.get(field) is not None}
    definition = {"topic": topic, **_set_fields(options), **placement, **({"job": job} if job else {})}
    _say(client.send(put_schedule(name, definition, create_only=create_only)), as_json=as_json)


@command("deferd schedules delete nightly", group=schedules)
@_name_argument()
@connection_options
def delete(name: str, connection: Connection) -> None:
    """Delete a schedule and cancel its next run. Jobs of earlier runs stay."""
    with connection.open() as client:
        client.delete_schedule(name)
    output.line(f"{name} deleted")


@client_command("deferd schedules pause nightly", group=schedules)
@_name_argument()
def pause(name: str, client: Client, as_json: bool) -> None:
    """Make no runs until it is resumed; the next run is cancelled."""
    _say(client.pause_schedule(name), as_json=as_json)


@client_command("deferd schedules resume nightly", group=schedules)
@_name_argument()
def resume(name: str, client: Client, as_json: bool) -> None:
    """Make runs again, from now on: none counts as missed."""
    _say(client.resume_schedule(name), as_json=as_json)


@client_command("deferd schedules run nightly", group=schedules)
@_name_argument()
def run(name: str, client: Client, as_json: bool) -> None:
    """Put a job of the schedule now, in addition to its runs. It is not repeated when the response is lost."""
    job = client.run_schedule(name)
    output.json_or_line(job.fields, f"{job.topic} {job.id}", as_json=as_json)


@client_command(
    "deferd schedules preview nightly --count 5",
    "deferd schedules preview --cron '30 2 * * *' --zone Europe/Berlin --start-at 2027-03-27T00:00Z",
    group=schedules,
)
@_name_argument("a schedule; without it, the options below define one", required=False)
@click.option(
    "--count",
    type=click.IntRange(1, PREVIEW_MAX),
    default=PREVIEW_DEFAULT,
    metavar="N",
    help=f"how many runs, up to {PREVIEW_MAX}; default {PREVIEW_DEFAULT}",
)
@_timing_options
@_placement_options
def preview(*, name: str | None, count: int, client: Client, as_json: bool, **options: Any) -> None:
    """Show the next runs of a schedule, or of one that is not stored, in its zone and in UTC."""
    from deferd.client.scheduling import preview_schedule

    given = _set_fields(options)
    if name is not None and given:
        raise UsageError("NAME and options such as --cron exclude each other: a schedule has its own")
    if name is None and not given:
        raise UsageError("say of what: NAME, or options such as --cron")
    # A topic belongs to a definition, but makes no difference to its runs.
    target = {"topic": "preview", **given} if name is None else name
    found = client.send(preview_schedule(target, count=count))
    for run in found.runs:
        at, utc = run.at.isoformat(), format_instant(run.utc)
        output.json_or_line({"at": at, "utc": utc}, f"{at}  {utc}  {run.at:%a}", as_json=as_json)
    if not found.runs:
        output.say_empty("there are no runs to come")
    if found.tzdata is not None:
        output.hint(f"by the time zone database {found.tzdata}")


@client_command(
    "deferd schedules sync schedules.toml --dry-run",
    "deferd schedules sync schedules.toml --prune --prefix shop.",
    group=schedules,
)
@click.argument("file", type=click.Path(path_type=Path), help="a TOML file with a table [schedules.NAME] for each")
@click.option("--prune", is_flag=True, help="delete schedules that the file does not have")
@click.option(
    "--prefix", default="", metavar="TEXT", help="only schedules whose names begin so; the file has no others"
)
@click.option("--dry-run", is_flag=True, help="change nothing; exit code 6 when something would change, else 0")
def sync(*, file: Path, prune: bool, prefix: str, dry_run: bool, client: Client, as_json: bool) -> int:
    """Make the schedules of the service those of a file, and show each difference: + added, ~ changed, - removed. All
    definitions are checked before the first change. Without --prune, schedules that the file does not have stay.
    """
    from deferd.cli.topics.schedule_sync import compare, read_schedules

    wanted = read_schedules(file, prefix)
    differences = compare(client, file, wanted, prefix)
    for difference in differences:
        difference.apply(client, prune=prune, dry_run=dry_run)
        difference.show(prune=prune, as_json=as_json)
    would_change = any(one.changes(prune=prune) for one in differences)
    return exit_codes.FINDINGS if dry_run and would_change else exit_codes.DONE


@client_command("deferd calendars", "deferd calendars --json | jq -r .name")
def calendars(client: Client, as_json: bool) -> None:
    """List all calendars, which are opening hours under a name."""
    output.json_or_table(client.calendars(), _CALENDAR_CELLS, "there is no calendar yet", as_json=as_json)


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


def _say(view: Schedule, *, as_json: bool) -> None:
    output.json_or_line(view.fields, f"{view.name} {_state(view)}", as_json=as_json)


def _state(view: Schedule) -> str:
    if view.ended:
        return "ended"
    if view.paused:
        return "paused"
    return "has no next run" if view.next_run_at is None else f"runs {output.when(view.next_run_at)}"


def _facts(view: Schedule) -> Iterator[tuple[str, str]]:
    yield from (("name", view.name), ("topic", view.topic), ("runs at", _rule(view)), ("state", _state(view)))
    if view.next_job is not None:
        yield "next job", view.next_job
    if view.last_run_at is not None:
        yield from (("last run", output.when(view.last_run_at)), ("last job", view.last_job or "-"))
    yield from ((name, output.number(view.fields.get(name, 0))) for name in ("runs", "skips", "missed"))
    shown = {"name", "topic", "cron", "every", "at", "days", "zone", "paused"}
    for name, value in view.definition.items():
        if name not in shown and value != {"body": None}:
            yield name, value if isinstance(value, str) else output.cell(value)
    yield from (("created", output.when(view.created_at)), ("changed", output.when(view.updated_at)))


def _set_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as fields of a definition."""
    return {name: value for name, value in options.items() if value is not None}


if TYPE_CHECKING:
    from deferd.client import Calendar, Client
