"""Looking after topics: `topics`, `topic`, `jobs`, `redrive`, `purge`, `pause`, `resume`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from deferd.cli import exit_codes, output
from deferd.cli.connection import read_connection
from deferd.cli.exit_codes import UsageError
from deferd.cli.output import Column
from deferd.cli.unavailable_topics import LeftOut
from deferd.client import Client, Job, TopicView, requests
from deferd.contract.errors import TopicNotFound
from deferd.contract.limits import PAGE_MAX
from deferd.contract.model import JobState

_SETTINGS = ("ttr", "max_attempts", "backoff", "ttl", "retain", "max_jobs", "durability")
_LONG_TIMEOUT = "10m"
"""For what takes the service as long as there are jobs, and what is not sent again when no answer came."""
_STATES = [state.value for state in JobState]
_TOPICS = [
    Column("TOPIC"),
    *(Column(state.upper(), right=True) for state in _STATES),
    Column("OLDEST READY", right=True),
    Column("NEXT DUE", right=True),
]
_TOPICS_SHORT = [*_TOPICS[:-2], Column("OLDEST", right=True), Column("DUE", right=True)]
"""For narrow terminals."""
_JOBS = [
    Column("ID"),
    Column("STATE"),
    Column("STANDS", cut=True),
    Column("TRIES", right=True),
    Column("BODY", cut=True),
]


def topics(given: argparse.Namespace) -> int:
    """List all topics."""
    views: list[TopicView] = []
    left_out = LeftOut()
    with read_connection(vars(given)).open() as client:
        for page in client.topic_pages():
            left_out.note(page)
            if given.json:
                for view in page.topics:
                    output.json_line(view.fields)
            else:
                views += page.topics
    _show_topics(views, given)
    for sentence in left_out.sentences():
        output.complain(sentence)
    return exit_codes.FAILED if left_out.shards else exit_codes.DONE


def _show_topics(views: list[TopicView], given: argparse.Namespace) -> None:
    if given.json:
        return
    if views:
        rows = [_row(view) for view in views]
        if output.fits(_TOPICS, rows):
            output.show_table(_TOPICS, rows)
        else:
            output.show_table(_TOPICS_SHORT, [_short_row(view) for view in views])
    else:
        output.say_empty("there is no topic yet")


def topic(given: argparse.Namespace) -> int:
    """Show a topic, or set its defaults first."""
    changes = {name: getattr(given, name) for name in _SETTINGS if hasattr(given, name)}
    if changes.get("durability") == "none":
        changes["durability"] = None
    if given.set is not None and changes:
        raise UsageError("--set replaces all settings, so flags of single settings, such as --ttr, do not go with it")
    with read_connection(vars(given)).open() as client:
        if given.set is not None:
            view = client.set_topic(given.topic, given.set)
        elif changes:
            view = client.set_topic(given.topic, {**_settings_now(client, given.topic), **changes})
        else:
            view = client.topic(given.topic)
    _show(view, given)
    return exit_codes.DONE


def jobs(given: argparse.Namespace) -> int:
    """List a topic's jobs."""
    limit = None if given.all else given.limit
    with read_connection(vars(given)).open() as client:
        found = _found(client, given, limit)
        if given.json:
            for page in found:
                for job in page:
                    output.json_line(job.fields)
            return exit_codes.DONE
        headed = True
        for page in found:
            if page:
                output.show_table(_JOBS, [_job_row(job) for job in page], headed=headed)
                headed = False
    if headed:
        output.say_empty(f"{given.topic} has no {'' if given.state is None else f'{given.state} '}jobs")
    return exit_codes.DONE


def list_either(given: argparse.Namespace) -> int:
    """List all topics, or the jobs of one."""
    if given.topic is not None:
        return jobs(given)
    if given.state is not None:
        raise UsageError("--state is for the jobs of a topic: give TOPIC")
    return topics(given)


def redrive(given: argparse.Namespace) -> int:
    """Make dead jobs ready again."""
    with read_connection(vars(given), timeout=_LONG_TIMEOUT).open() as client:
        count = client.redrive(given.topic, ids=given.ids or None, limit=given.limit)
    if given.json:
        output.json_line({"redriven": count})
    else:
        output.line(f"{count:,} dead {_noun(count)} of {given.topic} ready again")
    return exit_codes.DONE


