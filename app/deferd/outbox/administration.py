"""What an operator does with an outbox: make its schema, look at it, retry or drop refused rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import class_row

from deferd.outbox.schema import NO_OUTBOX, schema_sql, version_problem

CONNECT_S = 10
BATCH: Final = 1000
"""How many refused rows one transaction reads, moves or drops."""
_WHERE = """
where position > %(after)s and (%(until)s::bigint is null or position <= %(until)s)
    and (%(topic)s::text is null or topic = %(topic)s)
    and (%(positions)s::bigint[] is null or position = any (%(positions)s))
"""
_LIST = f"""
select position, verb, topic, id, fields, written_at, refused_at, problem
from deferd.refused {_WHERE} order by position limit %(limit)s
"""
_TAKE = f"""
delete from deferd.refused
where position in (select position from deferd.refused {_WHERE} order by position limit %(limit)s for update)
returning position, verb, topic, id, fields
"""
_COUNT = f"select count(*) from deferd.refused {_WHERE}"
_DROP = f"with gone as ({_TAKE}) select count(*), max(position) from gone"
_RETRY = f"""
with gone as ({_TAKE}), again as (
    insert into deferd.outbox (verb, topic, id, fields) select verb, topic, id, fields from gone order by position
)
select count(*), max(position) from gone
"""


class RefusedRow(NamedTuple):
    """A call that the service refused, and why. `fields` is its JSON, `problem` the problem document."""

    position: int
    verb: str
    topic: str | None
    id: str | None
    fields: dict[str, Any]
    written_at: datetime
    refused_at: datetime
    problem: dict[str, Any]


class Selected(NamedTuple):
    """Which refused rows are meant: those of a topic, those at some positions, or all."""

    topic: str | None = None
    positions: Sequence[int] | None = None


class DatabaseFailed(Exception):
    """The database can't be reached, or refuses a statement; the text says why, without a password."""


def check_url(url: str) -> None:
    """Raises ValueError, without a password in its text, if this is not the URL of a PostgreSQL database."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    try:
        found = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # whose text may have the password
        raise ValueError("is not a URL that PostgreSQL accepts") from None
    ports = str(found.get("port") or "0").replace(",", "")
    if "@" in str(found.get("host", ""))[1:] or not ports.isdecimal():  # its errors would have a part of the password
        raise ValueError(
            "has characters in its user or password that must be written as %40 for @, %2F for /, %3A for :"
        )


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    """A connection, whose transaction is committed at the end. Raises DatabaseFailed; ValueError if the URL is none."""
    check_url(url)
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_S, application_name="deferd outbox") as connection:
            yield connection
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise DatabaseFailed(NO_OUTBOX) from error
    except psycopg.Error as error:
        raise DatabaseFailed(error_text(error)) from error


@contextmanager
def connected_to_outbox(url: str) -> Iterator[psycopg.Connection]:
    """As `connected`, to a database with an outbox of a version that is known here."""
    with connected(url) as connection:
        [(version,)] = connection.execute("select max(version) from deferd.version").fetchall()
        if (problem := version_problem(version)) is not None:
            raise DatabaseFailed(problem)
        connection.execute("set datestyle = iso")  # psycopg reads no dates in others, which a role may have
        yield connection


def make_schema(connection: psycopg.Connection) -> None:
    """Make the schema, or upgrade it. It may be repeated. Raises psycopg.Error if the database has a newer one."""
    connection.execute(schema_sql())


def refused_rows(connection: psycopg.Connection, selected: Selected, most: int | None) -> Iterator[RefusedRow]:
    """The refused rows in their order, `most` of them at most."""
    after = 0
    with connection.cursor(row_factory=class_row(RefusedRow)) as cursor:
        while most is None or most > 0:
            limit = BATCH if most is None else min(most, BATCH)
            found = cursor.execute(_LIST, _values(selected, after, None, limit)).fetchall()
            yield from found
            if len(found) < limit:
                return
            after = found[-1].position
            most = None if most is None else most - limit


def count_refused(connection: psycopg.Connection, selected: Selected) -> int:
    """How many refused rows are selected."""
    [(count,)] = connection.execute(_COUNT, _values(selected, 0, None, 0)).fetchall()
    return int(count)


def retry_refused(connection: psycopg.Connection, selected: Selected) -> int:
    """Give refused rows to the relay again, behind what waits, and return how many.

    It commits after each 1,000. Those that the relay refuses meanwhile are left.
    """
    return _in_batches(connection, _RETRY, selected)


def drop_refused(connection: psycopg.Connection, selected: Selected) -> int:
    """Delete refused rows and return how many. It commits after each 1,000."""
    return _in_batches(connection, _DROP, selected)


def _in_batches(connection: psycopg.Connection, statement: str, selected: Selected) -> int:
    [(until,)] = connection.execute("select coalesce(max(position), 0) from deferd.refused").fetchall()
    done = after = 0
    while True:
        [(count, last)] = connection.execute(statement, _values(selected, after, until, BATCH)).fetchall()
        connection.commit()
        done += int(count)
        if count < BATCH:
            return done
        after = last


def _values(selected: Selected, after: int, until: int | None, limit: int) -> dict[str, Any]:
    positions = None if selected.positions is None else list(selected.positions)
    return {"topic": selected.topic, "positions": positions, "after": after, "until": until, "limit": limit}


def error_text(error: Exception) -> str:
    """What went wrong, in one line."""
    if not isinstance(error, psycopg.Error):
        return str(error) or "the database did not respond in time"
    text = error.diag.message_primary or "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"{text}. docs/outbox.md#permissions lists what each role needs"
    return f"{text}. {error.diag.message_hint}" if error.diag.message_hint else text
