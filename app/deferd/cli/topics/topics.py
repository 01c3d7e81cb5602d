"""Commands for topics: `topics`, `topic`, `groups`, `pause`, `resume`, `jobs`, `redrive`, `purge`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import fail
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import (
    LIMIT_FLAGS,
    LONG_TIMEOUT_S,
    REASONS,
    STATES,
    all_of,
    client_command,
    state_option,
    topic_argument,
    topic_options,
)
from deferd.cli.framework.output import Cells, Column
from deferd.cli.jobs.cancelling import show_begun, show_preview
from deferd.contract.fields import POLICY, TOPIC, Field
from deferd.contract.limits import REDRIVE_DEFAULT, REDRIVE_MAX
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from deferd.client import Client, TopicPage, TopicView


def _due_in_s(view: TopicView) -> float | None:
    """Seconds until the next delayed job is due, by the clock of this host; None if none is delayed."""
    due_at = view.next_due_at
    return None if due_at is None else max((due_at - datetime.now(UTC)).total_seconds(), 0.0)


def _name(view: TopicView) -> str:
    return view.topic + (" (paused)" if view.paused else "")


def _counts(number: Callable[[float], str]) -> Cells[TopicView]:
    """The columns of the states."""

    def text(state: str) -> Callable[[TopicView], str]:
        return lambda view: number(view.counts[state])

    return {Column(state.upper(), right=True): text(state) for state in STATES}


_CELLS: Cells[TopicView] = {
    Column("TOPIC"): _name,
    **_counts(output.number),
    Column("OLDEST READY", right=True): lambda view: output.span(view.oldest_ready_age),
    Column("NEXT DUE", right=True): lambda view: output.from_now(view.next_due_at),
}
_NARROW_CELLS: Cells[TopicView] = {
    Column("TOPIC"): _name,
    **_counts(output.short_number),
    Column("OLDEST", right=True): lambda view: output.short_span(view.oldest_ready_age),
    Column("DUE", right=True): lambda view: output.short_span(_due_in_s(view)),
}
_PER_GROUP = "per_group_"
_SERVICE_DEFAULT = "the service's default"
_WITHOUT = {
    "window": "always open",
    "spread": "none",
    "on_end": "puts nothing",
    "max_jobs": "no limit",
    "durability": "what the store gives by itself",
    "events": "none kept",
    "limits": "none",
}
"""The text for settings that neither the topic nor the service's defaults have."""


def _stands(job: Job) -> str:
    """Where a job stands, with its last error if it is tried again after one."""
    stands = output.where_it_stands(job)
    is_tried_again = job.attempts and job.last_error and job.state in {"delayed", "ready"}
    return f"{stands}, after {job.last_error}" if is_tried_again else stands


_JOB_CELLS: Cells[Job] = {
    Column("ID"): lambda job: job.id,
    Column("STATE"): lambda job: job.state.value,
    Column("STANDS", cut=True): _stands,
    Column("TRIES", right=True): lambda job: str(job.attempts),
    Column("BODY", cut=True): lambda job: output.cell(job.fields.get("body")),
}
_tag_option: Final = click.option("--tag", metavar="TAG", help="only jobs with this tag")
_only_group_option: Final = click.option("--group", metavar="NAME", help="only the jobs of this group")
_reason_option: Final = click.option(
    "--reason", type=click.Choice(REASONS), help="only jobs that are dead for this reason"
)
_conditions: Final = all_of(
    [
        _tag_option,
        _only_group_option,
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
        _only_group_option,
        click.option("--due-after", type=values.instant, metavar="INSTANT", help="only jobs due then or later"),
        click.option("--due-before", type=values.instant, metavar="INSTANT", help="only jobs due before then"),
        click.option("--id-prefix", metavar="TEXT", help="only jobs whose id begins so"),
        click.option("--error", metavar="TEXT", help="only jobs whose last error contains this"),
        _reason_option,
        click.option("--retrying", is_flag=True, default=None, help="only delayed jobs that had an attempt"),
        click.option("--error-group", metavar="TEXT", help="only dead jobs with this error, as `deferd dead` shows it"),
        click.option(
            "--order",
            type=click.Choice(["asc", "desc"]),
            help="desc: what happens last comes first, such as the job that died last",
        ),
        click.option("--limit", type=values.count_from_1, default=100, metavar="N", help="most jobs; default 100"),
        click.option("--all", "no_limit", is_flag=True, help="all of them"),
    ]
)


