"""The page of the outbox is true: its shop and its SQL put and cancel with their transactions, in its roles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import IntegrityError

from deferd import AsyncClient
from deferd.testing import ServiceForTests
from tests.acceptance.cli.command_line import run_in_process
from tests.acceptance.outbox.relay_runs import relaying, until_sent
from tests.acceptance.project.test_readme import blocks, module_of
from tests.postgresql import PostgresServer

pytestmark = pytest.mark.slow

ROLES = ("shop", "relay")
Database = psycopg.Connection[Any]


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """The database of the page, with the outbox and the roles that its commands make."""
    url = postgres.database()
    [init, *_] = [line for line in "\n".join(blocks("outbox", "sh")).splitlines() if "outbox init" in line]
    words = init.replace("postgresql://owner@localhost/shop", url).split()
    assert run_in_process(*words[1:]).returncode == 0
    for_application, _, for_relay = blocks("outbox", "sql")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE shop LOGIN")
        connection.execute(for_application)
        connection.execute(for_relay)
        connection.execute("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO shop")
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
        shop_program(url).Base.metadata.create_all(engine)
        yield connection
    postgres.drop(url)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"DROP ROLE {role}")


def as_role(role: str, url: str) -> str:
    return url.replace("postgres@", f"{role}@")


def url_of(database: Database) -> str:
    info = database.info
    return f"postgresql://postgres@{info.host}:{info.port}/{info.dbname}"


def shop_program(url: str, service: ServiceForTests | None = None) -> SimpleNamespace:
    """The program of the page."""
    [program] = blocks("outbox", "python")
    program = program.replace("shop@localhost/shop", as_role("shop", url).removeprefix("postgresql://"))
    return SimpleNamespace(**module_of(program, service))


async def test_the_shop_of_the_page_puts_and_cancels_with_its_orders(
    service: ServiceForTests, database: Database
) -> None:
    url = url_of(database)
    web, worker = shop_program(url, service), shop_program(url, service)  # two processes in life
    browser = httpx.AsyncClient(transport=httpx.ASGITransport(web.app), base_url="http://shop")
    async with AsyncClient(service.url) as client, browser, relaying(as_role("relay", url), service.url):

        async def ids(topic: str) -> list[str]:
            return [job.id async for job in client.jobs(topic)]

        for number in ("1042", "1043"):
            assert (await browser.put(f"/orders/{number}")).status_code == 200
        with pytest.raises(IntegrityError):
            await browser.put("/orders/1042")
        await until_sent(database)
        assert sorted(await ids("orders.close")) == ["1042", "1043"]
        assert (await browser.post("/orders/1042/payment")).status_code == 200
        assert (await browser.post("/orders/1042/payment")).status_code == 409
        await until_sent(database)
        assert await ids("orders.close") == ["1043"]
        service.clock.advance(timedelta(minutes=31))
        await asyncio.to_thread(service.run_until_idle, worker.worker)
        await until_sent(database)
        assert await ids("mail") == ["closed-1043"]
    states = database.execute("SELECT number, state FROM orders ORDER BY number").fetchall()
    assert states == [("1042", "paid"), ("1043", "closed")]
    for program in (web, worker):
        await program.transaction.__self__.kw["bind"].dispose()


async def test_the_sql_of_the_page_puts_and_cancels(service: ServiceForTests, database: Database) -> None:
    url = url_of(database)
    placed, paid = blocks("outbox", "sql")[1].split("\n\n")
    with psycopg.connect(as_role("shop", url), autocommit=True) as connection:
        async with AsyncClient(service.url) as client, relaying(as_role("relay", url), service.url):
            connection.execute(placed)
            await until_sent(database)
            job = await client.get("mail", "reminder-1042")
            assert (job.body, job.max_attempts) == ({"order": "1042", "kind": "reminder"}, 5)
            assert [job.id async for job in client.jobs("orders.close")] == ["1042"]
            connection.execute(paid)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT FROM deferd.outbox")
            status = await asyncio.to_thread(run_in_process, "outbox", "status", as_role("shop", url))
            assert "permission denied for table version. docs/outbox.md#permissions" in status.stderr
            await until_sent(database)
            for topic in ("orders.close", "mail"):
                assert [job.id async for job in client.jobs(topic)] == []
