"""`deferd outbox`: make the outbox in a PostgreSQL database, look at it, and see to rows that the service refused."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command, command_group, fail
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import json_option
from deferd.cli.framework.output import Column
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    import psycopg

    from deferd.outbox.administration import RefusedRow, Selected

_VARIABLE: Final = "DEFERD_OUTBOX_URL"
_URL_HELP: Final = (
    f"the database: postgresql://USER@HOST/NAME; better set the variable if it has a password [{_VARIABLE}]"
)
url_argument: Final = click.argument("url", required=False, envvar=_VARIABLE, metavar="[URL]", help=_URL_HELP)
_COLUMNS: Final = (
    Column("POSITION", right=True),
    *(Column(name) for name in ("CALL", "TOPIC", "ID", "REFUSED")),
    Column("PROBLEM", cut=True),
)


@command_group(
    "deferd outbox init postgresql://owner@localhost/shop",
    "deferd outbox status",
    "deferd outbox refused --topic orders.close --retry",
    name="outbox",
)
def outbox() -> None:
    """The outbox: puts and cancels in a transaction of your own PostgreSQL, which `deferd relay` sends."""


@command(
    "deferd outbox init postgresql://owner@localhost/shop",
    "deferd outbox init --print > migrations/0042_deferd.sql",
    group=outbox,
)
@url_argument
@click.option("--print", "only_print", is_flag=True, help="print the SQL, for a migration tool, and change nothing")
def init(url: str | None, only_print: bool) -> int:
    """Make the schema `deferd` in the database, or upgrade it. It may be repeated; a newer schema is refused. Then the
    role of the application needs: GRANT USAGE ON SCHEMA deferd TO ...
    """
    from deferd.outbox.schema import VERSION, schema_sql

    if only_print:
        sys.stdout.write(schema_sql())
        return exit_codes.DONE
    from deferd.outbox.administration import DatabaseFailed, connected, make_schema

    try:
        with connected(checked_url(url)) as connection:
            make_schema(connection)
    except DatabaseFailed as error:
        return fail(str(error))
    output.line(f"the database has the outbox, version {VERSION}")
    return exit_codes.DONE


@command(
    "deferd outbox status postgresql://relay@localhost/shop", "deferd outbox status --json | jq .lag", group=outbox
)
@json_option("print JSON")
@url_argument
def status(url: str | None, as_json: bool) -> int:
    """Show how many rows wait, how old the oldest is, how many were refused, and which relay works."""
    import psycopg

    from deferd.outbox.administration import error_text
    from deferd.outbox.database import OutboxMissing, open_outbox

    async def ask(url: str) -> dict[str, Any]:
        async with open_outbox(url) as database:
            found, worker = await database.status(), await database.worker()
            is_worked_on = await database.is_worked_on()
            relay = {"name": worker.name, "since": format_instant(worker.since)} if is_worked_on else None
            return {
                "database": database.name,
                "version": database.version,
                "rows": found.rows,
                "lag": round(found.lag_s, 3),
                "refused": found.refused,
                "relay": relay,
            }

    try:
        facts = asyncio.run(ask(checked_url(url)))
    except (OutboxMissing, psycopg.Error, TimeoutError) as error:
        return fail(error_text(error))
    relay = facts["relay"]
    output.json_or_facts(
        facts,
        [
            ("database", facts["database"]),
            ("version", str(facts["version"])),
            ("rows that wait", output.number(facts["rows"])),
            ("oldest", output.span(facts["lag"]) if facts["rows"] else "-"),
            ("refused", output.number(facts["refused"])),
            ("relay", f"{relay['name']}, since {relay['since']}" if relay else "none works"),
        ],
        as_json=as_json,
    )
    return exit_codes.DONE


@command(
    "deferd outbox refused postgresql://relay@localhost/shop",
    "deferd outbox refused --json | jq -r '[.position, .problem.detail] | @tsv'",
    "deferd outbox refused 1042 1043 --retry",
    "deferd outbox refused --topic orders.close --drop",
    group=outbox,
)
@click.argument("words", metavar="[URL] [POSITION]...", nargs=-1, help=f"{_URL_HELP}; only the rows at these positions")
@click.option("--topic", metavar="TOPIC", help="only rows of this topic")
@click.option("--limit", type=values.count_from_1, default=100, metavar="N", help="most rows of a list; default 100")
@click.option("--all", "no_limit", is_flag=True, help="all rows; with --retry or --drop this, POSITION or --topic")
@click.option("--retry", is_flag=True, help="give them to the relay again, behind what waits")
@click.option("--drop", is_flag=True, help="delete them for good; asks for confirmation")
@click.option("--yes", is_flag=True, help="do not ask; required where there is no terminal")
@json_option()
def refused(
    *,
    words: tuple[str, ...],
    topic: str | None,
    limit: int,
    no_limit: bool,
    retry: bool,
    drop: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """List the rows that the service refused, with its reasons, oldest first; or retry or drop them."""
    from deferd.outbox.administration import DatabaseFailed, Selected, connected_to_outbox, drop_refused, retry_refused

    url, positions = _positions(words)
    if retry and drop:
        raise UsageError("--retry and --drop exclude each other")
    if (retry or drop) and sum([topic is not None, bool(positions), no_limit]) != 1:
        raise UsageError("say which rows: POSITION, --topic or --all")
    if drop and not yes and not sys.stdin.isatty():
        raise UsageError("--drop asks for confirmation, and standard input is not a terminal: give --yes")
    selected = Selected(topic, positions or None)
    try:
        with connected_to_outbox(checked_url(url)) as connection:
            if retry or drop:
                act = retry_refused if retry else drop_refused
                return _act(connection, act, selected, ask=drop and not yes, as_json=as_json)
            return _list(connection, selected, None if no_limit else limit, as_json=as_json)
    except DatabaseFailed as error:
        return fail(str(error))


def _positions(words: tuple[str, ...]) -> tuple[str | None, list[int]]:
    """The URL, if there is one, and the positions."""
    url: str | None = os.environ.get(_VARIABLE)
    if words and not words[0].isdecimal():
        url, *rest = words
        words = tuple(rest)
    for word in words:
        if not word.isdecimal():
            raise UsageError(f"POSITION must be a whole number, as `deferd outbox refused` lists it (it is {word!r})")
    return url, [int(word) for word in words]


def _list(connection: psycopg.Connection, selected: Selected, most: int | None, *, as_json: bool) -> int:
    from deferd.outbox.administration import refused_rows

    found = refused_rows(connection, selected, most)
    if as_json:
        for row in found:
            instants = {"written_at": format_instant(row.written_at), "refused_at": format_instant(row.refused_at)}
            output.json_line({**row._asdict(), **instants})
    elif cells := [_cells(row) for row in found]:
        output.show_table(_COLUMNS, cells)
    else:
        output.say_empty("no row was refused")
    return exit_codes.DONE


def _cells(row: RefusedRow) -> tuple[str, ...]:
    problem = str(row.problem.get("detail") or row.problem.get("title") or output.cell(row.problem))
    name = row.id or f"tag {row.fields['tag']}"
    return (str(row.position), row.verb, row.topic or "-", name, output.from_now(row.refused_at), problem)


def _act(
    connection: psycopg.Connection,
    act: Callable[[psycopg.Connection, Selected], int],
    selected: Selected,
    *,
    ask: bool,
    as_json: bool,
) -> int:
    from deferd.outbox.administration import count_refused, retry_refused

    if ask:
        rows = output.count(count_refused(connection, selected), "refused row")
        connection.commit()  # a transaction should not wait for a person
        print(f"Drop {rows} for good? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201 (it asks)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            return fail("nothing was dropped", code=exit_codes.INTERRUPTED)
    done = act(connection, selected)
    name, word = ("retried", "given to the relay again") if act is retry_refused else ("dropped", "dropped")
    output.json_or_line({name: done}, f"{output.count(done, 'refused row')} {word}", as_json=as_json)
    if selected.positions is not None and done < len(set(selected.positions)):
        return fail("at the other positions there is no refused row", code=exit_codes.REFUSED)
    return exit_codes.DONE


def checked_url(url: str | None) -> str:
    """The URL that was given. Raises UsageError if there is none, or it is not one of PostgreSQL."""
    from deferd.outbox.administration import check_url

    if url is None:
        raise UsageError(f"URL ({_VARIABLE}) is missing: it names the database, such as postgresql://USER@HOST/NAME")
    try:
        check_url(url)
    except ValueError as error:
        raise UsageError(f"URL {error}") from None
    return url
