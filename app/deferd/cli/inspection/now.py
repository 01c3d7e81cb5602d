"""The commands `now`, `consumers`, `system` and `upgrade`: what a service needs, serves and runs on at the moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.options import client_command, topics_argument
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Client, Now
    from deferd.contract.operations.relays import Relay
    from deferd.contract.operations.system import Shelf, StoreProcess

_CRITICAL = "critical"
_CONSUMER_CELLS: Cells[Consumer] = {
    Column("NAME"): lambda consumer: consumer.name or "-",
    Column("ADDRESS"): lambda consumer: ", ".join(consumer.addresses) or "-",
    Column("HELD", right=True): lambda consumer: output.number(consumer.held),
    Column("LEASE ENDS"): lambda consumer: output.from_now(consumer.lease_ends_at),
    Column("WAITING", right=True): lambda consumer: output.number(consumer.waiting),
    Column("SEEN"): lambda consumer: output.from_now(consumer.last_seen_at),
    Column("TOPICS", cut=True): lambda consumer: ", ".join(consumer.topics),
    Column("CLIENT", cut=True): lambda consumer: ", ".join(consumer.clients) or "-",
}

_PROCESS_CELLS: Cells[StoreProcess] = {
    Column("HOST"): lambda process: process.host,
    Column("PID", right=True): lambda process: str(process.pid),
    Column("VERSION"): lambda process: process.version,
    Column("KNOWS FORMAT", right=True): lambda process: str(process.newest_format),
    Column("STARTED"): lambda process: output.from_now(process.started_at),
    Column("SEEN"): lambda process: output.from_now(process.seen_at),
}


@client_command("deferd now", "deferd now 'mail.*'", "deferd now --critical || page-somebody", json="print JSON")
@topics_argument
@click.option("--critical", is_flag=True, help="only critical alerts")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most alerts, up to 1000; default 100")
def now(topics: tuple[str, ...], critical: bool, limit: int | None, client: Client, as_json: bool) -> int:
    """Show what needs a person, the most urgent first, or that all is quiet and what is due next. The exit code is 6
    when something needs a person.
    """
    found = client.now(topics=topics or None, limit=limit)
    alerts = [alert for alert in found.alerts if not critical or alert.severity == _CRITICAL]
    if as_json:
        output.json_line({**found.fields, "alerts": [alert.fields for alert in alerts]})
    elif alerts:
        left_out = 0 if critical else int(found.fields.get("left_out", 0))
        output.line(_headline(len(alerts) + left_out))
        for alert in alerts:
            output.line(f"  {alert.severity:<8}  {output.printable(alert.text)}")
        if left_out:
            output.line(f"  and {left_out:,} more; --limit shows them")
        output.line(_next_line(found))
    else:
        output.line(f"{_calm(found)} {_next_line(found)}")
    if found.acknowledged and not as_json:
        output.line(f"{output.count(len(found.acknowledged), 'alert')} acknowledged; the console and --json show why")
    if not found.complete:
        output.complain("not all topics were read: alerts may be missing")
    return exit_codes.FINDINGS if alerts else exit_codes.DONE


def _calm(found: Now) -> str:
    """What to say without an alert to show."""
    if found.alerts:
        return "Nothing is critical."
    return "All quiet." if found.complete else "No alerts so far."


@client_command("deferd system", "deferd system --json | jq .store.memory_bytes", json="print JSON")
def system(client: Client, as_json: bool) -> None:
    """Show the service's version, its store and timers, relays of outboxes, its settings, and what your key allows."""
    found, key = client.system(), client.key()
    relays = client.relays()
    if as_json:
        output.json_line({**found.fields, "relays": [one.fields for one in relays], "key": key.fields})
        return
    store = found.store
    memory = store.memory_bytes
    facts: dict[str, Any] = {
        "version": f"deferd {found.version}, Python {found.process.python}",
        "store": f"{store.server or 'unknown'}{' (embedded)' if store.embedded else ''}",
        "memory": None if memory is None else f"{memory:,} bytes",
        "durability": store.durability + (f" ({store.why_not_fsync})" if store.why_not_fsync else ""),
        "replicas": store.replicas,
        "shelf": None if found.shelf is None else _shelf(found.shelf),
        "relays": "; ".join(map(_relay, relays)) or None,
        "timers": f"{sum(one.timer for one in found.shards)} of {found.shard_count} shards",
        "key": key.name or "none: the service has no keys",
        "scopes": ", ".join(key.scopes),
        "topics": ", ".join(key.topics),
        **found.settings,
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            output.line(f"{name:<{width}}  {output.printable(str(value))}")


def _relay(relay: Relay) -> str:
    if relay.state == "silent":  # its figures are old
        return f"{relay.name} silent for {relay.database} since {relay.seen_at}"
    lag = f", {output.span(relay.lag)} behind" if relay.lag else ""
    refused = f", {relay.refused:,} refused" if relay.refused else ""
    return f"{relay.name} {relay.state} for {relay.database}: {output.count(relay.rows, 'row')}{lag}{refused}"


def _shelf(shelf: Shelf) -> str:
    if shelf.fault is not None:
        return f"cannot be used: {shelf.fault}"
    jobs = "an unknown number of jobs" if shelf.jobs is None else output.count(shelf.jobs, "job")
    behind = f", {shelf.jobs_behind:,} behind by {output.span(shelf.behind)}" if shelf.jobs_behind else ""
    return (
        f"{jobs}, {shelf.disk_bytes or 0:,} bytes; {output.number(shelf.moved_out_per_second)} a second go there, "
        f"{output.number(shelf.moved_in_per_second)} are loaded{behind}"
    )


@client_command("deferd upgrade", "deferd upgrade --finish", json="print JSON")
@click.option("--finish", is_flag=True, help="upgrade the store now; earlier releases refuse all calls then")
def upgrade(finish: bool, client: Client, as_json: bool) -> None:
    """Show which server processes use the store, of which release, and the format of what it holds. A release knows two
    formats. The services upgrade the store to the newer one when all processes have known it for half a minute.
    """
    found = client.upgrade_store() if finish else client.system()
    processes = found.processes
    if as_json:
        output.json_line({"store_format": found.store_format, "processes": [one.fields for one in processes]})
        return
    output.json_or_table(processes, _PROCESS_CELLS, "no process uses the store", as_json=False)
    newest = max((one.newest_format for one in processes), default=found.store_format)
    if newest <= found.store_format:
        output.line(f"The store has format {found.store_format}, the newest that these processes know.")
        return
    behind = [f"{one.pid} on {one.host}" for one in processes if one.newest_format < newest]
    waits = f"when these have ended: {', '.join(behind)}" if behind else "within half a minute"
    output.line(output.printable(f"The store has format {found.store_format}. It gets format {newest} {waits}."))


@client_command("deferd consumers", "deferd consumers --json | jq -r 'select(.held > 100).name'")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most consumers, up to 1000; default 100")
def consumers(limit: int | None, client: Client, as_json: bool) -> None:
    """List who has popped within a minute, in all processes of the service, and who holds jobs."""
    found = client.consumers(limit=limit)
    output.json_or_table(found, _CONSUMER_CELLS, "nobody has popped within a minute, or holds jobs", as_json=as_json)


def _headline(count: int) -> str:
    return "1 thing needs you:" if count == 1 else f"{count:,} things need you:"


def _next_line(now: Now) -> str:
    """What is due next: ``Next: 14:02:16Z (in 3m 4s), 37 jobs.``"""
    at, jobs = now.next_due_at, now.next_due_jobs
    if at is None:
        return "No job is delayed." if now.complete else "What is due next is not known."
    is_soon = at - datetime.now(UTC) < timedelta(hours=12)
    when = at.astimezone(UTC).strftime("%H:%M:%SZ" if is_soon else "%Y-%m-%d %H:%M:%SZ")
    return f"Next: {when} ({output.from_now(at)}), {output.count(jobs, 'job')}."


if TYPE_CHECKING:
    from deferd.client import Client, Consumer

if TYPE_CHECKING:
    from deferd.client import Client
