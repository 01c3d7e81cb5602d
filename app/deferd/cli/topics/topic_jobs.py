"""The commands for the jobs of a topic: `jobs`, `redrive`, `purge`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import fail
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import LONG_TIMEOUT_S, REASONS, all_of, client_command, state_option, topic_argument
from deferd.cli.framework.output import Cells, Column
from deferd.cli.jobs.tasks import show_begun, show_preview
from deferd.contract.limits import REDRIVE_DEFAULT
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from deferd.client import Client, Job, TopicView

_CELLS: Cells[Job] = {
    Column("ID"): lambda job: job.id,
    Column("STATE"): lambda job: job.state.value,
    Column("STANDS", cut=True): output.where_it_stands,
    Column("TRIES", right=True): lambda job: str(job.attempts),
    Column("BODY", cut=True): lambda job: output.cell(job.body),
}
_tag_option: Final = click.option("--tag", metavar="TAG", help="only jobs with this tag")
_reason_option: Final = click.option(
    "--reason", type=click.Choice(REASONS), help="only jobs that are dead for this reason"
)
_conditions: Final = all_of(
    [
        _tag_option,
        _reason_option,
        click.option("--error", metavar="TEXT", help="only dead jobs with this error, as `deferd dead` shows it"),
        click.option("--cutoff", type=values.instant, metavar="INSTANT", help="only jobs there, or dead, by then"),
        click.option("--dry-run", is_flag=True, help="only count the jobs, and print a cutoff"),
        click.option("--task", "as_task", is_flag=True, help="do it in the background: see `deferd tasks`"),
    ]
)
_list_options: Final = all_of(
    [
        state_option,
        _tag_option,
        click.option("--due-after", type=values.instant, metavar="INSTANT", help="only jobs due then or later"),
        click.option("--due-before", type=values.instant, metavar="INSTANT", help="only jobs due before then"),
        click.option("--id-prefix", metavar="TEXT", help="only jobs whose id begins so"),
        click.option("--error", metavar="TEXT", help="only jobs whose last error contains this"),
        click.option(
            "--order",
            type=click.Choice(["asc", "desc"]),
            help="desc: what happens last comes first, such as the job that died last",
        ),
        click.option("--limit", type=values.count_from_1, default=100, metavar="N", help="most jobs; default 100"),
        click.option("--all", "no_limit", is_flag=True, help="all of them"),
    ]
)


@client_command("deferd jobs orders.close --state dead", "deferd jobs orders.close --all --json | jq -r .id")
@topic_argument()
@_list_options
def jobs(topic: str, client: Client, as_json: bool, **options: Any) -> None:
    """List the jobs of a topic."""
    _list_jobs(client, topic, as_json=as_json, **options)


@client_command(
    "deferd redrive orders.close",
    "deferd redrive orders.close order-1042 order-1043",
    "deferd redrive mail --reason buried --error 'SMTP 421: * try again' --dry-run",
    timeout_s=LONG_TIMEOUT_S,
)
@topic_argument()
@click.argument("ids", metavar="[ID]...", nargs=-1, help="these jobs; without any, those that have been dead longest")
@click.option("--limit", type=values.whole, metavar="N", help="most jobs, without ID; default 1000, with --task all")
@_conditions
def redrive(
    *,
    topic: str,
    ids: tuple[str, ...],
    limit: int | None,
    dry_run: bool,
    as_task: bool,
    client: Client,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Make dead jobs ready again."""
    named = list(ids) or None
    if as_task and (named or dry_run):
        raise UsageError("--task is not for ID or --dry-run")
    if as_task:
        show_begun(client.start_redrive(topic, limit=limit, **conditions), as_json=as_json)
        return
    limit = REDRIVE_DEFAULT if limit is None else limit
    if dry_run:
        show_preview(client.preview_redrive(topic, ids=named, limit=limit, **conditions), as_json=as_json)
        return
    count = client.redrive(topic, ids=named, limit=limit, **conditions)
    text = f"{output.count(count, 'dead job')} of {topic} ready again"
    output.json_or_line({"redriven": count}, text, as_json=as_json)


