"""An event loop in a thread, for the whole session, so that tests can be plain functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

Value = TypeVar("Value")
CALL_S = 60.0


class EventLoop:
    """Runs coroutines one after the other from the thread of the tests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="conformance-loop", daemon=True)

    def run(self, call: Coroutine[Any, Any, Value]) -> Value:
        """The result of the call."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(CALL_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
