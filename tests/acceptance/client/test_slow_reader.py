"""A service that reads a large request slowly: the exchange has its bound all the same."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deferd import AsyncClient, Client, NoAnswer
from tests.acceptance.client.scripted_server import Peer, scripted_server
from tests.acceptance.server.tls_files import TlsFiles

TIMEOUT_S = 0.5
READING_S = 60.0
SOON_S = 15.0
"""The time-out, what a slow machine takes to write the body, and far less than the reading takes."""
BODY = "x" * 32_000_000


def blocking_put(url: str, tls: ssl.SSLContext | None) -> None:
    with Client(url, timeout=TIMEOUT_S, retry_for=0, tls=tls) as client:
        client.put("t", BODY)


def async_put(url: str, tls: ssl.SSLContext | None) -> None:
    async def put() -> None:
        async with AsyncClient(url, timeout=TIMEOUT_S, retry_for=0, tls=tls) as client:
            await client.put("t", BODY)

    asyncio.run(put())


@pytest.mark.slow
@pytest.mark.parametrize("put", [blocking_put, async_put])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_request_that_is_read_slowly_ends_by_its_time_out(
    put: Callable[[str, ssl.SSLContext | None], None], tmp_path: Path, *, encrypted: bool
) -> None:
    files, server_tls = TlsFiles(tmp_path), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(files.cert, files.key)

    def script(peer: Peer) -> None:
        peer.head()
        end_s = time.monotonic() + READING_S
        while time.monotonic() < end_s and peer.socket.recv(5_000):
            time.sleep(0.01)

    with scripted_server(script, tls=server_tls if encrypted else None) as server:
        url, began_s = f"{'https' if encrypted else 'http'}://localhost:{server.port}", time.monotonic()
        with pytest.raises(NoAnswer):
            put(url, files.trust() if encrypted else None)
        assert time.monotonic() - began_s < SOON_S
