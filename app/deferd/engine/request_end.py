"""Until when the calls of the store that a request makes may have an effect.

A request whose client gives it up at some instant must do nothing from then on, also when one of its calls waits in the
service or on the way to the store. So each of them carries that instant; see `deferd.store.server_clock`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf


class _End:
    """`at_s` is infinite once the block has ended: what was begun in it and goes on is not bounded by it."""

    __slots__ = ("at_s",)

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s


_current: ContextVar[_End | None] = ContextVar("deferd_request_end", default=None)


def request_ends_at_s() -> float:
    """When the request that this is done for ends, on the event loop's clock; infinite if it names no instant."""
    end = _current.get()
    return inf if end is None else end.at_s


@contextmanager
def request_ending_at(at_s: float) -> Iterator[None]:
    """Bound all calls of the store within the block, also in tasks that it starts, until the block ends.

    Infinite: for work that serves others too, or must be done although the request has ended.
    """
    end = _End(at_s)
    token = _current.set(end)
    try:
        yield
    finally:
        _current.reset(token)
        end.at_s = inf
