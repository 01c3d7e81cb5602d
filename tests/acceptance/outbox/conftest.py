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
