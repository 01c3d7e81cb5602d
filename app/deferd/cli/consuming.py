"""`pop`, and what a consumer says about the job it holds: `finish`, `release`, `touch`, `bury`."""

from __future__ import annotations

import argparse
import shlex

from deferd.cli import exit_codes, output
from deferd.cli.connection import read_connection
from deferd.client import Delivery, JobRef


def pop(given: argparse.Namespace) -> int:
    """Take ready jobs and print them with their receipts."""
    with read_connection(vars(given)).open() as client:
        jobs = client.pop(given.topic, count=given.count, wait=given.wait, ttr=given.ttr, consumer=given.consumer)
    for job in jobs:
        if given.json:
            output.json_line(job.fields)
        else:
            _show(job)
    if not jobs:
        output.hint(f"nothing ready in {given.topic} within {output.span(given.wait)}")
        return exit_codes.NOTHING_READY
    if not given.json:
        first = jobs[0]
        output.hint(f"when done: deferd finish {first.topic} {first.id} --receipt {shlex.quote(first.receipt)}")
    return exit_codes.DONE


def finish(given: argparse.Namespace) -> int:
    """Say that a job is done."""
    with read_connection(vars(given)).open() as client:
        client.finish(_ref(given), given.result)
    return _said(given, "finished")


def release(given: argparse.Namespace) -> int:
    """Give a job back."""
    with read_connection(vars(given)).open() as client:
        released = client.release(_ref(given), delay=given.delay, error=given.error)
    due_at = None if released.due_at is None else released.due_at.isoformat(timespec="milliseconds")
    if given.json:
        due = {} if due_at is None else {"due_at": due_at.replace("+00:00", "Z")}
        output.json_line({**_name(given), "state": released.state.value, **due, "attempts": released.attempts})
    else:
        then = "it has no attempt left" if released.due_at is None else f"due {output.when(released.due_at)}"
        output.line(f"{given.topic}/{given.id} {released.state.value}, {then}")
    return exit_codes.DONE


def touch(given: argparse.Namespace) -> int:
    """Extend the lease."""
    with read_connection(vars(given)).open() as client:
        until = client.touch(_ref(given), ttr=given.ttr)
    if given.json:
        instant = until.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        output.json_line({**_name(given), "reserved_until": instant})
    else:
        output.line(f"{given.topic}/{given.id} lease ends {output.when(until)}")
    return exit_codes.DONE


def bury(given: argparse.Namespace) -> int:
    """Move a job to the dead ones."""
    with read_connection(vars(given)).open() as client:
        client.bury(_ref(given), error=given.error)
    return _said(given, "dead")


def _said(given: argparse.Namespace, state: str) -> int:
    if given.json:
        output.json_line({**_name(given), "state": state})
    else:
        output.line(f"{given.topic}/{given.id} {state}")
    return exit_codes.DONE


def _ref(given: argparse.Namespace) -> JobRef:
    return JobRef(given.topic, given.id, given.receipt)


def _name(given: argparse.Namespace) -> dict[str, str]:
    return {"topic": given.topic, "id": given.id}


def _show(job: Delivery) -> None:
    lease = "" if job.reserved_until is None else f", lease ends {output.when(job.reserved_until)}"
    output.line(f"{job.topic}/{job.id} attempt {job.attempt}{lease}")
    output.line(f"  receipt  {job.receipt}")
    if job.last_error:
        output.line(f"  error    {output.printable(job.last_error)}")
    output.line(f"  body     {output.printable(output.json_text(job.body))}")
