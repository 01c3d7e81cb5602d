"""The commands of consumers: `pop`, and `finish`, `release`, `touch` and `bury` for a job that one holds."""

from __future__ import annotations

import functools
import shlex
from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.options import Function, client_command, error_option, job_arguments, topic_argument
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from deferd.client import Client, Delivery, JobRef


def _delivery_arguments(function: Function) -> Function:
    """The job and its receipt, as the argument `job`."""

    @functools.wraps(function)
    def run(topic: str, id: str, receipt: str | None, **arguments: Any) -> int | None:
        from deferd.client import JobRef

        return function(job=JobRef(topic, id, receipt), **arguments)

    receipt = click.option("--receipt", metavar="R", help="that of the pop; default: that of the live delivery")
    return job_arguments(receipt(run))


@client_command(
    "deferd pop orders.close",
    "deferd pop urgent,normal --count 10 --wait 0 --json",
    "deferd pop 'orders.urgent,orders.*'",
)
@topic_argument("or several, in strict priority: a,b,c; also patterns, 'a,b.*', whose topics take turns")
@click.option("--count", type=values.whole, default=1, metavar="N", help="most jobs, 1 to 1000; default 1")
@click.option("--wait", type=values.duration, default="20s", help="wait for the first, 0 to 60s; default 20s")
@click.option("--ttr", type=values.duration, help="length of the lease: 0.1s to 24h")
@click.option("--consumer", metavar="NAME", help="shown as the holder")
def pop(topic: str, wait: float, client: Client, as_json: bool, **options: Any) -> int:
    """Take ready jobs. They are yours until their leases end: finish, release, touch or bury them."""
    jobs = client.pop(topic, wait=wait, **options)
    for job in jobs:
        if as_json:
            output.json_line(job.fields)
        else:
            _show(job)
    if not jobs:
        output.hint(f"nothing ready in {topic} within {output.span(wait)}")
        return exit_codes.NOTHING_READY
    if not as_json:
        first = jobs[0]
        output.hint(f"when done: deferd finish {first.topic} {first.id} --receipt {shlex.quote(first.receipt)}")
    return exit_codes.DONE


@client_command(
    "deferd finish orders.close order-1042",
    "deferd finish orders.close order-1042 --receipt 29a1e0c3.1 --result '\"closed\"'",
    """deferd finish orders.close order-1042 --put '{"topic": "mail", "body": {"order": 1042}}'""",
)
@_delivery_arguments
@click.option(
    "--result", type=values.json_value, metavar="JSON", help="kept with the record of the job if it has a retain"
)
@click.option(
    "--put",
    "puts",
    type=values.json_object,
    metavar="JSON",
    multiple=True,
    help='a job to put in the same step, {"topic": ..., "body": ...}; up to 10 times',
)
def finish(job: JobRef, result: Any, puts: tuple[dict[str, Any], ...], client: Client, as_json: bool) -> None:
    """Finish a job: it is done. With --put, it is done and the others are put, or nothing happens."""
    client.finish(job, result, put=puts)
    _show_state(job, "finished", as_json=as_json)


@client_command(
    "deferd release orders.close order-1042 --delay 5m --error 'the shop is down'",
    "deferd release orders.close order-1042 --delay 30s --no-count",
)
@_delivery_arguments
@click.option("--delay", type=values.duration, help="instead of the job's backoff")
@click.option("--no-count", is_flag=True, help="a snooze: it does not count as an attempt; needs --delay, from 0.1s")
@error_option
def release(job: JobRef, no_count: bool, client: Client, as_json: bool, **options: Any) -> None:
    """End a delivery, for another attempt of the job."""
    released = client.release(job, count=not no_count, **options)
    then = "it has no attempt left" if released.due_at is None else f"due {output.when(released.due_at)}"
    fields = {"topic": job.topic, "id": job.id, **released.fields}
    output.json_or_line(fields, f"{job.topic}/{job.id} {released.state.value}, {then}", as_json=as_json)


@client_command(
    "deferd touch orders.close order-1042",
    "deferd touch orders.close order-1042 --ttr 10m",
    "deferd touch orders.close order-1042 --progress 0.4",
)
@_delivery_arguments
@click.option("--ttr", type=values.duration, help="from now; default: that of the job")
@click.option("--progress", type=values.json_value, metavar="JSON", help="how far it is: a number 0 to 1, or any JSON")
def touch(job: JobRef, client: Client, as_json: bool, **options: Any) -> None:
    """Extend the lease of a job, and report its progress."""
    until = client.touch(job, **options)
    fields = {"topic": job.topic, "id": job.id, "reserved_until": format_instant(until)}
    output.json_or_line(fields, f"{job.topic}/{job.id} lease ends {output.when(until)}", as_json=as_json)


@client_command("deferd bury orders.close order-1042 --error 'no such order'")
@_delivery_arguments
@error_option
def bury(job: JobRef, error: str | None, client: Client, as_json: bool) -> None:
    """Make a job dead until it is redriven."""
    client.bury(job, error=error)
    _show_state(job, "dead", as_json=as_json)


def _show_state(job: JobRef, state: str, *, as_json: bool) -> None:
    fields = {"topic": job.topic, "id": job.id, "state": state}
    output.json_or_line(fields, f"{job.topic}/{job.id} {state}", as_json=as_json)


def _show(job: Delivery) -> None:
    output.line(f"{job.topic}/{job.id} attempt {job.attempt}, lease ends {output.when(job.reserved_until)}")
    output.line(f"  receipt  {job.receipt}")
    if job.last_error:
        output.line(f"  error    {output.printable(job.last_error)}")
    output.line(f"  body     {output.printable(output.json_text(job.fields.get('body')))}")
