"""What the clients and the worker report to a tracer: nothing, unless tracing was asked for.

`Spans` does nothing. `deferd.client.tracing.Tracing`, which needs opentelemetry-api, makes the spans; it is imported by
`spans_of` only.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from deferd.client.idempotency import TRACEPARENT
from deferd.client.request_body import JobToFinish
from deferd.client.transport import StreamingTransport
from deferd.contract.responses.jobs import Delivery

if TYPE_CHECKING:
    from deferd.client.tracing import Tracing

Jobs = TypeVar("Jobs", bound=Sequence[Delivery])

TRACING_VARIABLE = "DEFERD_TRACING"
"""Environment variable that switches tracing on where the program says nothing; also a setting of the service."""
_ON = frozenset({"1", "true", "t", "yes", "y", "on"})


class OpenSpan:
    """A span of some jobs while it is open."""

    __slots__ = ()

    def refused(self, codes: Iterable[str | None]) -> None:
        """Note the codes of the results of a batch; None for each job that succeeded."""


class Process:
    """The processing of one delivery; this one reports nothing."""

    __slots__ = ()

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """End it, in the task of its begin. `outcome`: finish, release and so on; `error`: why the attempt failed."""


NO_PROCESS = Process()


class ProcessWithTraceparent(Process):
    """Meanwhile puts that name no trace context have this one."""

    __slots__ = ("_token",)

    def __init__(self, traceparent: str | None) -> None:
        self._token = TRACEPARENT.set(traceparent)

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """See Process."""
        TRACEPARENT.reset(self._token)


_OPEN_SPAN = nullcontext(OpenSpan())
_NOTHING = nullcontext()


class Spans:
    """The spans of a client: none."""

    def put(self, jobs: Sequence[dict[str, Any]]) -> AbstractContextManager[OpenSpan]:
        """The put of some jobs, JSON objects of the contract. They get its trace context, if they have none."""
        return _OPEN_SPAN

    def settle(
        self,
        operation: str,
        topic: str,
        jobs: Sequence[JobToFinish],
    ) -> AbstractContextManager[OpenSpan]:
        """The finish, release or burial of some jobs of a topic."""
        return _OPEN_SPAN

    async def pop(
        self,
        popping: Awaitable[Jobs],
        topics: str | Sequence[str],
        consumer: str | None,
    ) -> Jobs:
        """Await a pop."""
        return await popping

    def process(self, job: Delivery, consumer: str | None = None) -> Process:
        """Begin to process a delivery. NO_PROCESS: there is nothing to end."""
        traceparent = job.traceparent
        return NO_PROCESS if traceparent is None else ProcessWithTraceparent(traceparent)

    def settling(self, processes: Iterable[Process | None]) -> AbstractContextManager[None]:
        """Meanwhile `settle` reports the deliveries of these."""
        return _NOTHING

    def of_service(self, urls: Sequence[str]) -> Spans:
        """The spans of a client of the service at these URLs."""
        return self

    def transport(self, transport: StreamingTransport) -> StreamingTransport:
        """The transport, which may add the trace context to requests."""
        return transport


NO_SPANS = Spans()


def spans_of(tracing: bool | Tracing | None) -> Spans:
    """The spans of a client with this `tracing` argument; None: what DEFERD_TRACING says, by default none.

    Raises:
        ImportError: tracing is on and opentelemetry-api is not installed.
    """
    if tracing is None:
        tracing = os.environ.get(TRACING_VARIABLE, "").strip().lower() in _ON
    if tracing is False:
        return NO_SPANS
    if tracing is not True:
        return tracing
    try:
        from deferd.client.tracing import Tracing  # noqa: PLC0415 (imports opentelemetry, for those who trace)
    except ImportError as error:
        text = "tracing needs opentelemetry-api: pip install 'deferd[otel]'"
        raise ImportError(text, name=error.name) from error
    return Tracing()
