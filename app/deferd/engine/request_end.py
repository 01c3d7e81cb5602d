"""Until when the calls of the store that a request makes may have an effect.

A request whose client gives it up at some instant must do nothing from then on, also when one of its calls waits in the
service or on the way to the store. So each of them carries that instant; see `deferd.store.server_clock`.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from math import inf
from types import TracebackType


class request_ending_at:  # noqa: N801 (used as a function; a generator as context manager takes three times as long)
    """Bound all calls of the store within the block, also in tasks that it starts, until the block ends.

    Infinite: for work that serves others too, or must be done although the request has ended.
    """

    __slots__ = ("_token", "at_s")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def __enter__(self) -> None:
        self._token: Token[request_ending_at | None] = _current.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _current.reset(self._token)
        self.at_s = inf  # what was begun in the block and goes on is not bounded by it


_current: ContextVar[request_ending_at | None] = ContextVar("deferd_request_end", default=None)


def request_ends_at_s() -> float:
    """When the request that this is done for ends, on the event loop's clock; infinite if it names no instant."""
    end = _current.get()
    return inf if end is None else end.at_s
