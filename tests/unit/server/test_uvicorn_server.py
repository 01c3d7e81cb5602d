"""What `deferd.server.http_server` uses of uvicorn's server beyond its documented parameters."""

from __future__ import annotations

import inspect

import pytest
import uvicorn


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
