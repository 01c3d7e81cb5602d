from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest


@pytest.fixture
def database(outbox_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in which each statement is a transaction."""
    with psycopg.connect(outbox_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def relay_url(outbox_url: str, database: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of the database for a role that may do what docs/outbox.md says a relay needs, and nothing else."""
    database.execute(
        """
        CREATE ROLE relay_of_tests LOGIN;
        GRANT USAGE ON SCHEMA deferd TO relay_of_tests;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA deferd TO relay_of_tests;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA deferd TO relay_of_tests;
        """
    )
    yield outbox_url.replace("postgres@", "relay_of_tests@")
    database.execute("DROP OWNED BY relay_of_tests; DROP ROLE relay_of_tests")
