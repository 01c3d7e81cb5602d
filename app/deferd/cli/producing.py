"""`put` of one job, `show`, `change` and `cancel`."""

from __future__ import annotations

import argparse
import json
from typing import Any, Literal

from deferd.cli import error_messages, exit_codes, output, put_stream
from deferd.cli.connection import read_connection
from deferd.cli.exit_codes import UsageError
from deferd.client import Job
from deferd.contract.errors import DeferdError

_FLAGS_OF_A_JOB = ("delay", "run_at", "ttr", "max_attempts", "backoff", "ttl", "retain")


def put(given: argparse.Namespace) -> int:
    """Put one job, or those of standard input."""
    if given.body is None and given.topic == "-":  # put --jobs -
        given.topic, given.body = None, "-"
    job = {name: getattr(given, name) for name in _FLAGS_OF_A_JOB if hasattr(given, name)}
    if hasattr(given, "delay") and hasattr(given, "run_at"):
        raise UsageError("--delay and --run-at exclude each other: give one of them")
    if given.on_conflict is not None:
        job["on_conflict"] = given.on_conflict
    if given.durability is not None:
        job["durability"] = given.durability
    if given.body == "-":
        if given.id is not None:
            raise UsageError("--id names one job: with -, give --jobs and an id in each line")
        if given.topic is None and not given.jobs:
            raise UsageError("TOPIC is missing: only with --jobs may each line name its own")
        return put_stream.put_lines(given, job)
    if given.jobs:
        raise UsageError("--jobs reads standard input: give - as BODY")
    body = None if given.body is None else given.body.value
    with read_connection(vars(given)).open() as client:
        put_job = client.put(given.topic, body, id=given.id, **job)
    _show_briefly(put_job, given)
    return exit_codes.DONE


def change(given: argparse.Namespace) -> int:
    """Reschedule or change a job."""
    fields = {name: getattr(given, name) for name in _FLAGS_OF_A_JOB if hasattr(given, name)}
    if given.body == "-":
        raise UsageError("BODY is -, but only put reads standard input")
    if given.body is not None:
        fields["body"] = given.body.value
    if not fields:
        raise UsageError("nothing to change: give BODY or a flag such as --delay")
    if "delay" in fields and "run_at" in fields:
        raise UsageError("--delay and --run-at exclude each other: give one of them")
    with read_connection(vars(given)).open() as client:
        changed = client.change(given.topic, given.id, **fields)
    _show_briefly(changed, given)
    return exit_codes.DONE


def show(given: argparse.Namespace) -> int:
    """Show one job."""
    with read_connection(vars(given)).open() as client:
        job = client.look(given.topic, given.id)
    if given.json:
        output.json_line(job.fields)
    else:
        output.show_facts(_facts(job))
    return exit_codes.DONE


def cancel(given: argparse.Namespace) -> int:
    """Cancel jobs one after the other. One that cannot be cancelled does not keep the others; its code is returned."""
    code = exit_codes.DONE
    if_reserved: Literal["cancel", "refuse"] = "refuse" if given.refuse_reserved else "cancel"
    with read_connection(vars(given)).open() as client:
        for job_id in given.ids:
            try:
                done = client.cancel(given.topic, job_id, if_reserved=if_reserved)
            except DeferdError as error:
                if exit_codes.of_error(error) != exit_codes.REFUSED:
                    raise
                code = exit_codes.REFUSED
                output.complain(error_messages.sentence(error))
                if given.json:
                    output.json_line({"topic": given.topic, "id": job_id, "code": error.code})
                continue
            if given.json:
                output.json_line({"topic": done.topic, "id": done.id, "state": "cancelled", "was": done.was.value})
            else:
                output.line(f"{done.topic}/{done.id} cancelled, was {done.was.value}")
    return code


def _show_briefly(job: Job, given: argparse.Namespace) -> None:
    if given.json:
        output.json_line(job.fields)
    else:
        reached = f", durability {job.durability}" if getattr(given, "durability", None) else ""
        output.line(f"{job.topic}/{job.id} {job.state.value}, due {output.when(job.due_at)}{reached}")


def _facts(job: Job) -> list[tuple[str, str]]:
    facts: list[tuple[str, Any]] = [
        ("job", f"{job.topic}/{job.id}"),
        ("state", f"{job.state.value}, {output.where_it_stands(job)}"),
        ("created", output.when(job.created_at)),
        ("due", output.when(job.due_at)),
        ("attempts", f"{job.attempts} of {'any number' if job.max_attempts is None else job.max_attempts}"),
        ("ttr", output.span(job.ttr)),
        ("backoff", output.backoff(job.fields["backoff"])),
        ("ttl", "no bound" if job.ttl is None else output.span(job.ttl)),
        ("retain", "not kept when finished" if job.retain == 0 else output.span(job.retain)),
        ("lease ends", None if job.reserved_until is None else output.when(job.reserved_until)),
        ("held by", job.reserved_by),
        ("finished", None if job.finished_at is None else output.when(job.finished_at)),
        ("last error", job.last_error),
        ("trace", job.traceparent),
        ("result", None if "result" not in job.fields else _pretty(job.result)),
        ("body", _pretty(job.body)),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
