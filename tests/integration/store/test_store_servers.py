"""The servers of the tests themselves: what a test ends and starts again is not mixed up with those of others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.integration.store.store_servers import StoreServer


def test_the_port_of_a_server_that_does_not_run_is_not_free(tmp_path: Path) -> None:
    with StoreServer(tmp_path) as server:
        server.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))
        server.start()