def purge(given: argparse.Namespace) -> int:
    """Remove jobs; on a terminal after a question."""
    if not given.yes and not sys.stdin.isatty():
        raise UsageError("purge asks before it removes jobs, and standard input is no terminal: give --yes")
    with read_connection(vars(given), timeout=_LONG_TIMEOUT).open() as client:
        if not given.yes and not _confirmed(client.topic(given.topic), given.state):
            output.complain("nothing was removed")
            return exit_codes.INTERRUPTED
        count = client.purge(given.topic, state=given.state)
    if given.json:
        output.json_line({"removed": count})
    else:
        output.line(f"{count:,} {_noun(count)} of {given.topic} removed")
    return exit_codes.DONE


def pause(given: argparse.Namespace) -> int:
    """Stop handing out."""
    with read_connection(vars(given)).open() as client:
        return _shown_briefly(client.pause(given.topic), given)


def resume(given: argparse.Namespace) -> int:
    """Hand out again."""
    with read_connection(vars(given)).open() as client:
        return _shown_briefly(client.resume(given.topic), given)


def _settings_now(client: Client, name: str) -> dict[str, Any]:
    try:
        return dict(client.topic(name).fields["settings"])
    except TopicNotFound:
        return {}


def _found(client: Client, given: argparse.Namespace, limit: int | None) -> Iterator[list[Job]]:
    """Pages of the jobs, at most `limit` in all; says so when there are more."""
    cursor: str | None = None
    left = limit
    while True:
        size = PAGE_MAX if left is None else min(left, PAGE_MAX)
        page, cursor = client.send(requests.jobs(given.topic, state=given.state, cursor=cursor, limit=size))
        if left is not None:
            page = page[:left]
            left -= len(page)
        yield page
        if cursor is None:
            return
        if left == 0:
            output.hint(f"there may be more than these {limit:,}: --limit N or --all shows them")
            return


def _confirmed(view: TopicView, state: str | None) -> bool:
    counts = {name: count for name, count in view.fields["counts"].items() if state in {None, name}}
    total = sum(counts.values())
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    what = f"{total:,} {_noun(total)}" + (f" ({parts})" if parts else "")
    print(f"Remove {what} of {view.topic} for good? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201 (it asks)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _noun(count: int) -> str:
    return "job" if count == 1 else "jobs"


def _shown_briefly(view: TopicView, given: argparse.Namespace) -> int:
    if given.json:
        output.json_line(view.fields)
    else:
        ready = view.fields["counts"]["ready"]
        output.line(f"{view.topic} {'paused' if view.paused else 'handing out'}, {ready:,} ready")
    return exit_codes.DONE


def _row(view: TopicView) -> list[str]:
    age = view.oldest_ready_age
    due_at = view.next_due_at
    return [
        _name(view),
        *(output.number(view.fields["counts"][state]) for state in _STATES),
        "-" if age is None else output.span(age),
        "-" if due_at is None else output.from_now(due_at),
    ]


def _short_row(view: TopicView) -> list[str]:
    due_at = view.next_due_at
    due_in_s = None if due_at is None else max((due_at - datetime.now(UTC)).total_seconds(), 0.0)
    return [
        _name(view),
        *(output.short_number(view.fields["counts"][state]) for state in _STATES),
        output.short_span(view.oldest_ready_age),
        output.short_span(due_in_s),
    ]


def _name(view: TopicView) -> str:
    return view.topic + (" (paused)" if view.paused else "")


def _job_row(job: Job) -> list[str]:
    return [job.id, job.state.value, output.where_it_stands(job), str(job.attempts), output.cell(job.body)]


def _show(view: TopicView, given: argparse.Namespace) -> None:
    if given.json:
        output.json_line(view.fields)
        return
    settings = view.fields["settings"]

    def seconds(name: str) -> str:
        return _SERVICE_DEFAULT if settings[name] is None else output.span(settings[name])

    output.show_facts(
        [
            ("topic", _name(view)),
            *((state, output.number(view.fields["counts"][state])) for state in _STATES),
            ("oldest ready", "-" if view.oldest_ready_age is None else output.span(view.oldest_ready_age)),
            ("next due", "-" if view.next_due_at is None else output.when(view.next_due_at)),
            ("ttr", seconds("ttr")),
            ("max_attempts", _or_default(settings["max_attempts"])),
            ("backoff", _SERVICE_DEFAULT if settings["backoff"] is None else output.backoff(settings["backoff"])),
            ("ttl", seconds("ttl")),
            ("retain", seconds("retain")),
            ("max_jobs", "no limit" if settings["max_jobs"] is None else output.number(settings["max_jobs"])),
            ("durability", settings["durability"] or "what the store gives by itself"),
        ]
    )


_SERVICE_DEFAULT = "the service's default"


def _or_default(value: int | None) -> str:
    return _SERVICE_DEFAULT if value is None else output.number(value)
