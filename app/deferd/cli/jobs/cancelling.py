"""The commands `cancel` and `reschedule`: jobs by their names, by a tag, or by their state."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import DURABILITIES, all_of, connection_options, json_option, topic_argument
from deferd.cli.jobs import previews
from deferd.cli.jobs.tasks import show_begun

if TYPE_CHECKING:
    from deferd.client import BulkResult
    from deferd.client.bulk import Selector

_LONG_TIMEOUT_S = 600.0
_WHICH: Final = "say which jobs: TOPIC and ID, --tag, or TOPIC and --state"
_select_options: Final = all_of(
    [
        click.option("--tag", metavar="TAG", help="all jobs with this tag, of all topics or those of TOPIC"),
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


@command(
    "deferd cancel orders.close order-1042",
    "deferd cancel notices n-23 n-28 n-29 --refuse-reserved",
    "deferd cancel orders.close order-1042 --durability replicated:1",
    "deferd cancel --tag order-1042",
    "deferd cancel 'mail.*' --state delayed --dry-run",
)
@topic_argument("the jobs' topic; with --tag or --state also a pattern", required=False)
@click.argument("ids", metavar="[ID]...", nargs=-1, help="the jobs' ids")
@_select_options
@click.option("--refuse-reserved", is_flag=True, help="do not cancel a job that a consumer holds")
@click.option("--keep-follow-up", is_flag=True, help="a put that waits for the job to end takes its place")
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    metavar="LEVEL",
    help="acknowledge when the cancel is in memory, fsync: on disk, or replicated:N: in N replicas as well",
)
@json_option()
@connection_options
def cancel(
    *,
    topic: str | None,
    ids: tuple[str, ...],
    cutoff: datetime | None,
    limit: int | None,
    dry_run: bool,
    samples: bool,
    as_task: bool,
    refuse_reserved: bool,
    keep_follow_up: bool,
    durability: str | None,
    as_json: bool,
    connection: Connection,
    **selectors: Any,
) -> int:
    """Cancel jobs in any state. `was` shows whether it was in time: reserved means that a consumer had the job already.
    A job that cannot be cancelled does not keep the others from being cancelled.
    """
    if_reserved: Any = "refuse" if refuse_reserved else "cancel"
    if _selects_many(**selectors):
        if keep_follow_up or durability is not None:
            option = "--keep-follow-up" if keep_follow_up else "--durability"
            raise UsageError(f"{option} is for jobs by their ids")
        select = _selector(topic, ids, cutoff, **selectors)
        with connection.with_defaults(timeout=_LONG_TIMEOUT_S).open() as client:
            if as_task:
                _refuse_dry_run(dry_run=dry_run)
                begun = client.start_cancel_all(limit=limit, if_reserved=if_reserved, **select)
                show_begun(begun, as_json=as_json)
                return exit_codes.DONE
            if _shows_samples(dry_run=dry_run, samples=samples):
                previews.show(client.preview_cancel_all(limit=limit, **select), as_json=as_json)
                return exit_codes.DONE
            done = client.cancel_all(limit=limit, dry_run=dry_run, if_reserved=if_reserved, **select)
        _show(done, "cancelled", as_json=as_json)
        return exit_codes.DONE
    if limit is not None or dry_run:
        raise UsageError("--limit and --dry-run are for --tag and --state")
    if cutoff is not None or samples or as_task:
        raise UsageError("--cutoff, --samples and --task are for --tag and --state")
    if topic is None or not ids:
        raise UsageError(_WHICH)
    options = {"if_reserved": if_reserved, "follow_up": "keep" if keep_follow_up else "cancel"}
    if durability is not None:
        options["durability"] = durability
    return _cancel_each(topic, ids, options, as_json=as_json, connection=connection)


def _cancel_each(topic: str, ids: tuple[str, ...], options: Any, *, as_json: bool, connection: Connection) -> int:
    from deferd.cli.framework.error_messages import sentence
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
            if as_json:
                reached = {} if job.durability is None else {"durability": job.durability}
                fields = {"topic": job.topic, "id": job.id, "state": "cancelled", "was": job.was.value}
                output.json_line({**fields, **reached})
            else:
                reached_text = "" if job.durability is None else f", durability {job.durability}"
                output.line(f"{job.topic}/{job.id} cancelled, was {job.was.value}{reached_text}")
    return code


@command(
    "deferd reschedule --tag customer:7 --by 1h",
    "deferd reschedule 'orders.*' --state ready --delay 10m --dry-run",
    "deferd reschedule orders.close order-1042 order-1043 --by=-30m",
)
@topic_argument("the jobs' topic; with --tag or --state also a pattern", required=False)
@click.argument("ids", metavar="[ID]...", nargs=-1, help="the jobs' ids, up to 1000")
@_select_options
@click.option("--by", type=values.signed_duration, help="move the due times by this much: 1h, -30m")
@click.option("--delay", type=values.duration, help="due this long from now: 90, 30m, 24h, 7d")
@click.option("--run-at", type=values.instant, help="due at this instant: 2030-01-31T09:30:00Z")
@click.option("--request-id", metavar="ID", help="repeats of this command with the same ID move no job twice")
@json_option()
@connection_options
def reschedule(
    *,
    topic: str | None,
    ids: tuple[str, ...],
    by: float | None,
    delay: float | None,
    run_at: datetime | None,
    cutoff: datetime | None,
    limit: int | None,
    dry_run: bool,
    samples: bool,
    as_task: bool,
    request_id: str | None,
    as_json: bool,
    connection: Connection,
    **selectors: Any,
) -> None:
    """Give many jobs a new due time, each once: those of ID, with a tag, or in a state. Only delayed and ready jobs are
    changed. For one job see also `change`.
    """
    if sum(value is not None for value in (by, delay, run_at)) != 1:
        raise UsageError("give one of --by, --delay and --run-at")
    if not _selects_many(**selectors) and (topic is None or not ids):
        raise UsageError(_WHICH)
    if as_task and ids:
        raise UsageError("--task is for --tag and --state")
    select = _selector(topic, ids, cutoff, **selectors)
    with connection.with_defaults(timeout=_LONG_TIMEOUT_S).open() as client:
        if as_task:
            _refuse_dry_run(dry_run=dry_run)
            begun = client.start_reschedule_all(
                by=by, delay=delay, run_at=run_at, limit=limit, request_id=request_id, **select
            )
            show_begun(begun, as_json=as_json)
            return
        if _shows_samples(dry_run=dry_run, samples=samples):
            previews.show(client.preview_cancel_all(limit=limit, **select), as_json=as_json)
            return
        done = client.reschedule_all(
            by=by,
            delay=delay,
            run_at=run_at,
            limit=limit,
            dry_run=dry_run,
            request_id=request_id,
            **select,
        )
    _show(done, "rescheduled", as_json=as_json)


def _refuse_dry_run(*, dry_run: bool) -> None:
    if dry_run:
        raise UsageError("--task is not for --dry-run")


def _shows_samples(*, dry_run: bool, samples: bool) -> bool:
    if samples and not dry_run:
        raise UsageError("--samples is for --dry-run")
    return samples


def _selects_many(
    *, tag: str | None, state: str | None, due_after: datetime | None, due_before: datetime | None
) -> bool:
    if tag is not None and state is not None:
        raise UsageError("--tag and --state exclude each other: give one of them")
    if state is None and (due_after is not None or due_before is not None):
        raise UsageError("--due-after and --due-before are for --state")
    return tag is not None or state is not None


def _selector(topic: str | None, ids: tuple[str, ...], cutoff: datetime | None, **selectors: Any) -> Selector:
    """The selectors of the client. Raises UsageError."""
    if not _selects_many(**selectors):
        return {"ids": [(topic or "", job_id) for job_id in ids], "cutoff": cutoff}
    if ids:
        raise UsageError("--tag and --state are for many jobs: leave out ID")
    if topic is None and selectors["state"] is not None:
        raise UsageError("--state needs TOPIC: a topic, or a pattern such as 'orders.*'")
    return {**selectors, "topics": topic, "cutoff": cutoff}  # type: ignore[typeddict-item] # their names are those of the options


def _show(done: BulkResult, what: str, *, as_json: bool) -> None:
    if as_json:
        output.json_line(done.fields)
        return
    parts = ", ".join(f"{count:,} {state.value}" for state, count in done.was.items())
    noun = "job" if done.matched == 1 else "jobs"
    more = "" if done.complete else "; there may be more"
    output.line(f"{done.done:,} of {done.matched:,} {noun} {what}" + (f", was {parts}" if parts else "") + more)
