"""`deferd outbox` with a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from deferd.outbox import administration
from deferd.outbox.database import open_outbox
from deferd.outbox.schema import VERSION, schema_sql
from tests.acceptance.cli.command_line import Shell, terminal
from tests.postgresql import PostgresServer

shell = Shell("http://127.0.0.1:9")
"""No service is called."""
_FACTS = ["database", "version", "rows", "oldest", "refused", "relay"]


def run(url: str, *words: str, code: int = 0) -> str:
    """What `deferd outbox` writes to standard output, or, if it fails, to standard error."""
    done = shell.run("outbox", *words, DEFERD_OUTBOX_URL=url)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def refuse(url: str, *topics: str | None) -> None:
    """Add refused rows at the positions 1, 2 and so on."""
    with psycopg.connect(url) as database:
        for topic in topics:
            database.execute(
                "INSERT INTO deferd.refused (position, verb, topic, id, fields, written_at, problem)"
                """ SELECT count(*) + 1, 'put', %s, 'i' || count(*) + 1, '{"a": 1}', now(), '{"detail": "too large"}'
                FROM deferd.refused""",
                [topic],
            )


def listed(url: str, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(url, "refused", *words, "--json").splitlines()]


def positions(url: str, *words: str) -> list[int]:
    return [row["position"] for row in listed(url, *words)]


def test_init_makes_the_schema_and_may_be_repeated(postgres: PostgresServer) -> None:
    url = postgres.database()
    assert "make it by `deferd outbox init`" in run(url, "status", code=1)
    assert "make it by `deferd outbox init`" in run(url, "refused", code=1)

    assert run("", "init", url) == f"the database has the outbox, version {VERSION}\n"
    assert run(url, "init") == f"the database has the outbox, version {VERSION}\n"
    assert json.loads(run(url, "status", "--json"))["version"] == VERSION
    postgres.drop(url)


def test_init_prints_what_it_would_run() -> None:
    assert run("", "init", "--print") == schema_sql()


def test_a_newer_schema_is_refused(outbox_url: str) -> None:
    with psycopg.connect(outbox_url) as database:
        database.execute("UPDATE deferd.version SET version = %s", [VERSION + 1])

    assert f"version {VERSION + 1}, and this deferd knows version {VERSION}. Use a" in run(outbox_url, "init", code=1)
    assert f"version {VERSION + 1}" in run(outbox_url, "status", code=1)
    assert f"version {VERSION + 1}" in run(outbox_url, "refused", code=1)


def test_wrong_urls_are_refused_without_their_password() -> None:
    assert "URL (DEFERD_OUTBOX_URL) is missing" in shell.refused(2, "outbox", "init")
    for url in ("mysql://a:secret@h/x", "postgresql://a:secret@h/x?y=%z", "postgresql://a:secret@127.0.0.1:1/x"):
        for action in ("init", "status", "refused"):
            error = run(url, action, code=1 if ":1/" in url else 2)
            assert "secret" not in error
            assert error.count("\n") == 1


async def test_status_shows_what_waits_and_who_works(outbox_url: str) -> None:
    with psycopg.connect(outbox_url) as database:
        database.execute("SELECT deferd.put('t'), deferd.put('t')")
    refuse(outbox_url, "t")

    shown = await asyncio.to_thread(run, outbox_url, "status")
    assert [line.split()[0] for line in shown.splitlines()] == _FACTS
    assert "none works" in shown
    async with open_outbox(outbox_url) as relay:
        assert await relay.try_to_lock()
        await relay.begin("relay-7")
        facts = json.loads(await asyncio.to_thread(run, outbox_url, "status", "--json"))
        assert "relay-7, since 20" in await asyncio.to_thread(run, outbox_url, "status")
    assert (facts["rows"], facts["refused"], facts["relay"]["name"]) == (2, 1, "relay-7")
    assert 0 < facts["lag"] < 60
    assert outbox_url.partition("@")[2] == facts["database"]


def test_refused_rows_are_listed_in_their_order(outbox_url: str) -> None:
    assert run(outbox_url, "refused") == ""
    refuse(outbox_url, "b", "a", None, "a")

    [row, *_] = listed(outbox_url)
    assert (row["verb"], row["topic"], row["id"], row["fields"]) == ("put", "b", "i1", {"a": 1})
    assert row["problem"] == {"detail": "too large"}
    assert positions(outbox_url) == [1, 2, 3, 4]
    assert positions(outbox_url, "--topic", "a") == [2, 4]
    assert positions(outbox_url, "--limit", "3") == [1, 2, 3]
    assert positions(outbox_url, "4", "1", "9") == [1, 4]
    assert positions(outbox_url, outbox_url, "4") == [4]
    with psycopg.connect(outbox_url) as database:
        database.execute(
            "UPDATE deferd.refused SET verb = 'cancel_tag', id = NULL, fields = '{\"tag\": \"x\"}' WHERE topic IS NULL"
        )
    [head, first, _, of_tag, _] = run(outbox_url, "refused").splitlines()
    assert head.split() == ["POSITION", "CALL", "TOPIC", "ID", "REFUSED", "PROBLEM"]
    assert first.split()[:4] == ["1", "put", "b", "i1"]
    assert first.endswith("too large")
    assert of_tag.split()[:5] == ["3", "cancel_tag", "-", "tag", "x"]


def test_retried_rows_wait_for_the_relay_again(outbox_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "BATCH", 2)
    refuse(outbox_url, "a", "b", "a", "b", "a", "a")

    assert positions(outbox_url, "--all") == [1, 2, 3, 4, 5, 6]
    assert run(outbox_url, "refused", "6", "--retry") == "1 refused row given to the relay again\n"
    assert json.loads(run(outbox_url, "refused", "--topic", "a", "--retry", "--json")) == {"retried": 3}
    assert positions(outbox_url) == [2, 4]
    with psycopg.connect(outbox_url) as database:
        waiting = database.execute("SELECT id, fields FROM deferd.outbox ORDER BY position").fetchall()
    assert waiting == [(f"i{number}", {"a": 1}) for number in (6, 1, 3, 5)]


def test_dropped_rows_are_gone(outbox_url: str) -> None:
    refuse(outbox_url, "a", "b", "a")

    assert "there is no refused row" in run(outbox_url, "refused", "1", "7", "--drop", "--yes", code=3)
    assert positions(outbox_url) == [2, 3]
    assert json.loads(run(outbox_url, "refused", "--all", "--drop", "--yes", "--json")) == {"dropped": 2}
    assert positions(outbox_url) == []


@pytest.mark.parametrize(("typed", "code", "left"), [("n", 130, [1, 2]), ("y", 0, [])])
def test_a_drop_asks_first(outbox_url: str, typed: str, code: int, left: list[int]) -> None:
    refuse(outbox_url, "a", "a")

    with terminal("", "outbox", "refused", outbox_url, "--topic", "a", "--drop") as drop:
        drop.wait_for(r"Drop 2 refused rows for good\? \[y/N\] ")
        drop.press(f"{typed}\n")
        assert drop.end() == code
    assert positions(outbox_url) == left


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--retry", "--drop", "--all"), "exclude each other"),
        (("--retry",), "say which rows: POSITION, --topic or --all"),
        (("--drop", "--all", "--topic", "a", "--yes"), "say which rows: POSITION, --topic or --all"),
        (("--drop", "--all"), "give --yes"),
        (("1", "x"), "POSITION must be a whole number, as `deferd outbox refused` lists it (it is 'x')"),
    ],
)
def test_unclear_orders_are_refused(words: tuple[str, ...], error: str) -> None:
    assert error in run("postgresql://127.0.0.1:1/x", "refused", *words, code=2)
