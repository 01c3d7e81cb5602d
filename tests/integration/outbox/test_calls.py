"""deferd.outbox writes into the transaction of each driver what the client would send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import isawaitable
from typing import Any

import asyncpg
import django
import psycopg
import pytest
from django.conf import settings
from django.db import connections, transaction
from psycopg.rows import dict_row
from pydantic import BaseModel
from sqlalchemy import NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from deferd import Cipher, FixedBackoff, InvalidInput, job, outbox

Transaction = Callable[[str], AbstractAsyncContextManager[Any]]
"""A transaction in the database of a URL, which an exception rolls back."""
TRANSACTIONS: dict[str, Transaction] = {}


class RolledBack(Exception):
    """Ends a transaction."""


def driver(make: Callable[[str], AsyncIterator[Any]]) -> None:
    TRANSACTIONS[make.__name__] = asynccontextmanager(make)


@driver
async def psycopg_connection(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield connection


@driver
async def psycopg_cursor(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        yield cursor


@driver
async def psycopg_async_connection(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@driver
async def asyncpg_connection(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        yield connection


@driver
async def sqlalchemy_session(url: str) -> AsyncIterator[Any]:
    with Session(create_engine(with_driver(url, "psycopg"), poolclass=NullPool)) as session, session.begin():
        yield session


@driver
async def sqlalchemy_scoped_session(url: str) -> AsyncIterator[Any]:
    session = scoped_session(sessionmaker(create_engine(with_driver(url, "psycopg"), poolclass=NullPool)))
    with session.begin():
        yield session


@driver
async def sqlalchemy_connection(url: str) -> AsyncIterator[Any]:
    with create_engine(with_driver(url, "psycopg"), poolclass=NullPool).begin() as connection:
        yield connection


@driver
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(with_driver(url, "psycopg"), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session


@driver
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[Any]:
    async with create_async_engine(with_driver(url, "asyncpg"), poolclass=NullPool).begin() as connection:
        yield connection


@driver
async def django_connection(url: str) -> AsyncIterator[Any]:
    parts = make_url(url)
    named = {"HOST": parts.host, "PORT": parts.port, "USER": parts.username, "NAME": parts.database}
    connection = connections["default"]
    connection.settings_dict |= named
    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()


def with_driver(url: str, name: str) -> str:
    return url.replace("postgresql:", f"postgresql+{name}:")


@pytest.fixture(scope="module", autouse=True)
def django_is_set_up() -> Iterator[None]:
    databases = {"default": {"ENGINE": "django.db.backends.postgresql"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # what blocks is tested within the event loop, too
        settings.configure(DATABASES=databases, LOGGING_CONFIG=None)
        django.setup()
        yield


async def done(call: Any) -> Any:
    """The result of a call, which is awaited if the connection is asynchronous."""
    return await call if isawaitable(call) else call


def rows(url: str) -> list[tuple[Any, ...]]:
    """What is in the outbox, in the order of commits."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT verb, topic, id, fields FROM deferd.outbox ORDER BY position").fetchall()


@pytest.mark.parametrize("name", TRANSACTIONS)
async def test_calls_are_committed_and_rolled_back_with_the_transaction(name: str, outbox_url: str) -> None:
    due = datetime(2035, 1, 31, 9, 30, tzinfo=UTC)
    async with TRANSACTIONS[name](outbox_url) as connection:
        made = await done(outbox.put(connection, "mail", {"to": "ada % :x $1 é"}))
        given = await done(
            outbox.put(
                connection,
                "orders.close",
                id="1042",
                run_at=due,
                ttr=timedelta(minutes=2),
                max_attempts=None,
                tags=["order:1042", "shop"],
                headers={"note": 'it\'s "quoted" \\ here'},
                backoff=FixedBackoff(seconds=10),
                on_conflict="replace",
            )
        )
        nothing = [
            await done(outbox.cancel(connection, "orders.close", "1041", if_reserved="refuse", follow_up="keep")),
            await done(outbox.reschedule(connection, "mail", "m", run_at=due, body=None, ttl=None, group="")),
            await done(outbox.cancel_tag(connection, "order:1041")),
        ]

    async def roll_back() -> None:
        async with TRANSACTIONS[name](outbox_url) as connection:
            await done(outbox.put(connection, "mail", id="never"))
            await done(outbox.cancel(connection, "mail", made))
            raise RolledBack

    with pytest.raises(RolledBack):
        await roll_back()
    assert (given, nothing) == ("1042", [None, None, None])
    run_at = "2035-01-31T09:30:00.000000Z"
    put, replacement, cancel, change, by_tag = rows(outbox_url)
    assert put == (
        "put",
        "mail",
        made,
        {"topic": "mail", "id": made, "on_conflict": "keep", "body": {"to": "ada % :x $1 é"}},
    )
    assert replacement[:3] == ("put", "orders.close", "1042")
    assert replacement[3] == {
        "topic": "orders.close",
        "id": "1042",
        "body": None,
        "run_at": run_at,
        "on_conflict": "replace",
        "ttr": 120,
        "max_attempts": None,
        "tags": ["order:1042", "shop"],
        "headers": {"note": 'it\'s "quoted" \\ here'},
        "backoff": {"kind": "fixed", "seconds": 10, "jitter": 0},
    }
    assert cancel == ("cancel", "orders.close", "1041", {"if_reserved": "refuse", "follow_up": "keep"})
    assert change == ("reschedule", "mail", "m", {"run_at": run_at, "body": None, "ttl": None, "group": None})
    assert by_tag == ("cancel_tag", None, None, {"tag": "order:1041", "if_reserved": "cancel"})


