"""`deferd outbox`: make the outbox in a PostgreSQL database, and look at it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import command, command_group, fail
from deferd.cli.framework.exit_codes import UsageError

if TYPE_CHECKING:
    import psycopg

_VARIABLE: Final = "DEFERD_OUTBOX_URL"
url_argument: Final = click.argument(
    "url",
    required=False,
    envvar=_VARIABLE,
    metavar="[URL]",
    help=f"the database: postgresql://USER@HOST/NAME; better set the variable if it has a password [{_VARIABLE}]",
)


@command_group(
    "deferd outbox init postgresql://shop@localhost/shop",
    "deferd outbox init --print > migrations/0042_deferd.sql",
    name="outbox",
)
def outbox() -> None:
    """The outbox: puts and cancels in a transaction of your own PostgreSQL, which `deferd relay` sends."""


@command(
    "deferd outbox init postgresql://shop@localhost/shop",
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
    from deferd.outbox.administration import DatabaseFailed, make_schema

    try:
        with _transaction(url) as connection:
            make_schema(connection)
    except DatabaseFailed as error:
        return fail(str(error))
    output.line(f"the database has the outbox, version {VERSION}")
    return exit_codes.DONE


@contextmanager
def _transaction(url: str | None) -> Iterator[psycopg.Connection]:
    from deferd.outbox.administration import transaction

    with transaction(checked_url(url)) as connection:
        yield connection


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
