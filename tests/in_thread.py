"""A server of the tests' own that runs on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol, TypeVar

START_S = STOP_S = 5.0


class Server(Protocol):
    """A server that can run in a thread. `stop` may be called from any thread."""

    async def serve(self, ready: threading.Event) -> None:
        """Set `ready` when clients can connect, and serve until `stop`."""

    def stop(self) -> None:
        """End `serve`."""


Running = TypeVar("Running", bound=Server)


@contextlib.contextmanager
def in_thread(server: Running) -> Iterator[Running]:
    """Let it run until the end of the block."""
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(ready)), daemon=True)
    thread.start()
    assert ready.wait(START_S)
    try:
        yield server
    finally:
        server.stop()
        thread.join(STOP_S)
        assert not thread.is_alive()
