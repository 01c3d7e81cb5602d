"""A call on a direct path, from its request to its response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from starlette.responses import Response

from deferd.api import metrics
from deferd.api.auth.admission import Admission
from deferd.api.dispatch import error_response, time_header
from deferd.api.incoming_request import host_of
from deferd.api.operation import OperationRoute
from deferd.contract.call_instants import TIME_HEADER
from deferd.engine.request_clock import RequestClock

_TIME_LINE = b"%b: %%d\r\n" % TIME_HEADER.encode()


class Connection(Protocol):
    """The connection that a call came by. `client` is the address of its other end, if it has one."""

    client: tuple[str, int] | None

    def end_call(self, call: DirectCall, status: int, fields: bytes, body: bytes) -> None:
        """Send JSON with more header `fields`, each ended by CRLF."""

    def end_call_with(self, call: DirectCall, response: Response | None) -> None:
        """Send a response; None: close."""


class DirectCall:
    """One call.

    `abandon` ends work that only a connected client needs; None: the work goes on without the client. `held` has
    been entered; it is left when the call ends. If the request names an instant by the `clock`, the response tells what
    that shows.
    """

    __slots__ = (
        "_connection",
        "_method",
        "_route",
        "_started_s",
        "abandon",
        "admission",
        "clock",
        "disconnected",
        "held",
        "keep_alive",
        "response_complete",
    )

    def __init__(self, connection: Connection, operation: OperationRoute, method: str, admission: Admission) -> None:
        self._connection = connection
        self._route = operation.path
        self._method = method
        self._started_s = time.perf_counter()
        self.admission = admission
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False
        self.abandon: Callable[[], object] | None = None
        self.held: AbstractContextManager[None] | None = None
        self.clock: RequestClock | None = None

    def respond(self, status: int, body: bytes, fields: bytes = b"") -> None:
        """End the call with JSON; `fields` are more header lines, each ended by CRLF."""
        if not self.response_complete:
            connection = self._end(status)
            if self.admission.usage is not None:
                fields += self.admission.usage.header_lines()
            if self.clock is not None:
                fields += _TIME_LINE % self.clock.least_ms()
            connection.end_call(self, status, fields, body)

    def fail(self, error: Exception) -> None:
        """End the call with a problem document."""
        if not self.response_complete:
            response = error_response(error)
            connection = self._end(response.status_code)
            if self.admission.usage is not None:
                response.raw_headers.extend(self.admission.usage.headers())
            if self.clock is not None:
                response.raw_headers.append(time_header(self.clock.least_ms()))
            connection.end_call_with(self, response)

    def client_address(self) -> str | None:
        """The address that the connection comes from, until the call ends."""
        return host_of(self._connection.client)

    def disconnect(self) -> None:
        """The client has disconnected."""
        self.disconnected = True
        self.half_close()

    def half_close(self) -> None:
        """The client sends no more, and may have disconnected."""
        if self.abandon is not None:
            self._end_without_response()

    def cancel(self, msg: str | None = None) -> None:  # noqa: ARG002 (a task's)
        """End the call soon, as a task: the server stops without waiting longer.

        Not at once, because the server iterates over its tasks, among which the call is.
        """
        asyncio.get_running_loop().call_soon(self._end_without_response)

    def _end_without_response(self) -> None:
        if self.response_complete:
            return
        abandon = self.abandon
        connection = self._end(0)
        if abandon is not None:
            abandon()
        connection.end_call_with(self, None)

    def _end(self, status: int) -> Connection:
        """Note the end; returns the connection, which this call no longer refers to.

        Connection and waiting pop refer to their call: without references back, they are freed as soon as they close
        or end. The collector of cycles would come late, after much memory, and pause everybody.
        """
        connection = self._connection
        del self._connection
        self.abandon = None
        if self.held is not None:
            self.held.__exit__(None, None, None)
        self.response_complete = True
        metrics.observe_request(self._route, self._method, status, time.perf_counter() - self._started_s)
        return connection
