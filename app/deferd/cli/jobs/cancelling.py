"""The commands `cancel` and `reschedule`: jobs by their names, by a tag, by their group, or by their state.

Also `tasks`, and what all commands on many jobs print: the task that has begun, or what would be done.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command, sentence
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import (
    LONG_TIMEOUT_S,
    Connection,
    all_of,
    client_command,
    connection_options,
    durability_option,
    json_option,
    topic_argument,
)
from deferd.cli.framework.output import Cells, Column
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from deferd.client import BulkResult, Client, Task
    from deferd.client.bulk import Selector
    from deferd.contract.operations.bulk import Became

_WHICH: Final = "say which jobs: TOPIC and ID, --tag, or TOPIC and --state or --group"
_select_options: Final = all_of(
    [
        click.option("--tag", metavar="TAG", help="all jobs with this tag, of all topics or those of TOPIC"),
        click.option("--group", metavar="NAME", help="all jobs of TOPIC in this group"),
        click.option("--state", type=click.Choice(["delayed", "ready"]), help="all jobs of TOPIC in this state"),
        click.option("--due-after", type=values.instant, metavar="INSTANT", help="with --state: due then or later"),
        click.option("--due-before", type=values.instant, metavar="INSTANT", help="with --state: due before then"),
        click.option("--cutoff", type=values.instant, metavar="INSTANT", help="only jobs there, or dead, by then"),
        click.option("--limit", type=values.count_from_1, metavar="N", help="most jobs, up to 100000; default: all"),
        click.option("--dry-run", is_flag=True, help="only count the jobs"),
        click.option("--task", "as_task", is_flag=True, help="do it in the background: see `deferd tasks`"),
        click.option("--samples", is_flag=True, help="with --dry-run: name ten jobs, and print a cutoff"),
    ]
)
_TASK_CELLS: Cells[Task] = {
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


@command(
    "deferd cancel orders.close order-1042",
    "deferd cancel notices n-23 n-28 n-29 --refuse-reserved",
    "deferd cancel orders.close order-1042 --durability replicated:1",
    "deferd cancel --tag order-1042",
    "deferd cancel 'mail.*' --state delayed --dry-run",
    "deferd cancel orders.close --group customer-7 --dry-run",
)
@topic_argument("the jobs' topic; with --tag, --group or --state also a pattern", required=False)
@click.argument("ids", metavar="[ID]...", nargs=-1, help="the jobs' ids")
@_select_options
@click.option("--refuse-reserved", is_flag=True, help="do not cancel a job that a consumer holds")
@click.option("--keep-follow-up", is_flag=True, help="a put that waits for the job to end takes its place")
@durability_option("acknowledge when the cancel is in memory, fsync: on disk, or replicated:N: in N replicas as well")
@json_option()
@connection_options
def cancel(
    *,
    topic: str | None,
    ids: tuple[str, ...],
    refuse_reserved: bool,
    keep_follow_up: bool,
    durability: str | None,
    as_json: bool,
    connection: Connection,
    **many: Any,
) -> int:
    """Cancel jobs in any state. `was` shows whether it was in time: reserved means that a consumer had the job already.
    A job that cannot be cancelled does not keep the others from being cancelled.
    """
    if_reserved = "refuse" if refuse_reserved else "cancel"
    if _selects_many(**many):
        if keep_follow_up or durability is not None:
            option = "--keep-follow-up" if keep_follow_up else "--durability"
            raise UsageError(f"{option} is for jobs by their ids")
        with connection.with_defaults(timeout=LONG_TIMEOUT_S).open() as client:
            select = _selector(topic, ids, **many)
            calls = (client.cancel_all, client.start_cancel_all)
            _act_on_many(client, calls, select, "cancelled", {"if_reserved": if_reserved}, as_json=as_json, **many)
        return exit_codes.DONE
    if many["limit"] is not None or many["dry_run"]:
        raise UsageError("--limit and --dry-run are for --tag, --group and --state")
    if many["cutoff"] is not None or many["samples"] or many["as_task"]:
        raise UsageError("--cutoff, --samples and --task are for --tag, --group and --state")
    if topic is None or not ids:
        raise UsageError(_WHICH)
    options = {"if_reserved": if_reserved, "follow_up": "keep" if keep_follow_up else "cancel"}
    if durability is not None:
        options["durability"] = durability
    return _cancel_each(topic, ids, options, as_json=as_json, connection=connection)


def _cancel_each(topic: str, ids: tuple[str, ...], options: Any, *, as_json: bool, connection: Connection) -> int:
    from deferd.contract.errors import DeferdError

    code = exit_codes.DONE
    with connection.open() as client:
        for job_id in ids:
            try:
                job = client.cancel(topic, job_id, **options)
            except DeferdError as error:
                if exit_codes.of_error(error) != exit_codes.REFUSED:
                    raise
                code = exit_codes.REFUSED
                output.complain(sentence(error))
                if as_json:
                    output.json_line({"topic": topic, "id": job_id, "code": error.code})
                continue
            reached = "" if job.durability is None else f", durability {job.durability}"
            text = f"{job.topic}/{job.id} cancelled, was {job.was.value}{reached}"
            output.json_or_line(job.fields, text, as_json=as_json)
    return code


@client_command(
    "deferd reschedule --tag customer:7 --by 1h",
    "deferd reschedule 'orders.*' --state ready --delay 10m --dry-run",
    "deferd reschedule orders.close order-1042 order-1043 --by=-30m",
    timeout_s=LONG_TIMEOUT_S,
)
@topic_argument("the jobs' topic; with --tag, --group or --state also a pattern", required=False)
@click.argument("ids", metavar="[ID]...", nargs=-1, help="the jobs' ids, up to 1000")
@_select_options
@click.option("--by", type=values.signed_duration, help="move the due times by this much: 1h, -30m")
@click.option("--delay", type=values.duration, help="due this long from now: 90, 30m, 24h, 7d")
@click.option("--run-at", type=values.instant, help="due at this instant: 2030-01-31T09:30:00Z")
@click.option("--spread", type=values.duration, help="not all at once, but spread over this: 10m, 1h")
@click.option("--request-id", metavar="ID", help="repeats of this command with the same ID move no job twice")
def reschedule(
    *,
    topic: str | None,
    ids: tuple[str, ...],
    by: float | None,
    delay: float | None,
    run_at: datetime | None,
    spread: float | None,
    request_id: str | None,
    client: Client,
    as_json: bool,
    **many: Any,
) -> None:
    """Give many jobs a new due time, each once: those of ID, with a tag, of a group, or in a state. Only delayed and
    ready jobs are changed. For one job see also `change`.
    """
    if sum(value is not None for value in (by, delay, run_at)) != 1:
        raise UsageError("give one of --by, --delay and --run-at")
    if not _selects_many(**many) and (topic is None or not ids):
        raise UsageError(_WHICH)
    if many["as_task"] and ids:
        raise UsageError("--task is for --tag, --group and --state")
    select = _selector(topic, ids, **many)
    calls = (client.reschedule_all, client.start_reschedule_all)
    action = {"by": by, "delay": delay, "run_at": run_at, "spread": spread, "request_id": request_id}
    _act_on_many(client, calls, select, "rescheduled", action, as_json=as_json, **many)


@client_command(
    "deferd tasks",
    "deferd tasks 5f0c9a3be7d2481c --stop",
    "deferd tasks 5f0c9a3be7d2481c --became",
    "deferd tasks --json | jq -r 'select(.state == \"running\").id'",
)
@click.argument("ids", metavar="[ID]...", nargs=-1, help="these tasks; without any, those that began last")
@click.option("--stop", is_flag=True, help="ask for their end; what is done stays done")
@click.option("--became", is_flag=True, help="with the ID of a redrive: what became of its jobs")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most tasks, up to 1000; default 100")
def tasks(*, ids: tuple[str, ...], stop: bool, became: bool, limit: int | None, client: Client, as_json: bool) -> None:
    """Show how far actions on many jobs are that run in the background: those of `cancel`, `reschedule`, `redrive` and
    `purge` with --task. Ended ones are kept for 7 days.
    """
    if (stop or became) and not ids:
        raise UsageError(f"{'--stop' if stop else '--became'} needs the ID of a task")
    if stop and became:
        raise UsageError("--stop and --became exclude each other")
    read = client.stop_task if stop else partial(client.task, became=became)
    found = [read(task_id) for task_id in ids] if ids else client.tasks(limit=limit)
    output.json_or_table(found, _TASK_CELLS, "no task has begun within 7 days", as_json=as_json)
    for task in found:
        if task.became is not None and not as_json:
            output.line(f"{task.id}: {_became(task.became)}")


def _became(became: Became) -> str:
    counts = {
        "waiting": became.waiting,
        "of those after an error": became.retrying,
        "running": became.running,
        "finished": became.finished,
        "dead again": became.dead,
        "gone (finished, cancelled or removed)": became.gone,
    }
    parts = [f"{count:,} {text}" for text, count in counts.items() if count]
    errors = "".join(f"; {one.jobs:,} with {one.error}" for one in became.errors)
    return output.printable(f"of {output.count(became.looked_at, 'job')} {', '.join(parts) or 'none'}{errors}")


def _act_on_many(
    client: Client,
    calls: tuple[Callable[..., BulkResult], Callable[..., Task]],
    select: Selector,
    done: str,
    action: dict[str, Any],
    *,
    limit: int | None,
    dry_run: bool,
    samples: bool,
    as_task: bool,
    as_json: bool,
    **_selectors: Any,
) -> None:
    """Act on the selected jobs, or begin a task that does, by one of the two `calls`; or show what would be done."""
    act, start = calls
    if as_task:
        if dry_run:
            raise UsageError("--task is not for --dry-run")
        show_begun(start(limit=limit, **action, **select), as_json=as_json)
    elif samples:
        if not dry_run:
            raise UsageError("--samples is for --dry-run")
        show_preview(client.preview_cancel_all(limit=limit, **select), as_json=as_json)
    else:
        _show(act(limit=limit, dry_run=dry_run, **action, **select), done, as_json=as_json)


def _selects_many(
    *,
    tag: str | None,
    group: str | None,
    state: str | None,
    due_after: datetime | None,
    due_before: datetime | None,
    **_how: Any,
) -> bool:
    selectors = sum(one is not None for one in (tag, group, state))
    if selectors > 1:
        raise UsageError("--tag, --group and --state exclude each other: give one of them")
    if state is None and (due_after is not None or due_before is not None):
        raise UsageError("--due-after and --due-before are for --state")
    return selectors == 1


def _selector(topic: str | None, ids: tuple[str, ...], **many: Any) -> Selector:
    """The selectors of the client. Raises UsageError."""
    if not _selects_many(**many):
        return {"ids": [(topic or "", job_id) for job_id in ids], "cutoff": many["cutoff"]}
    if ids:
        raise UsageError("--tag, --group and --state are for many jobs: leave out ID")
    if topic is None and many["tag"] is None:
        option = "--group" if many["state"] is None else "--state"
        raise UsageError(f"{option} needs TOPIC: a topic, or a pattern such as 'orders.*'")
    selectors = {name: many[name] for name in ("tag", "group", "state", "due_after", "due_before")}
    return {**selectors, "topics": topic, "cutoff": many["cutoff"]}  # type: ignore[typeddict-item] # names as the options


def _show(done: BulkResult, what: str, *, as_json: bool) -> None:
    parts = ", ".join(f"{count:,} {state.value}" for state, count in done.was.items())
    more = "" if done.complete else "; there may be more"
    text = f"{done.done:,} of {output.count(done.matched, 'job')} {what}{f', was {parts}' if parts else ''}{more}"
    output.json_or_line(done.fields, text, as_json=as_json)


if TYPE_CHECKING:
    from deferd.client import Client, Preview, Task


def show_begun(task: Task, *, as_json: bool) -> None:
    """Say that a task has begun, and how to see its progress."""
    output.json_or_line(task.fields, f"task {task.id} has begun: deferd tasks {task.id}", as_json=as_json)


def show_preview(preview: Preview, *, as_json: bool, rate: float | None = None) -> None:
    """Print the count, the cutoff with which the command acts on nothing else, and samples.

    `rate`: how many jobs a second are acted on; then it also says how long that takes.
    """
    if as_json:
        output.json_line(preview.fields)
        return
    noun = "job matches" if preview.matched == 1 else "jobs match"
    more = "" if preview.complete else ", and there may be more"
    cutoff = format_instant(preview.cutoff)
    output.line(f"{preview.matched:,} {noun}{more}; to act on no other: --cutoff {cutoff}")
    if rate:
        takes_s = preview.matched / rate
        end = datetime.now().astimezone() + timedelta(seconds=takes_s)
        output.line(f"at {rate:g} jobs a second: {output.span(takes_s)}, if it begins now until {end:%Y-%m-%d %H:%M}")
    for sample in preview.samples:
        output.line(f"{sample.topic}/{sample.id} ({sample.state.value})")
