"""What the service uses of uvloop that uvloop does not document: it is bounded in pyproject.toml for these names."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
import uvloop

from deferd.server.http import tls_handshake


@pytest.mark.parametrize("name", ["connection_made", "get_buffer", "buffer_updated"])
def test_the_tls_protocol_is_a_buffered_protocol(name: str) -> None:
    assert callable(getattr(tls_handshake._TlsProtocol, name))


def test_the_tls_protocol_takes_what_it_is_made_with() -> None:
    async def make() -> Any:
        loop = asyncio.get_running_loop()
        return tls_handshake._TlsProtocol(
            loop,
            asyncio.Protocol(),
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
            loop.create_future(),
            server_side=True,
            ssl_handshake_timeout=1.0,
            ssl_shutdown_timeout=1.0,
        )

    assert len(uvloop.run(make()).get_buffer(100)) >= 100
