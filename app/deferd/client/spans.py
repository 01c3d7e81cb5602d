"""What the clients and the worker report to a tracer: nothing, unless tracing was asked for.

`Spans` does nothing. `deferd.client.tracing.Tracing`, which needs opentelemetry-api, makes the spans; only clients that
trace import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from deferd.client.job_requests import TRACEPARENT
from deferd.client.request_body import JobToFinish
from deferd.client.transport import StreamingTransport
from deferd.contract.operations.jobs import Delivery

Jobs = TypeVar("Jobs", bound=Sequence[Delivery])


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
    """Until its end, puts that name no trace context have this one."""

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
        """In the block, `settle` reports the deliveries of these."""
        return _NOTHING

    def of_service(self, urls: Sequence[str]) -> Spans:
        """The spans of a client of the service at these URLs."""
        return self

    def transport(self, transport: StreamingTransport) -> StreamingTransport:
        """The transport, which may add the trace context to requests."""
        return transport


NO_SPANS = Spans()
