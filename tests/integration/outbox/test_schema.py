"""The SQL of the outbox in a real PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from deferd.outbox.schema import SLEEP_LOCK, VERSION, schema_sql
from tests.postgresql import PostgresServer


@pytest.fixture
def database(outbox_url: str) -> Iterator[psycopg.Connection]:
    """A connection in which each statement is a transaction."""
    with psycopg.connect(outbox_url, autocommit=True) as connection:
        yield connection


def rows(database: psycopg.Connection) -> list[tuple[Any, ...]]:
    """Verb, topic, id and fields of all rows, in their order."""
    return database.execute("SELECT verb, topic, id, fields FROM deferd.outbox ORDER BY position").fetchall()


def test_a_put_is_the_json_of_a_job_with_a_fixed_due_time(database: psycopg.Connection) -> None:
    [job_id] = database.execute(
        """SELECT deferd.put('orders.close', '{"o": null}', id => 'o1', delay => interval '30 minutes',
            ttr => '90 s', tags => array['a', 'b'], "window" => '"office"', fields => '{"ttl": null}')"""
    ).fetchone() or [None]

    assert job_id == "o1"
    [(verb, topic, row_id, fields)] = rows(database)
    assert (verb, topic, row_id) == ("put", "orders.close", "o1")
    run_at = fields.pop("run_at")
    [seconds] = database.execute("SELECT extract(epoch FROM %s::timestamptz - now())", [run_at]).fetchone() or [0]
    assert 1790 < seconds < 1800
    assert fields == {
        "topic": "orders.close",
        "id": "o1",
        "body": {"o": None},
        "ttr": 90,
        "tags": ["a", "b"],
        "window": "office",
        "ttl": None,
        "on_conflict": "keep",
    }


def test_the_other_calls_are_rows_with_the_json_of_their_requests(database: psycopg.Connection) -> None:
    database.execute("SELECT deferd.cancel('t', 'i')")
    database.execute("SELECT deferd.cancel('t', 'i', if_reserved => 'refuse', follow_up => 'keep')")
    database.execute("SELECT deferd.cancel_tag('order-1', if_reserved => 'refuse')")
    database.execute(
        "SELECT deferd.reschedule('t', 'i', run_at => '2030-01-31 10:30+01', body => 'null', ttl => '1 min')"
    )

    assert rows(database) == [
        ("cancel", "t", "i", {"if_reserved": "cancel", "follow_up": "cancel"}),
        ("cancel", "t", "i", {"if_reserved": "refuse", "follow_up": "keep"}),
        ("cancel_tag", None, None, {"tag": "order-1", "if_reserved": "refuse"}),
        ("reschedule", "t", "i", {"run_at": "2030-01-31T09:30:00.000000Z", "body": None, "ttl": 60}),
    ]


def test_a_put_without_an_id_gets_one_of_its_own(database: psycopg.Connection) -> None:
    made = {database.execute("SELECT deferd.put('t')").fetchone() for _ in range(3)}

    assert {(job_id,) for _, _, job_id, _ in rows(database)} == made
    assert len(made) == 3


def test_what_is_rolled_back_leaves_no_row(database: psycopg.Connection) -> None:
    with database.transaction():
        database.execute("SELECT deferd.put('t', id => 'first')")
        with database.transaction(force_rollback=True):
            database.execute("SELECT deferd.put('t', id => 'of-a-savepoint')")
        database.execute("SELECT deferd.put('t', id => 'last')")
    with database.transaction(force_rollback=True):
        database.execute("SELECT deferd.put('t', id => 'of-a-transaction')")

    assert [job_id for _, _, job_id, _ in rows(database)] == ["first", "last"]


@pytest.mark.parametrize("commit", ["COMMIT", "PREPARE TRANSACTION 'a'; COMMIT PREPARED 'a'"])
def test_positions_are_in_the_order_of_commits_and_within_a_transaction_in_that_of_calls(
    database: psycopg.Connection, outbox_url: str, commit: str
) -> None:
    with psycopg.connect(outbox_url, autocommit=True) as late:
        late.execute("BEGIN; SET LOCAL deferd.notify = off; SELECT deferd.put('t', id => 'late')")
        late.execute("SELECT deferd.cancel('t', 'late')")
        database.execute("SELECT deferd.put('t', id => 'early')")
        for statement in commit.split("; "):
            late.execute(statement)

    assert [(verb, job_id) for verb, _, job_id, _ in rows(database)] == [
        ("put", "early"),
        ("put", "late"),
        ("cancel", "late"),
    ]


def test_a_transaction_that_checks_its_constraints_at_once_loses_no_row(database: psycopg.Connection) -> None:
    with database.transaction():
        database.execute("SET CONSTRAINTS ALL IMMEDIATE")
        database.execute("SELECT deferd.put('t', id => 'a'), deferd.cancel('t', 'b')")

    assert [(verb, job_id) for verb, _, job_id, _ in rows(database)] == [("put", "a"), ("cancel", "b")]


def test_a_commit_reads_no_other_rows(database: psycopg.Connection) -> None:
    database.execute("SELECT deferd.put('t') FROM generate_series(1, 10)")
    database.execute("VACUUM ANALYZE deferd.outbox")  # now it is known to be so small that it could be read as a whole
    with database.transaction():
        database.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        database.execute("SELECT deferd.put('t') FROM generate_series(1, 10)")
        database.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert (
            database.execute("SELECT relation::regclass, page FROM pg_locks WHERE mode = 'SIReadLock'").fetchall() == []
        )
        scans = database.execute(
            "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'deferd.outbox'::regclass"
        )

        assert scans.fetchall() == [(0,)]


@pytest.mark.parametrize("is_asleep", [True, False])
def test_a_commit_wakes_a_relay_that_sleeps(database: psycopg.Connection, outbox_url: str, is_asleep: bool) -> None:
    with psycopg.connect(outbox_url, autocommit=True) as relay:
        relay.execute("LISTEN deferd_outbox")
        if is_asleep:
            relay.execute("SELECT pg_advisory_lock(%s)", [SLEEP_LOCK])
        with database.transaction():
            database.execute("SELECT deferd.put('t'), deferd.put('t')")
        database.execute("NOTIFY deferd_outbox, 'end'")
        received = [notify.payload for notify in relay.notifies(timeout=20, stop_after=1 + is_asleep)]

    assert received == [*([""] if is_asleep else []), "end"]


def test_a_relay_does_not_fall_asleep_before_a_commit_that_did_not_notify_it_has_ended(
    database: psycopg.Connection, outbox_url: str
) -> None:
    with psycopg.connect(outbox_url, autocommit=True) as relay:
        with database.transaction():
            database.execute("SELECT deferd.put('t')")
            database.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as the commit does, which takes its time then
            assert relay.execute("SELECT pg_try_advisory_lock(%s)", [SLEEP_LOCK]).fetchone() == (False,)

        assert relay.execute("SELECT pg_try_advisory_lock(%s)", [SLEEP_LOCK]).fetchone() == (True,)


def test_a_role_that_may_use_the_schema_can_do_nothing_but_call_its_functions(
    database: psycopg.Connection, postgres: PostgresServer
) -> None:
    role = f"application_of_{database.info.dbname}"
    database.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA deferd TO {role}")
    try:
        with database.transaction():
            database.execute(f"SET LOCAL ROLE {role}")
            database.execute("SET LOCAL search_path = pg_temp")
            database.execute("SET LOCAL standard_conforming_strings = off")
            database.execute("CREATE TEMP TABLE outbox (position bigint)")
            database.execute(
                "SELECT deferd.put('t', id => 'a', tags => array['b'], priority => 5), deferd.cancel('t', 'c')"
            )
            database.execute("SELECT deferd.reschedule('t', 'd', fields => '{}'), deferd.cancel_tag('e')")
        assert [verb for verb, *_ in rows(database)] == ["put", "cancel", "reschedule", "cancel_tag"]
        for statement in ("SELECT FROM deferd.outbox", "DELETE FROM deferd.outbox", "SELECT deferd.refuse('a', 'b')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                database.execute(f"BEGIN; SET LOCAL ROLE {role}; {statement}")
            database.execute("ROLLBACK")
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_who_owns_the_schema_can_make_the_outbox_again_and_needs_no_other_right(postgres: PostgresServer) -> None:
    url = postgres.database()
    role = f"owner_in_{url.rpartition('/')[2]}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role}; CREATE SCHEMA deferd AUTHORIZATION {role}; SET ROLE {role}")
        admin.execute(schema_sql())
        admin.execute(schema_sql())
        assert admin.execute("SELECT deferd.put('t', id => 'a')").fetchone() == ("a",)
        admin.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    postgres.drop(url)


def test_a_database_whose_texts_may_be_in_no_encoding_is_refused(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE of_bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    with (
        psycopg.connect(postgres.url("of_bytes")) as database,
        pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="has the encoding SQL_ASCII"),
    ):
        database.execute(schema_sql())
    postgres.drop(postgres.url("of_bytes"))


def test_rows_that_a_relay_does_not_know_are_refused_whoever_writes_them(database: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        database.execute("INSERT INTO deferd.outbox (verb, topic, id, fields) VALUES ('PUT', 't', 'i', '{}')")


def test_the_schema_can_be_made_again_and_keeps_its_rows(database: psycopg.Connection) -> None:
    database.execute("SELECT deferd.put('t', id => 'a')")
    database.execute("UPDATE deferd.version SET version = 0")
    database.execute("CREATE FUNCTION deferd.put(topic text, of_another_version text) RETURNS text RETURN '?'")

    database.execute(schema_sql())
    database.execute("SELECT deferd.put('t', id => 'b')")

    assert [job_id for _, _, job_id, _ in rows(database)] == ["a", "b"]
    assert database.execute("SELECT version FROM deferd.version").fetchall() == [(VERSION,)]
    assert database.execute("SELECT count(*) FROM pg_proc WHERE proname = 'put'").fetchone() == (1,)


def test_a_newer_schema_is_refused_and_stays(database: psycopg.Connection) -> None:
    database.execute("UPDATE deferd.version SET version = %s", [VERSION + 1])

    with pytest.raises(
        psycopg.errors.ObjectNotInPrerequisiteState, match=f"version {VERSION + 1}, and this deferd knows"
    ):
        database.execute(schema_sql())

    assert database.execute("SELECT version FROM deferd.version").fetchall() == [(VERSION + 1,)]


def test_two_that_make_the_schema_at_the_same_time_wait_for_each_other(postgres: PostgresServer) -> None:
    url = postgres.database()
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        first.execute(schema_sql())
        second.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            second.execute(schema_sql())
        first.commit()
        second.rollback()
        second.execute(schema_sql())
    postgres.drop(url)


def test_the_package_and_its_sql_need_no_driver() -> None:
    code = "import sys; sys.modules['psycopg'] = None; import deferd.outbox, deferd.outbox.schema as s; s.schema_sql()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
