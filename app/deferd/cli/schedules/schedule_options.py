"""The argument NAME of a schedule, completed from the service, and the options of a definition."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from deferd.cli.framework import values
from deferd.cli.framework.connection import SETTINGS, Connection
from deferd.cli.framework.options import Decorator, all_of
from deferd.cli.framework.topic_completion import TIME_LIMIT_S

_COMPLETED_MAX = 1000


def name_argument(about: str = "its name", **attributes: Any) -> Decorator:
    """The argument NAME."""
    return click.argument("name", help=about, shell_complete=_complete_name, **attributes)


def _complete_name(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The schedules whose names start so; none if the service cannot be reached."""
    names: list[str] = []
    with contextlib.suppress(Exception):  # a shell shows no errors of a completion
        settings: dict[str, Any] = {name: ctx.params.get(name) for name in SETTINGS}
        settings |= {"timeout": TIME_LIMIT_S, "retry_for": 0.0}
        with Connection(**settings).open() as client:
            names += [one.name for one in islice(client.schedules(prefix=incomplete, jobs=False), _COMPLETED_MAX)]
    return [CompletionItem(name) for name in names]


timing_options: Final = all_of(
    [
        click.option("--cron", metavar="EXPRESSION", help="a cron expression, such as '0 3 * * mon-fri', or @daily"),
        click.option("--every", type=values.duration, metavar="DURATION", help="the time from one run to the next"),
        click.option("--at", type=values.names, metavar="HH:MM,...", help="times of day"),
        click.option("--days", type=values.names, metavar="DAY,...", help="with --at: mon,tue,wed,thu,fri,sat,sun"),
        click.option("--zone", metavar="ZONE", help="time zone of --cron and --at, such as Europe/Berlin; default UTC"),
        click.option("--start-at", type=values.instant, metavar="INSTANT", help="no run is earlier"),
        click.option("--end-at", type=values.instant, metavar="INSTANT", help="no run is later"),
        click.option("--max-runs", type=values.count_from_1, metavar="N", help="it ends after so many runs"),
        click.option("--jitter", type=values.duration, metavar="DURATION", help="each run up to this much later"),
    ]
)
placement_options: Final = all_of(
    [
        click.option("--window", type=values.window, metavar="JSON|NAME", help="opening hours, to which runs move"),
        click.option("--spread", type=values.duration, metavar="DURATION", help="all runs later, by a part of this"),
    ]
)
policy_of_runs_options: Final = all_of(
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


def set_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as fields of a definition."""
    return {name: value for name, value in options.items() if value is not None}
