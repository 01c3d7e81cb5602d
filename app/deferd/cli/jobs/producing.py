"""The commands of producers for single jobs: `put`, `get`, `wait`, `change`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import (
    Connection,
    client_command,
    collapse_options,
    connection_options,
    due_options,
    durability_option,
    job_arguments,
    json_option,
    label_options,
    policy_options,
    topic_argument,
)
from deferd.contract.fields import PLACING, POLICY, Field

if TYPE_CHECKING:
    from deferd.client import Client, Job
    from deferd.contract.operations.jobs import EndedAttempt


@command(
    """deferd put orders.close '{"order": 1042}' --id order-1042 --delay 30m""",
    """deferd put calls '{"to": 7}' --window '{"zone": "Europe/Berlin", "from": "09:00"}' --spread 10m""",
    """deferd put mail.remind '"Ada"' --run-at 2030-01-31T09:30:00Z --backoff schedule:2m,10m,1h""",
    "deferd put orders.close - --delay 30m < bodies.ndjson",
    """echo '{"id": "o-1", "body": {"n": 1}, "delay": 60}' | deferd put orders.close - --jobs""",
    "deferd put orders.close - --jobs --on-conflict keep --json < jobs.ndjson > results.ndjson",
)
@topic_argument("where to put it")
@click.argument("body", required=False, type=values.body, help="any JSON value; -: a job for each line of stdin")
@click.option("--id", metavar="ID", help="your own id, by which you can cancel it; default: a generated one")
@due_options
@policy_options
@label_options
@click.option(
    "--on-conflict",
    type=click.Choice(["reject", "keep", "replace", "append"]),
    help="when the id exists: reject (exit code 3), keep the old job, replace it, or append to it",
)
@collapse_options
@durability_option("acknowledge when it is in memory, fsync: on disk, or replicated:N: in N replicas as well")
@click.option("--jobs", is_flag=True, help='with -: each line is a whole job, {"id": ..., "body": ..., "delay": ...}')
@json_option("print the job, or with - the result of each line, as JSON")
@connection_options
def put(
    *,
    topic: str | None,
    body: values.Body | Literal["-"] | None,
    id: str | None,
    on_conflict: str | None,
    durability: str | None,
    jobs: bool,
    as_json: bool,
    connection: Connection,
    fields: dict[str, Any],
) -> int | None:
    """Put a job. With - as BODY, each line of standard input (NDJSON) is the body of a job, or with --jobs a whole job.
    There may be any number of lines; they are sent in batches. The first line that is refused ends the command: all
    lines before it are put.
    """
    if body is None and topic == "-":  # put --jobs -
        topic, body = None, "-"
    if "delay" in fields and "run_at" in fields:
        raise UsageError("--delay and --run-at exclude each other: give one of them")
    if on_conflict is not None:
        fields["on_conflict"] = on_conflict
    if durability is not None:
        fields["durability"] = durability
    if isinstance(body, str):
        if id is not None:
            raise UsageError("--id is for one job: with - as BODY, give --jobs and an id in each line")
        if topic is None and not jobs:
            raise UsageError("TOPIC is missing: only with --jobs may each line name its own")
        from deferd.cli.jobs import put_stream

        common = fields if topic is None else {**fields, "topic": topic}
        return put_stream.put_lines(common, connection=connection, whole_jobs=jobs, as_json=as_json)
    if jobs:
        raise UsageError("--jobs reads standard input: give - as BODY")
    assert topic is not None  # noqa: S101 (for mypy: it is required)
    with connection.open() as client:
        job = client.put(topic, None if body is None else body.value, id=id, **fields)
    _show_briefly(job, as_json=as_json, durability=durability is not None)
    return None


@client_command("deferd get orders.close order-1042", "deferd get orders.close order-1042 --json | jq .state")
@job_arguments
def get(topic: str, id: str, client: Client, as_json: bool) -> None:
    """Show a job without changing it."""
    job = client.get(topic, id)
    output.json_or_facts(job.fields, _facts(job), as_json=as_json)


@client_command(
    "deferd wait orders.close order-1042",
    "deferd wait orders.close order-1042 --within 5m --progress",
    "deferd wait orders.close order-1042 --json | jq .result",
)
@job_arguments
@click.option("--within", type=values.duration, help="exit with code 4 if it has not ended by then; default: never")
@click.option("--progress", is_flag=True, help="meanwhile, print its progress on standard error")
def wait(*, topic: str, id: str, within: float | None, progress: bool, client: Client, as_json: bool) -> int:
    """Wait until a job has ended, and show it: with its result, if it has a retain. The exit code is 0 for a finished
    job, and 6 for one that is dead or cancelled.
    """
    end_s = inf if within is None else monotonic() + within
    until: Literal["end", "progress"] = "progress" if progress else "end"
    after = datetime.fromtimestamp(0, UTC)
    while True:
        left_s = None if within is None else max(end_s - monotonic(), 0)
        job = client.wait(topic, id, timeout=left_s, until=until, after=after)
        if job.outcome is not None or monotonic() >= end_s:
            break
        if job.progress_at is not None:
            after = job.progress_at
            click.echo(f"{output.from_now(after)}: {output.progress(job.progress)}", err=True)
    output.json_or_facts(job.fields, _facts(job), as_json=as_json)
    if job.outcome is None:
        return exit_codes.NOTHING_READY
    return exit_codes.DONE if job.outcome == "finished" else exit_codes.FINDINGS


@client_command("deferd change orders.close order-1042 --delay 1h", """deferd change mail.remind r-7 '{"to": "Bob"}'""")
@job_arguments
@click.argument("body", required=False, type=values.body, help="the new body, any JSON value")
@due_options
@policy_options
@label_options
def change(
    *,
    topic: str,
    id: str,
    body: values.Body | Literal["-"] | None,
    client: Client,
    as_json: bool,
    fields: dict[str, Any],
) -> None:
    """Reschedule or change a delayed or ready job."""
    fields |= values.body_field(body)
    if not fields:
        raise UsageError("nothing to change: give BODY or a flag such as --delay")
    if "delay" in fields and "run_at" in fields:
        raise UsageError("--delay and --run-at exclude each other: give one of them")
    _show_briefly(client.change(topic, id, **fields), as_json=as_json)


def _show_briefly(job: Job, *, as_json: bool, durability: bool = False) -> None:
    moved = "" if job.asked_for is None else f" (asked for {output.when(job.asked_for)})"
    waits = ", after the one that a consumer holds" if job.is_follow_up else ""
    reached = f", durability {job.durability}" if durability else ""
    text = f"{job.topic}/{job.id} {job.state.value}, due {output.when(job.due_at)}{moved}{waits}{reached}"
    output.json_or_line(job.fields, text, as_json=as_json)


_ELSEWHERE = PLACING | {"max_attempts"}
"""Fields of the policy that are shown beside what they concern."""
_WITHOUT = {"ttl": "no bound", "retain": "not kept when finished"}


def _policy_fact(job: Job, field: Field) -> str | None:
    """What people read of a field; None to leave it out."""
    value = job.fields.get(field.name)
    if field.name == "deadline":
        return None if job.deadline_at is None else output.when(job.deadline_at)
    if field.is_always_shown and not value:
        return _WITHOUT[field.name]
    return None if value is None else output.field_text(field, value)


def _facts(job: Job) -> Iterator[tuple[str, str]]:
    fields = job.fields  # as the service sent them where they cannot be decrypted
    facts: list[tuple[str, Any]] = [
        ("job", f"{job.topic}/{job.id}"),
        ("outcome", job.outcome),
        ("state", f"{job.state.value}, {output.where_it_stands(job)}"),
        ("created", output.when(job.created_at)),
        ("due", output.when(job.due_at)),
        ("asked for", None if job.asked_for is None else output.when(job.asked_for)),
        ("window", None if job.window is None else output.window(job.window)),
        ("spread", output.span(job.spread) if job.spread else None),
        ("attempts", f"{job.attempts} of {'any number' if job.max_attempts is None else job.max_attempts}"),
        ("snoozes", str(job.snoozes) if job.snoozes else None),
        *((field.name.replace("_", " "), _policy_fact(job, field)) for field in POLICY if field.name not in _ELSEWHERE),
        ("items", str(job.items) if job.items else None),
        ("due by", None if job.due_by is None else output.when(job.due_by)),
        ("unique for", output.span(job.unique_for) if job.unique_for else None),
        ("batch", job.batch),
        ("followed by", None if job.followed_by is None else _pretty(job.followed_by.body)),
        ("lease ends", None if job.reserved_until is None else output.when(job.reserved_until)),
        ("held by", job.reserved_by),
        ("held since", None if job.reserved_since is None else output.when(job.reserved_since)),
        ("progress", _progress(job)),
        ("finished", None if job.finished_at is None else output.when(job.finished_at)),
        *(("attempt " + str(one.attempt), _ended(one)) for one in job.attempts_log),
        ("last error", job.last_error),
        ("trace", job.traceparent),
        ("tags", ", ".join(job.tags) or None),
        ("headers", "\n".join(f"{name}={text}" for name, text in fields.get("headers", {}).items()) or None),
        ("group", job.group),
        ("priority", str(job.priority) if job.priority else None),
        ("result", None if "result" not in fields else _pretty(fields["result"])),
        ("body", _pretty(fields.get("body"))),
    ]
    yield from ((name, value) for name, value in facts if value is not None)


def _ended(attempt: EndedAttempt) -> str:
    by = "" if attempt.by is None else f" by {attempt.by}"
    error = "" if attempt.error is None else f": {attempt.error}"
    return f"{attempt.how.value} {output.when(attempt.ended_at)}{by}{error}"


def _progress(job: Job) -> str | None:
    if job.progress_at is None:
        return None
    return f"{output.progress(job.progress)}, {output.when(job.progress_at)}"


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
