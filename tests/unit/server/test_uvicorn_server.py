"""What `deferd.server` uses of uvicorn's server and of uvloop beyond what their documentation promises."""

from __future__ import annotations

import asyncio
import inspect
import ssl
from typing import Any

import pytest
import uvicorn
import uvloop

from deferd.server.http import tls_handshake


@pytest.mark.parametrize("name", ["serve", "startup", "main_loop", "shutdown"])
def test_the_steps_of_the_server_are_coroutines_to_override(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(uvicorn.Server, name))


@pytest.mark.parametrize("step", ["startup", "shutdown"])
def test_the_steps_take_sockets(step: str) -> None:
    assert "sockets" in inspect.signature(getattr(uvicorn.Server, step)).parameters


def test_signals_are_captured_by_a_context_manager() -> None:
    assert callable(uvicorn.Server.capture_signals)


def test_a_server_tells_connections_and_waits_for_tasks() -> None:
    server = uvicorn.Server(uvicorn.Config("module:app"))

    assert server.force_exit is False
    assert server.server_state.connections == set()
    assert server.server_state.tasks == set()


async def test_a_server_without_sockets_begins_with_no_listener() -> None:
    class Application:
        async def __call__(self, scope: object, receive: object, send: object) -> None:
            """Serve nothing."""

    server = uvicorn.Server(uvicorn.Config(Application(), lifespan="off", log_config=None))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)

    await server.startup([])

    assert server.servers == []


# uvloop


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
