"""Relays in this process, for tests that see what they send and decide what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import psycopg

from deferd.client.requests import ApiRequest
from deferd.contract.errors import Forbidden
from deferd.outbox.relay import Relay
from deferd.outbox.sending import HttpService, Reply, Service
from tests.waiting import until

Result = TypeVar("Result")
Database = psycopg.Connection[Any]
STOP_S = 10.0
FORBIDDEN: Reply[Any] = Reply(None, Forbidden("no scope"), b'{"status": 403, "code": "forbidden"}')


class WatchedService(HttpService):
    """Notes each request but reports; `after` gets it with its reply, and may return another one.

    `is_forbidden`: every call is, as with a key without the scopes.
    """

    def __init__(self, url: str, after: Callable[[ApiRequest[Any], Reply[Any]], Reply[Any]] | None = None) -> None:
        super().__init__(url, key="", ca_file=None)
        self._after = after
        self.requests: list[ApiRequest[Any]] = []
        self.times_s: list[float] = []
        """When they were sent."""
        self.reports = 0
        self.is_forbidden = False

    async def call(self, request: ApiRequest[Result]) -> Reply[Result]:
        """Send it, and note it."""
        if request.path.startswith("/relays/"):
            self.reports += 1
            return FORBIDDEN if self.is_forbidden else await super().call(request)
        self.requests.append(request)
        self.times_s.append(time.monotonic())
        reply = FORBIDDEN if self.is_forbidden else await super().call(request)
        return reply if self._after is None else self._after(request, reply)

    def sent(self) -> list[tuple[str, str]]:
        """Method and path of the requests."""
        return [(request.method, request.path) for request in self.requests]


@contextlib.asynccontextmanager
async def relaying(
    url: str, service: Service | str, *, name: str | None = None, full_for_s: float = 600.0
) -> AsyncIterator[None]:
    """Run a relay; at the end it must end in order."""
    if isinstance(service, str):
        service = WatchedService(service)
    stop = asyncio.Event()
    run = asyncio.create_task(Relay(url, service, name=name, full_for_s=full_for_s).run(stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(run, STOP_S)


def waiting(database: Database) -> list[str | None]:
    """The ids of the rows in the outbox; that of a cancel by tag is None."""
    return [row[0] for row in database.execute("SELECT id FROM deferd.outbox ORDER BY position").fetchall()]


def refused(database: Database) -> dict[str, str]:
    """The codes of the problems of refused rows, by id."""
    return dict(database.execute("SELECT id, problem ->> 'code' FROM deferd.refused").fetchall())


async def until_sent(database: Database) -> None:
    """Wait until the outbox is empty."""
    await until(lambda: not waiting(database), "all rows have been sent")
