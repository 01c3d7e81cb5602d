"""What an operator does with an outbox: make its schema, look at it, retry or drop refused rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict

from deferd.outbox.schema import schema_sql

CONNECT_S = 10


class DatabaseFailed(Exception):
    """The database can't be reached, or refuses a statement; the text says why, without a password."""


def check_url(url: str) -> None:
    """Raises ValueError, without a password in its text, if this is not the URL of a PostgreSQL database."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # whose text may have the password
        raise ValueError("is not a URL that PostgreSQL accepts") from None


@contextmanager
def transaction(url: str) -> Iterator[psycopg.Connection]:
    """A connection for one transaction. Raises DatabaseFailed; ValueError if the URL is none."""
    check_url(url)
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_S, application_name="deferd outbox") as connection:
            yield connection
    except psycopg.Error as error:
        raise DatabaseFailed(error_text(error)) from error


def make_schema(connection: psycopg.Connection) -> None:
    """Make the schema, or upgrade it. It may be repeated. Raises psycopg.Error if the database has a newer one."""
    connection.execute(schema_sql())


def error_text(error: Exception) -> str:
    """What went wrong, in one line."""
    if not isinstance(error, psycopg.Error):
        return str(error) or "the database did not respond in time"
    text = error.diag.message_primary or "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{text}. {error.diag.message_hint}" if error.diag.message_hint else text