@client_command(
    "deferd purge orders.close --state dead",
    "deferd purge orders.close --yes",
    "deferd purge mail --reason buried --error 'SMTP 550: *' --dry-run",
    timeout_s=LONG_TIMEOUT_S,
)
@topic_argument()
@state_option
@_conditions
@click.option("--yes", is_flag=True, help="do not ask; required where there is no terminal")
def purge(
    *,
    topic: str,
    state: str | None,
    dry_run: bool,
    as_task: bool,
    yes: bool,
    client: Client,
    as_json: bool,
    **conditions: Any,
) -> int:
    """Remove all jobs of a topic, or those in one state, with a tag, or dead for a reason, for good. Asks for
    confirmation. The default of --timeout is 10 minutes here.
    """
    if as_task and dry_run:
        raise UsageError("--task is not for --dry-run")
    if not yes and not dry_run and not sys.stdin.isatty():
        raise UsageError("purge asks for confirmation, and standard input is not a terminal: give --yes")
    if dry_run:
        show_preview(client.preview_purge(topic, state=state, **conditions), as_json=as_json)
        return exit_codes.DONE
    if not yes and not _confirmed(client.topic(topic), state, **conditions):
        return fail("nothing was removed", code=exit_codes.INTERRUPTED)
    if as_task:
        show_begun(client.start_purge(topic, state=state, **conditions), as_json=as_json)
        return exit_codes.DONE
    count = client.purge(topic, state=state, **conditions)
    output.json_or_line({"removed": count}, f"{output.count(count, 'job')} of {topic} removed", as_json=as_json)
    return exit_codes.DONE


def _list_jobs(
    client: Client, topic: str, *, state: str | None, limit: int, no_limit: bool, as_json: bool, **filters: Any
) -> None:
    is_empty = True
    for page in _pages(client, topic, state, None if no_limit else limit, filters):
        if page:
            output.json_or_table(page, _CELLS, "", as_json=as_json, headed=is_empty)
            is_empty = False
    if is_empty and not as_json:
        such = " that match" if any(value is not None for value in filters.values()) else ""
        output.say_empty(f"{topic} has no {'' if state is None else f'{state} '}jobs{such}")


def _pages(
    client: Client, topic: str, state: str | None, limit: int | None, filters: dict[str, Any]
) -> Iterator[list[Job]]:
    """Pages of the jobs, at most `limit` jobs in all; hints when there may be more."""
    from deferd.client.topics import jobs
    from deferd.contract.limits import PAGE_MAX

    cursor: str | None = None
    left = limit
    while True:
        size = PAGE_MAX if left is None else min(left, PAGE_MAX)
        page, cursor = client.send(jobs(topic, state=state, cursor=cursor, limit=size, **filters))
        if left is not None:
            page = page[:left]
            left -= len(page)
        yield page
        if cursor is None:
            return
        if left == 0:
            output.hint(f"there may be more than these {limit:,}: --limit N or --all shows them")
            return


def _confirmed(view: TopicView, state: str | None, **conditions: Any) -> bool:
    only = [f"{name} {_shown(value)}" for name, value in conditions.items() if value is not None]
    if conditions["reason"] is not None or conditions["error"] is not None:
        state = "dead"
    counts = {name: count for name, count in view.counts.items() if state in {None, name}}
    total = sum(counts.values())
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    what = output.count(total, "job") + (f" ({parts})" if parts else "")
    if only:  # how many match is not known yet
        what = f"those with {' and '.join(only)}, of {what}"
    print(f"Remove {what} of {view.topic} for good? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201 (it asks)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _shown(value: str | datetime) -> str:
    return value if isinstance(value, str) else format_instant(value)
