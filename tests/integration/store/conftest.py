"""A server of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.store.store_servers import StoreServer


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreServer]:
    """On TCP, or with the parameter "unix" on a unix socket."""
    with StoreServer(tmp_path / "v", unix=getattr(request, "param", "tcp") == "unix") as server:
        yield server