class UnavailableTopics:
    """The parts that the pages of a list lack: `shards`, and the known names of their `topics`."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.shards: list[int] = []

    def note(self, page: TopicPage) -> None:
        """Add a page."""
        self.topics = sorted({*self.topics, *page.unavailable})
        self.shards = sorted({*self.shards, *page.unreadable_shards})

    def sentences(self) -> Iterator[str]:
        """Messages for people; none if the list is complete."""
        if self.shards:
            numbers = ", ".join(map(str, self.shards))
            yield f"the list is incomplete: the store cannot be reached for shards {numbers}"
        if self.topics:
            yield f"unavailable: {', '.join(self.topics)}"


@client_command("deferd topics", "deferd topics --json | jq -r 'select(.counts.dead > 0).topic'")
def topics(client: Client, as_json: bool) -> int:
    """List all topics with their counts. When a part of the store cannot be reached, list the others and fail."""
    views: list[TopicView] = []
    unavailable = UnavailableTopics()
    for page in client.topic_pages():
        unavailable.note(page)
        if as_json:
            for view in page.topics:
                output.json_line(view.fields)
        else:
            views += page.topics
    if not as_json:
        wide = [[text(view) for text in _CELLS.values()] for view in views]
        cells = _CELLS if output.fits([*_CELLS], wide) else _NARROW_CELLS
        output.json_or_table(views, cells, "there is no topic yet", as_json=False)
    for sentence in unavailable.sentences():
        output.complain(sentence)
    return exit_codes.FAILED if unavailable.shards else exit_codes.DONE


@client_command(
    "deferd topic orders.close",
    "deferd topic orders.close --ttr 2m --max-attempts 5 --backoff fixed:30",
    "deferd topic orders.close --max-in-flight 50 --rate 100/s --per-group-max-in-flight 1",
    """deferd topic orders.close --set '{"ttr": 120, "max_jobs": 100000}'""",
)
@topic_argument()
@topic_options
@click.option(
    "--set",
    "settings",
    type=values.json_object,
    metavar="JSON",
    help="replace all settings; '{}': back to the defaults",
)
def topic(topic: str, settings: dict[str, Any] | None, client: Client, as_json: bool, fields: dict[str, Any]) -> None:
    """Show a topic. With --ttr and the like, change these of its settings and keep the others; they apply to jobs that
    are put from now on.
    """
    if settings is not None and fields:
        raise UsageError("--set replaces all settings: it cannot be combined with flags of single ones, such as --ttr")
    if fields.get("durability") == "none":
        fields["durability"] = None
    if settings is not None:
        view = client.set_topic(topic, settings)
    elif fields:
        view = client.set_topic(topic, _changed(_current_settings(client, topic), fields))
    else:
        view = client.topic(topic)
    output.json_or_facts(view.fields, _facts(view), as_json=as_json)


@client_command(
    "deferd pause orders.close",
    "deferd pause orders.close --reason 'the payment service is down'",
    "deferd pause orders.close --group customer-7",
)
@topic_argument()
@click.option("--reason", metavar="TEXT", help="why, shown to people until the topic is resumed")
@_only_group_option
def pause(topic: str, reason: str | None, group: str | None, client: Client, as_json: bool) -> None:
    """Stop handing out the jobs of a topic, or of one group of it."""
    if group is None:
        _show_paused(client.pause(topic, reason=reason), as_json=as_json)
        return
    if reason is not None:
        raise UsageError("--reason is for topics: leave it out with --group")
    _show_paused_group(topic, client.pause_group(topic, group), as_json=as_json)


@client_command("deferd resume orders.close", "deferd resume orders.close --group customer-7")
@topic_argument()
@_only_group_option
def resume(topic: str, group: str | None, client: Client, as_json: bool) -> None:
    """Hand out the jobs of a topic again, or of one group of it."""
    if group is None:
        _show_paused(client.resume(topic), as_json=as_json)
    else:
        _show_paused_group(topic, client.resume_group(topic, group), as_json=as_json)


if TYPE_CHECKING:
    from deferd.client import Client, GroupView, Job, TopicView

_GROUP_CELLS: Cells[GroupView] = {
    Column("GROUP"): lambda group: "-" if group.group is None else group.group,
    Column("READY", right=True): lambda group: output.number(group.ready),
    Column("RESERVED", right=True): lambda group: output.number(group.reserved),
    Column("DELAYED", right=True): lambda group: output.number(group.delayed),
    Column("OLDEST READY", right=True): lambda group: output.span(group.oldest_ready_age),
    Column("STATE"): lambda group: "paused" if group.paused else "-",
}


@client_command("deferd groups orders.close", "deferd groups orders.close --order age --limit 5")
@topic_argument()
@click.option(
    "--order",
    type=click.Choice(["ready", "reserved", "age"]),
    help="those with the most ready or reserved jobs first, or with the oldest ready job; default ready",
)
@click.option("--limit", type=values.count_from_1, default=100, metavar="N", help="most groups; default 100")
def groups(topic: str, order: Any, limit: int, client: Client, as_json: bool) -> None:
    """List the groups of a topic; - stands for the jobs without a group."""
    found = [*islice(client.groups(topic, order=order), limit + 1)]
    output.json_or_table(found[:limit], _GROUP_CELLS, f"{topic} has no jobs that wait or are held", as_json=as_json)
    if len(found) > limit:
        output.hint(f"there are more than these {limit:,}: --limit N shows them")


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
    "deferd redrive mail --task --rate 10",
    timeout_s=LONG_TIMEOUT_S,
)
@topic_argument()
@click.argument("ids", metavar="[ID]...", nargs=-1, help="these jobs; without any, those that have been dead longest")
@click.option("--limit", type=values.whole, metavar="N", help="most jobs, without ID; default 1000, with --task all")
@click.option(
    "--rate", type=values.redrive_rate, metavar="N", help="with --task: most jobs a second; the others stay dead"
)
@_conditions
def redrive(
    *,
    topic: str,
    ids: tuple[str, ...],
    limit: int | None,
    rate: float | None,
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
    if rate is not None and not as_task and (named or not dry_run):
        raise UsageError("--rate is for --task and --dry-run, without ID")
    if as_task:
        show_begun(client.start_redrive(topic, limit=limit, rate=rate, **conditions), as_json=as_json)
        return
    if limit is None:
        limit = REDRIVE_DEFAULT if rate is None else REDRIVE_MAX  # a task, for which the rate is, has no limit
    if dry_run:
        show_preview(client.preview_redrive(topic, ids=named, limit=limit, **conditions), as_json=as_json, rate=rate)
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
            output.json_or_table(page, _JOB_CELLS, "", as_json=as_json, headed=is_empty)
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


def _show_paused(view: TopicView, *, as_json: bool) -> None:
    counts = view.counts
    jobs = f"{counts['ready']:,} ready" if any(counts.values()) else "no jobs"  # perhaps the name is misspelled
    text = f"{view.topic} {'paused' if view.paused else 'handing out'}, {jobs}"
    output.json_or_line(view.fields, text, as_json=as_json)


def _show_paused_group(topic: str, group: GroupView, *, as_json: bool) -> None:
    text = f"group {group.group} of {topic} {'paused' if group.paused else 'handing out'}, {group.ready:,} ready"
    output.json_or_line(group.fields, text, as_json=as_json)


def _current_settings(client: Client, name: str) -> dict[str, Any]:
    from deferd.contract.errors import TopicNotFound

    try:
        return dict(client.topic(name).settings_json)
    except TopicNotFound:
        return {}


def _changed(settings: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The settings with what the flags say. Flags of limits change only the limits that they name."""
    flags = {name: fields.pop(name) for name in LIMIT_FLAGS if name in fields}
    if flags:
        limits = dict(settings.get("limits") or {})
        per_group = dict(limits.get("per_group") or {})
        of_each = {name.removeprefix(_PER_GROUP): flags[name] for name in flags if name.startswith(_PER_GROUP)}
        for bounds, given in ((limits, flags), (per_group, of_each)):
            burst = (bounds.get("rate") or {}).get("burst")
            bounds |= {name: given[name] for name in ("max_in_flight", "rate") if name in given}
            if burst is not None and given.get("rate"):
                bounds["rate"] = {**given["rate"], "burst": burst}
        if "burst" in flags:
            if not limits.get("rate"):
                raise UsageError("--burst is a part of a rate: give --rate as well")
            limits["rate"] = {**limits["rate"], "burst": flags["burst"]}
        fields["limits"] = {**limits, "per_group": per_group}
    return {**settings, **fields}


def _facts(view: TopicView) -> Iterator[tuple[str, str]]:
    yield "topic", _name(view)
    if view.paused_reason:
        yield "paused because", output.printable(view.paused_reason)
    yield from ((state, output.number(view.counts[state])) for state in STATES)
    if view.shelved is not None:
        yield "on the shelf", output.number(view.shelved)
    waiting = {"follow-ups": view.follow_ups, "collections": view.collections}
    yield from ((name, output.number(count)) for name, count in waiting.items() if count)
    yield "oldest ready", output.span(view.oldest_ready_age)
    yield "next due", "-" if view.next_due_at is None else output.when(view.next_due_at)
    settings = view.settings_json
    for field in (*POLICY, *TOPIC):
        if field.name != "partitions" or settings.get("partitions") is not None:
            yield field.name, _setting(field, settings.get(field.name))


def _setting(field: Field, value: Any) -> str:
    if value is None or (value == field.default and field.name in _WITHOUT):
        return _WITHOUT.get(field.name, _SERVICE_DEFAULT)
    return output.field_text(field, value)
