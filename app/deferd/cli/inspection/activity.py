"""The commands `activity` and `tail`: what people and keys changed, and what happens to jobs, as it happens."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.options import Connection, client_command, connection_options, json_option, topics_argument
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Change, Client

_LIMIT_DEFAULT = 100
_TERMINATED = 128 + signal.SIGTERM
_FOR_EVER_S = 10 * 365 * 86_400.0


def _times(change: Change) -> str:
    return "" if change.times == 1 else f" ({change.times} times)"


def _what(change: Change) -> str:
    values = ", ".join(f"{one.field}: {one.was or '-'} -> {one.now or '-'}" for one in change.fields_changed or ())
    what = " ".join(text for text in (change.subject, change.filter, values) if text)
    return (what or "-") + ("" if change.fields["outcome"] == "done" else " (outcome unknown)")


_CELLS: Cells[Change] = {
    Column("AT"): lambda change: output.from_now(change.at),
    Column("BY"): lambda change: change.by or "-",
    Column("VIA"): lambda change: change.via,
    Column("OPERATION"): lambda change: change.operation + _times(change),
    Column("TOPIC"): lambda change: change.topic or "-",
    Column("JOBS", right=True): lambda change: output.number(change.count),
    Column("WHAT", cut=True): _what,
}


@client_command("deferd activity", "deferd activity 'orders.*' --json | jq -r 'select(.via == \"console\").by'")
@topics_argument
@click.option("--limit", type=values.count_from_1, metavar="N", help="most changes, up to 10000; default 100")
def activity(topics: tuple[str, ...], limit: int | None, client: Client, as_json: bool) -> None:
    """List what people and keys changed within 30 days, the newest first: settings, pauses, redrives, purges,
    schedules, calls on many jobs, and jobs changed in the console or by commands.
    """
    found = list(client.activity(topics=topics or None, limit=limit or _LIMIT_DEFAULT))
    output.json_or_table(found, _CELLS, "nobody has changed anything", as_json=as_json)


if TYPE_CHECKING:
    from deferd.client import AsyncClient, JobEvent
    from deferd.contract.errors import DeferdError


@command(
    "deferd tail orders.close",
    "deferd tail 'mail.*' --last 20",
    "deferd tail --json | jq -r 'select(.event == \"dead\").id'",
)
@topics_argument
@click.option("--last", type=values.whole, default=0, metavar="N", help="begin with the last N events of each topic")
@json_option("print JSON, an event a line")
@connection_options
def tail(topics: tuple[str, ...], last: int, as_json: bool, connection: Connection) -> int:
    """Print what happens to the jobs of topics that keep events (deferd topic TOPIC --events 1000) until Ctrl-C. When
    the connection is lost, it goes on behind the last event as soon as the service is back; a service that refuses, as
    with too many streams, is named on standard error, and asked again. Times are in the zone of this host.
    """
    import asyncio  # takes long; help, and `activity`, do not need it

    try:
        return asyncio.run(_follow(connection, topics, last, as_json=as_json))
    except KeyboardInterrupt:  # the usual way to leave it
        return exit_codes.DONE


async def _follow(connection: Connection, topics: tuple[str, ...], last: int, *, as_json: bool) -> int:
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        async with connection.open_async() as client:
            await _print_events(client, topics, last, as_json=as_json)
    except asyncio.CancelledError:
        if not is_terminated:
            raise
        return _TERMINATED
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    return exit_codes.DONE


async def _print_events(client: AsyncClient, topics: tuple[str, ...], last: int, *, as_json: bool) -> None:
    latest = await client.latest_events(topics or None, limit=1)  # an unreachable service is an error only here
    for name in topics:
        if "*" not in name:
            await _tell_without_events(client, name)
    if not latest and not (topics and all("*" not in name for name in topics)):
        await _tell_if_none_keeps_events(client, topics)
    events = client.events(topics or None, last=last, retry_for=_FOR_EVER_S, on_refusal=_refusals())
    async for event in events:
        if as_json:
            output.json_line(event.fields)
        else:
            output.line(_event_text(event))
        sys.stdout.flush()


def _refusals() -> Callable[[DeferdError], None]:
    """Says on standard error why the command waits for a service that responds: once for each code."""
    told: set[str] = set()

    def tell(error: DeferdError) -> None:
        if error.code not in told:
            told.add(error.code)
            output.complain(f"waiting for events: {error}")

    return tell


async def _tell_without_events(client: AsyncClient, name: str) -> None:
    from deferd.contract.errors import TopicNotFound

    try:
        if (await client.topic(name)).settings.events:
            return
    except TopicNotFound:
        pass
    output.complain(f"{name} keeps no events yet: `deferd topic {name} --events 1000` lets it")


async def _tell_if_none_keeps_events(client: AsyncClient, topics: tuple[str, ...]) -> None:
    from deferd.contract.topic_patterns import TopicPatterns

    patterns = TopicPatterns(topics or ("*",))
    async for view in client.topics():
        if view.settings.events and patterns.match(view.topic):
            return
    which = f" that matches {', '.join(topics)}" if topics else ""
    output.complain(f"no topic{which} keeps events yet: `deferd topic TOPIC --events 1000` lets one")


def _event_text(event: JobEvent) -> str:
    """One event as a line."""
    if event.at is None:
        if event.topic is None:
            return f"-- {event.fields.get('topics'):,} more topics match than can be followed"
        missing = "some" if event.count is None else f"{event.count:,}"
        return f"-- {missing} events of {event.topic} are missing"
    at = event.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    job = event.topic or ""
    if event.id is not None:
        job += f"/{event.id}"
    facts = "  ".join(_event_facts(event))
    return output.printable(f"{at}  {event.event:<11} {job}  {facts}".rstrip())


def _event_facts(event: JobEvent) -> list[str]:
    due_at = None if event.state == "ready" else event.due_at
    facts = {
        "reason": event.reason,
        "was": event.was,
        "count": event.count,
        "attempt": event.attempt,
        "attempts": event.attempts,
        "progress": None if event.progress is None else output.json_text(event.progress),
        "due": due_at and f"{due_at.astimezone():%H:%M:%S}",
        "until": event.reserved_until and f"{event.reserved_until.astimezone():%H:%M:%S}",
        "by": event.consumer,
    }
    shown = [f"{name} {value}" for name, value in facts.items() if value is not None]
    return shown if event.error is None else [*shown, event.error]