def test_a_delay_begins_at_the_call(outbox_url: str) -> None:
    with psycopg.connect(outbox_url) as connection:
        outbox.put(connection, "t", id="a", delay=timedelta(minutes=30))
        outbox.put(connection, "t", id="b", delay=0.25)
        outbox.reschedule(connection, "t", "c", delay=60)
    now = datetime.now(UTC)
    due = {row[2]: datetime.fromisoformat(row[3]["run_at"]) - now for row in rows(outbox_url)}
    assert timedelta(minutes=29) < due["a"] <= timedelta(minutes=30)
    assert timedelta(seconds=-20) < due["b"] <= timedelta(seconds=0.25)
    assert timedelta(seconds=40) < due["c"] <= timedelta(seconds=60)


def test_a_job_definition_brings_topic_and_options(outbox_url: str) -> None:
    class Order(BaseModel):
        number: int

    close = job("orders.close", Order, ttr=5)
    with psycopg.connect(outbox_url) as connection:
        outbox.put(connection, **close.fields(Order(number=7), id="7"))
    [(_, topic, _, fields)] = rows(outbox_url)
    assert (topic, fields["ttr"], fields["body"]) == ("orders.close", 5, {"number": 7})


def test_a_cipher_encrypts_the_row(outbox_url: str) -> None:
    cipher = Cipher(Cipher.new_key("k1"), topics="orders.*", headers=True)
    kept: dict[str, Any] = {"cipher": cipher, "body": {"to": "ada"}, "headers": {"to": "ada"}}
    with psycopg.connect(outbox_url) as connection:
        outbox.put(connection, "orders.close", id="a", **kept)
        outbox.reschedule(connection, "orders.close", "a", **kept)
        outbox.reschedule(connection, "orders.close", "a", cipher=cipher, ttr=5)
        outbox.put(connection, "mail", id="a", **kept)
        with pytest.raises(InvalidInput, match="must have at most 4096 bytes"):
            outbox.put(connection, "orders.close", cipher=cipher, headers={"to": "x" * 4000})
    put, changed, short, other = (fields for *_, fields in rows(outbox_url))
    for fields in (put, changed):
        assert cipher.decrypt(fields["body"], topic="orders.close") == {"to": "ada"} != fields["body"]
        assert cipher.decrypt(fields["headers"]["to"], topic="orders.close", part="header:to") == "ada"
        assert "ada" not in str(fields)
    assert short == {"ttr": 5}
    assert (other["body"], other["headers"]) == ({"to": "ada"}, {"to": "ada"})


class NeverCalled:
    """A connection on which no statement may run."""

    __module__ = "psycopg"

    def execute(self, *_: Any) -> Any:
        raise AssertionError("a statement was run")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (partial(outbox.put, topic="t t"), "topic"),
        (partial(outbox.put, topic="t", delay=-1), "delay"),
        (partial(outbox.put, topic="t", run_at=datetime(2035, 1, 1)), "run_at"),  # noqa: DTZ001 (what is refused)
        (partial(outbox.put, topic="t", id="a b"), "id"),
        (partial(outbox.put, topic="t", tags=["a b"]), "tags"),
        (partial(outbox.put, topic="t", unique_for=60), "unique_for"),
        (partial(outbox.put, topic="t", body=float("nan")), "body"),
        (partial(outbox.put, topic="t", backoff={"kind": "fixed", "seconds": -1}), "backoff"),
        (partial(outbox.put, topic="t", id="a", on_conflict="append"), "on_conflict"),
        (partial(outbox.cancel, topic="t", id=""), "id"),
        (partial(outbox.cancel, topic="", id="a"), "topic"),
        (partial(outbox.cancel, topic="t", id="a", if_reserved="keep"), "if_reserved"),
        (partial(outbox.reschedule, topic="t", id="", delay=1), "id"),
        (partial(outbox.reschedule, topic="t", id="a", priority=10), "priority"),
        (partial(outbox.cancel_tag, tag="a b"), "tag"),
        (partial(outbox.cancel_tag, tag="a", if_reserved="keep"), "if_reserved"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_before_the_database_sees_it(
    call: Callable[[NeverCalled], Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        call(NeverCalled())
    assert field in refused.value.field_errors[0].path


def test_what_is_no_connection_and_no_option_is_a_type_error() -> None:
    known: Any = NeverCalled()
    unknown: list[Any] = [None, "postgresql://localhost", create_engine("postgresql+psycopg://"), object()]
    for connection in unknown:
        with pytest.raises(TypeError, match="SQLAlchemy"):
            outbox.put(connection, "t")
    with pytest.raises(TypeError, match="dely"):
        outbox.put(known, "t", dely=5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="follow"):
        outbox.reschedule(known, "t", "a", follow=5)  # type: ignore[call-overload]
