"""`deferd schedules`: jobs that are put again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import EXIT_CODES, Command, CommandGroup, command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import (
    DURABILITIES,
    connection_options,
    json_option,
    label_options,
    policy_options,
    topic_argument,
)
from deferd.cli.framework.output import Column
from deferd.cli.schedules.schedule_options import (
    name_argument,
    placement_options,
    policy_of_runs_options,
    set_fields,
    timing_options,
)
from deferd.contract.limits import PREVIEW_DEFAULT, PREVIEW_MAX

if TYPE_CHECKING:
    from deferd.client import Schedule

_COLUMNS = [
    *(Column("NAME"), Column("RUNS AT"), Column("TOPIC"), Column("NEXT RUN", right=True)),
    *(Column("RUNS", right=True), Column("SKIPS", right=True), Column("MISSED", right=True)),
]
_EPILOG = f"""examples:
  deferd schedules put nightly reports '{{"of": "all"}}' --cron '0 3 * * *' --zone Europe/Berlin
  deferd schedules preview nightly --count 5
  deferd schedules list
  deferd schedules sync schedules.toml --prune --dry-run

`deferd schedules ACTION --help` shows the options of an action.

{EXIT_CODES}"""


@click.group(
    cls=CommandGroup, epilog=_EPILOG, subcommand_metavar="ACTION ...", options_metavar="", no_args_is_help=False
)
def schedules() -> None:
    """Schedules put a job again and again: by a cron expression, at an interval, or at times of day."""


def _add(*examples: str, name: str) -> Callable[[Callable[..., int | None]], Command]:
    def add(function: Callable[..., int | None]) -> Command:
        made = command(*examples, name=name)(function)
        schedules.add_command(made)
        return made

    return add


@_add("deferd schedules list", "deferd schedules list --paused --json | jq -r .name", name="list")
@click.option("--topic", metavar="TOPIC", help="only those of this topic")
@click.option("--prefix", metavar="TEXT", help="only those whose names begin so")
@click.option("--paused/--active", default=None, help="only those that are paused, or are not")
@json_option()
@connection_options
def list_(*, topic: str | None, prefix: str | None, paused: bool | None, as_json: bool, connection: Connection) -> None:
    """List schedules with their next runs and counts."""
    rows: list[list[str]] = []
    with connection.open() as client:
        for view in client.schedules(topic=topic, prefix=prefix, paused=paused, jobs=as_json):
            if as_json:
                output.json_line(view.fields)
            else:
                rows.append(_row(view))
    if rows:
        output.show_table(_COLUMNS, rows)
    elif not as_json:
        output.say_empty("there is no such schedule")


@_add("deferd schedules get nightly", "deferd schedules get nightly --json | jq .missed", name="get")
@name_argument()
@json_option()
@connection_options
def get(name: str, as_json: bool, connection: Connection) -> None:
    """Show a schedule: its definition, its next and last runs, and its counts."""
    with connection.open() as client:
        view = client.schedule(name)
    if as_json:
        output.json_line(view.fields)
    else:
        output.show_facts(_facts(view))


@_add(
    """deferd schedules put nightly reports '{"of": "all"}' --cron '0 3 * * *' --zone Europe/Berlin""",
    "deferd schedules put poll feeds.poll --every 5m --overlap skip --catch-up none",
    "deferd schedules put open shop --at 09:00,13:30 --days mon,tue,wed,thu,fri --zone America/New_York",
    name="put",
)
@name_argument()
@topic_argument("the topic of its jobs")
@click.argument("body", required=False, type=values.body, help="the body of its jobs, any JSON value")
@timing_options
@policy_of_runs_options
@policy_options
@label_options
@click.option("--durability", type=click.Choice(DURABILITIES), metavar="LEVEL", help="durability level of its jobs")
@click.option("--create-only", is_flag=True, help="exit code 3 when there is one of this name")
@json_option()
@connection_options
def put(
    *,
    name: str,
    topic: str,
    body: values.Body | Literal["-"] | None,
    durability: str | None,
    create_only: bool,
    as_json: bool,
    connection: Connection,
    fields: dict[str, Any],
    **options: Any,
) -> None:
    """Create a schedule, or replace it as a whole: what is left out has its default, but a pause continues."""
    from deferd.client.schedules import put_schedule

    if isinstance(body, str):
        raise UsageError("BODY is -, but only `deferd put` reads standard input")
    job = {**fields, **({} if body is None else {"body": body.value})}
    if durability is not None:
        job["durability"] = durability
    # The window and the spread of a schedule are those of its runs.
    placement = {field: job.pop(field) for field in ("window", "spread") if job.get(field) is not None}
    definition = {"topic": topic, **set_fields(options), **placement, **({"job": job} if job else {})}
    with connection.open() as client:
        _say(client.send(put_schedule(name, definition, create_only=create_only)), as_json=as_json)


@_add("deferd schedules delete nightly", name="delete")
@name_argument()
@connection_options
def delete(name: str, connection: Connection) -> None:
    """Delete a schedule and cancel its next run. Jobs of earlier runs stay."""
    with connection.open() as client:
        client.delete_schedule(name)
    output.line(f"{name} deleted")


@_add("deferd schedules pause nightly", name="pause")
@name_argument()
@json_option()
@connection_options
def pause(name: str, as_json: bool, connection: Connection) -> None:
    """Make no runs until it is resumed; the next run is cancelled."""
    with connection.open() as client:
        _say(client.pause_schedule(name), as_json=as_json)


@_add("deferd schedules resume nightly", name="resume")
@name_argument()
@json_option()
@connection_options
def resume(name: str, as_json: bool, connection: Connection) -> None:
    """Make runs again, from now on: none counts as missed."""
    with connection.open() as client:
        _say(client.resume_schedule(name), as_json=as_json)


@_add("deferd schedules run nightly", name="run")
@name_argument()
@json_option()
@connection_options
def run(name: str, as_json: bool, connection: Connection) -> None:
    """Put a job of the schedule now, in addition to its runs. It is not repeated when the response is lost."""
    with connection.open() as client:
        job = client.run_schedule(name)
    if as_json:
        output.json_line(job.fields)
    else:
        output.line(f"{job.topic} {job.id}")


@_add(
    "deferd schedules preview nightly --count 5",
    "deferd schedules preview --cron '30 2 * * *' --zone Europe/Berlin --start-at 2027-03-27T00:00Z",
    name="preview",
)
@name_argument("a schedule; without it, the options below define one", required=False)
@click.option(
    "--count",
    type=click.IntRange(1, PREVIEW_MAX),
    default=PREVIEW_DEFAULT,
    metavar="N",
    help=f"how many runs, up to {PREVIEW_MAX}; default {PREVIEW_DEFAULT}",
)
@timing_options
@placement_options
@json_option()
@connection_options
def preview(*, name: str | None, count: int, as_json: bool, connection: Connection, **options: Any) -> None:
    """Show the next runs of a schedule, or of one that is not stored, in its zone and in UTC."""
    from deferd.client.schedules import preview_schedule

    given = set_fields(options)
    if name is not None and given:
        raise UsageError("NAME and options such as --cron exclude each other: a schedule has its own")
    if name is None and not given:
        raise UsageError("say of what: NAME, or options such as --cron")
    # A topic belongs to a definition, but makes no difference to its runs.
    target = {"topic": "preview", **given} if name is None else name
    with connection.open() as client:
        found = client.send(preview_schedule(target, count=count))
    for run in found.runs:
        at, utc = run.at.isoformat(), output.rfc3339(run.utc)
        if as_json:
            output.json_line({"at": at, "utc": utc})
        else:
            output.line(f"{at}  {utc}  {run.at:%a}")
    if not found.runs:
        output.say_empty("there are no runs to come")
    if found.tzdata is not None:
        output.hint(f"by the time zone database {found.tzdata}")


@_add(
    "deferd schedules sync schedules.toml --dry-run",
    "deferd schedules sync schedules.toml --prune --prefix shop.",
    name="sync",
)
@click.argument("file", type=click.Path(path_type=Path), help="a TOML file with a table [schedules.NAME] for each")
@click.option("--prune", is_flag=True, help="delete schedules that the file does not have")
@click.option(
    "--prefix", default="", metavar="TEXT", help="only schedules whose names begin so; the file has no others"
)
@click.option("--dry-run", is_flag=True, help="change nothing; exit code 6 when something would change, else 0")
@json_option()
@connection_options
def sync(*, file: Path, prune: bool, prefix: str, dry_run: bool, as_json: bool, connection: Connection) -> int:
    """Make the schedules of the service those of a file, and show each difference: + added, ~ changed, - removed. All
    definitions are checked before the first change. Without --prune, schedules that the file does not have stay.
    """
    from deferd.cli.schedules.schedule_file import read_schedules
    from deferd.cli.schedules.schedule_sync import compare

    wanted = read_schedules(file, prefix)
    with connection.open() as client:
        differences = compare(client, file, wanted, prefix)
        for difference in differences:
            difference.apply(client, prune=prune, dry_run=dry_run)
            difference.show(prune=prune, as_json=as_json)
    would_change = any(one.changes(prune=prune) for one in differences)
    return exit_codes.FINDINGS if dry_run and would_change else exit_codes.DONE


def _say(view: Schedule, *, as_json: bool) -> None:
    if as_json:
        output.json_line(view.fields)
    else:
        output.line(f"{view.name} {_state(view)}")


def _state(view: Schedule) -> str:
    if view.ended:
        return "ended"
    if view.paused:
        return "paused"
    return "has no next run" if view.next_run_at is None else f"runs {output.when(view.next_run_at)}"


def _row(view: Schedule) -> list[str]:
    due_at = view.next_run_at
    note = " (ended)" if view.ended else " (paused)" if view.paused else ""
    return [
        view.name + note,
        _rule(view),
        view.topic,
        "-" if due_at is None else output.from_now(due_at),
        *map(output.number, (view.runs, view.skips, view.missed)),
    ]


def _rule(view: Schedule) -> str:
    if view.every is not None:
        return f"every {output.span(view.every)}"
    text = view.cron if view.cron is not None else " ".join([",".join(view.at or ()), ",".join(view.days or ())])
    return f"{text.strip()} {view.zone}"


def _facts(view: Schedule) -> list[tuple[str, str]]:
    facts = [("name", view.name), ("topic", view.topic), ("runs at", _rule(view)), ("state", _state(view))]
    if view.next_job is not None:
        facts.append(("next job", view.next_job))
    if view.last_run_at is not None:
        facts += [("last run", output.when(view.last_run_at)), ("last job", view.last_job or "-")]
    facts += [(what, output.number(view.fields.get(what, 0))) for what in ("runs", "skips", "missed")]
    shown = {"name", "topic", "cron", "every", "at", "days", "zone", "paused"}
    facts += [
        (name, value if isinstance(value, str) else output.cell(value))
        for name, value in view.definition.items()
        if name not in shown and value != {"body": None}
    ]
    for what, at in (("created", view.created_at), ("changed", view.updated_at)):
        if at is not None:
            facts.append((what, output.when(at)))
    return facts
