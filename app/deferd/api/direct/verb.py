"""What the direct paths of all verbs share: which requests they take, how these are admitted, and the call of each."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import msgspec
from starlette.responses import Response

from deferd.api import metrics
from deferd.api.auth.admission import Admission
from deferd.api.context import AppContext
from deferd.api.dispatch import error_response, time_header
from deferd.api.incoming_request import host_of
from deferd.api.operation import OperationRoute
from deferd.api.responses import Header
from deferd.contract import limits
from deferd.contract.clocks import TIME_HEADER
from deferd.contract.errors import DeferdError
from deferd.contract.operations.operation import Operation
from deferd.engine.store_clock import RequestClock

ID = limits.ID_PATTERN.strip("^$")
QUERY = r"(?:\?([!\x22$-~]*))?"
"""The pattern of a query, if there is one."""


_TIME_LINE = b"%b: %%d\r\n" % TIME_HEADER.encode()


class Connection(Protocol):
    """The connection that a call came by."""

    def caller(self, headers: Sequence[Header]) -> tuple[str, int] | None:
        """The address of who made the request with these headers, if it has one."""

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
        "_headers",
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

    def __init__(
        self,
        connection: Connection,
        headers: Sequence[Header],
        operation: OperationRoute,
        method: str,
        admission: Admission,
    ) -> None:
        self._connection = connection
        self._headers = headers
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
        """The address of who makes the call, until it ends."""
        return host_of(self._connection.caller(self._headers))

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


class KnownHead:
    """The headers of a request, without its first line. Clients send the same ones each time."""

    __slots__ = ("admissions", "generation", "headers")

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers = headers
        self.admissions: dict[DirectVerb, Admission] = {}
        """By the keys of this `generation`."""
        self.generation = 0


class DirectRequest(msgspec.Struct, frozen=True, eq=False):
    """A request that may take a direct path.

    `values` are those of its path and query, '' for a part that it does not have; `traceparent` is its trace context,
    if it has one.
    """

    connection: Connection
    head: KnownHead
    values: tuple[str, ...]
    body: bytes
    traceparent: str | None


class DirectVerb(ABC):
    """The direct path of an operation, or of several.

    `topic` is the pattern of the topic in the path, `query` that of what may follow the path in the first line, and
    `values` how many groups these have together.
    """

    operations: ClassVar[tuple[Operation[Any], ...]]
    topic: ClassVar = limits.TOPIC_PATTERN.strip("^$")
    query: ClassVar = ""
    values: ClassVar = 2
    has_same_lines: ClassVar = False
    """Clients send the same first lines again and again."""

    @classmethod
    def line_of(cls, operation: Operation[Any]) -> str:
        """The pattern of the first lines, without the HTTP version, of requests that may take the path."""
        return f"{operation.method} {operation.path.format(topic=f'({cls.topic})', id=f'({ID})')}{cls.query}"

    def __init__(self, app: AppContext, operation: OperationRoute) -> None:
        self._app = app
        self._operation = operation
        self._method = next(iter(operation.methods or ()))

    def begin(self, request: DirectRequest) -> DirectCall | None:
        """Begin the call. None, without any effect: it goes the general way."""
        head, gate = request.head, self._app.gate
        if head.generation != gate.generation:
            head.admissions.clear()
            head.generation = gate.generation
        admission = head.admissions.get(self)
        if admission is None:
            admission = gate.find_admission(self._operation.permission, self._method, head.headers)
            if admission is None:
                return None
            head.admissions[self] = admission
        return self._begin(request, admission)

    @abstractmethod
    def _begin(self, request: DirectRequest, admission: Admission) -> DirectCall | None:
        """As `begin`, for a request whose topics and limits are still to be checked, by `_admitted`."""

    def _admitted(
        self,
        request: DirectRequest,
        admission: Admission,
        topics: str,
        held: AbstractContextManager[None] | None = None,
    ) -> DirectCall | None:
        """The call, when its key is for the topics and allows it, so that it counts; else None, without any effect.

        `held` is entered until the call ends; if that raises a DeferdError, the call is not allowed.
        """
        if admission.key is not None and not admission.may_use(topics):
            return None
        usage = admission.usage
        if usage is not None:
            try:
                usage.check_body(request.body)
                if usage.take() > 0:
                    return None
            except DeferdError:
                return None
            try:
                if held is not None:
                    held.__enter__()
            except DeferdError:
                usage.give_back()
                return None
        call = DirectCall(request.connection, request.head.headers, self._operation, self._method, admission)
        if usage is not None:
            call.held = held
        return call
