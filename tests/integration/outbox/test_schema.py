"""The SQL of the outbox in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest


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
