"""Relays, their database and the service end and come back: nothing is lost, and one relay works at a time."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psycopg
import pytest

from deferd.outbox import relay
from deferd.outbox.database import open_outbox
from deferd.outbox.schema import schema_sql
from tests.acceptance.http_calls import Http, ok
from tests.acceptance.outbox.relay_runs import WatchedService, relaying, until_sent, waiting
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_process import WorkerProcess
from tests.ports import free_port
from tests.postgresql import PostgresServer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("forgotten_relays")

PUT = "SELECT deferd.put(%s, id => %s)"


@pytest.fixture
def short_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "TAKEOVER_S", 0.5)


@pytest.mark.usefixtures("short_takeover")
async def test_another_relay_takes_over_when_the_one_that_works_is_killed(
    shared_service: ServiceProcess,
    outbox_url: str,
    database: psycopg.Connection,
    http: Http,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "deferd.relay")
    command = ("relay", outbox_url, "--url", shared_service.url, "--name")
    with WorkerProcess(*command, "first", module="deferd") as first:
        await asyncio.to_thread(first.wait_for, "works on")
        second = WatchedService(shared_service.url)
        async with relaying(outbox_url, second, name="second"):
            await until(lambda: "another one works" in caplog.text, "the second one waits")
            database.execute(PUT, (http.topic, "a"))
            await until_sent(database)
            assert second.sent() == []
            first.send(signal.SIGKILL)
            database.execute(PUT, (http.topic, "b"))
            await until_sent(database)
            assert second.sent() == [("POST", "/jobs/batch")]
            assert "takes over from first" in caplog.text

    with WorkerProcess(*command, "third", module="deferd") as third:  # the second one ended in order: without waiting
        await asyncio.to_thread(third.wait_for, "third works on")
        assert "takes over" not in "".join(third.lines)
        database.execute(PUT, (http.topic, "c"))
        await until_sent(database)
        third.send(signal.SIGTERM)
        assert await asyncio.to_thread(third.wait) == 0
    for job_id in ("a", "b", "c"):
        assert ok(await http.get(http.job_path(job_id)))["state"] == "ready"


async def test_the_server_notes_in_seconds_that_the_machine_of_a_relay_has_gone(outbox_url: str) -> None:
    asked = "SELECT current_setting(name)::integer FROM unnest(%s::text[]) AS name"
    names = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"]
    async with open_outbox(outbox_url) as outbox:
        found = await (await outbox._connection.execute(asked, [names])).fetchall()
    [(idle_s,), (interval_s,), (count,), (unanswered_ms,)] = found
    assert 0 < idle_s + interval_s * count < 15
    assert 0 < unanswered_ms < 15_000


async def test_a_relay_outlasts_a_crash_of_its_database_and_leaves_a_standby_alone(
    shared_service: ServiceProcess, outbox_url: str, database: psycopg.Connection, http: Http
) -> None:
    with PostgresServer() as server:
        name = outbox_url.rpartition("/")[2]
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        url = server.url(name)
        with psycopg.connect(url, autocommit=True) as first:
            first.execute(schema_sql())
            first.execute("CHECKPOINT")  # a crash soon after a commit that is not synchronous would lose it
        async with relaying(url, shared_service.url):
            with psycopg.connect(url, autocommit=True) as first:
                first.execute(PUT, (http.topic, "before"))
                await until_sent(first)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            with psycopg.connect(url, autocommit=True) as first:
                first.execute(PUT, (http.topic, "after"))
                await until_sent(first)

        await asyncio.to_thread(server.stop)
        (server.folder / "data" / "standby.signal").touch()
        await asyncio.to_thread(server.start)
        database.execute(PUT, (http.topic, "by-the-primary"))
        both = url.replace(f"/{name}", f",{outbox_url.rpartition('@')[2]}")
        async with relaying(both, shared_service.url):
            await until_sent(database)
    for job_id in ("before", "after", "by-the-primary"):
        assert ok(await http.get(http.job_path(job_id)))["state"] == "ready"


async def test_rows_wait_while_the_service_is_down(
    outbox_url: str, database: psycopg.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = ServiceProcess(tmp_path, port=free_port(), preloaded=True)
    async with relaying(outbox_url, service.url):
        database.execute(PUT, ("topic", "a"))
        await until(lambda: "sending rows of the outbox failed" in caplog.text, "it has tried")
        database.execute("SELECT deferd.put('topic', id => 'b')")
        assert waiting(database) == ["a", "b"]
        await asyncio.to_thread(service.start)
        try:
            await until_sent(database)
        finally:
            await asyncio.to_thread(service.__exit__, None, None, None)


async def test_a_relay_waits_for_the_schema(
    shared_service: ServiceProcess, postgres: PostgresServer, http: Http, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.database()
    try:
        async with relaying(url, shared_service.url):
            await until(lambda: "`deferd outbox init`" in caplog.text, "it says what to do")
            with psycopg.connect(url, autocommit=True) as database:
                database.execute(schema_sql())
                database.execute(PUT, (http.topic, "a"))
                await until_sent(database)
    finally:
        postgres.drop(url)


async def test_a_relay_that_has_never_reached_its_database_reports_so_that_somebody_is_alerted(
    shared_service: ServiceProcess, http: Http
) -> None:
    database = f"127.0.0.1:{free_port()}/shop"
    async with relaying(f"postgresql://app:secret@{database}", shared_service.url, name="lost"):
        async with asyncio.timeout(20):
            while not (listed := [one for one in ok(await http.get("/relays"))["relays"] if one["name"] == "lost"]):
                await asyncio.sleep(0.01)
    assert [(one["database"], one["state"]) for one in listed] == [(database, "waits")]
