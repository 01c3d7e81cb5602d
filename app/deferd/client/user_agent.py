"""The headers by which a service, its operators and proxies know this client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_via: ContextVar[str | None] = ContextVar("deferd_via", default=None)


@cache
def user_agent() -> str:
    """``deferd-python/0.2.0``."""
    from importlib import metadata  # noqa: PLC0415 (takes a millisecond)

    try:
        return f"deferd-python/{metadata.version('deferd')}"
    except metadata.PackageNotFoundError:  # the source was copied, not installed
        return "deferd-python"


@contextmanager
def called_via(via: str) -> Iterator[None]:
    """Clients that are made meanwhile say that their requests come from people: by `cli`, or by the `console`."""
    token = _via.set(via)
    try:
        yield
    finally:
        _via.reset(token)


def identification() -> dict[str, str]:
    """The headers of a client that is made now."""
    via = _via.get()
    return {"user-agent": user_agent(), **({} if via is None else {"deferd-via": via})}
