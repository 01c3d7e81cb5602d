"""The client for code without asyncio, made from the asynchronous one: nothing is written twice.

`Verbs` over a `BlockingNetwork` never pauses, so each of its coroutines is run to its end where it is called.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from deferd.client.buffer import PutBuffer
from deferd.client.jobs import Job, PutResult, TopicPage, TopicView
from deferd.client.put_options import PutOptions
from deferd.client.requests import JobToPut
from deferd.client.retry import Sender
from deferd.client.transport import BlockingNetwork, Wire, run
from deferd.client.verbs import Verbs
from deferd.contract.model import JobState

P = ParamSpec("P")
Value = TypeVar("Value")
Item = TypeVar("Item")


def _blocking(
    method: Callable[Concatenate[Verbs, P], Coroutine[Any, Any, Value]],
) -> Callable[Concatenate[Client, P], Value]:
    @functools.wraps(method)
    def call(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Value:
        return run(method(client._verbs, *args, **kwargs))

    return call


class Client:
    """Calls a deferd service over connections that it keeps open; use it as a context manager, or close it.

    Any number of threads may use one. Its arguments, methods and errors are those of AsyncClient.
    """

    def __init__(
        self,
        url: str | Iterable[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = 10.0,
        retry_for: float = 30.0,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        wire = Wire(url, timeout_s=timeout, key=key, connections=connections, tls=tls)
        self._network = BlockingNetwork(wire)
        self._verbs = Verbs(self._network, Sender(self._network, wire.urls, retry_for_s=retry_for))

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the service is: one base URL, or those of several replicas."""
        return self._verbs.urls

    send = _blocking(Verbs.send)
    put = _blocking(Verbs.put)
    put_batch = _blocking(Verbs.put_batch)
    look = _blocking(Verbs.look)
    change = _blocking(Verbs.change)
    cancel = _blocking(Verbs.cancel)
    pop = _blocking(Verbs.pop)
    finish = _blocking(Verbs.finish)
    finish_many = _blocking(Verbs.finish_many)
    release = _blocking(Verbs.release)
    touch = _blocking(Verbs.touch)
    bury = _blocking(Verbs.bury)
    topic = _blocking(Verbs.topic)
    set_topic = _blocking(Verbs.set_topic)
    pause = _blocking(Verbs.pause)
    resume = _blocking(Verbs.resume)
    redrive = _blocking(Verbs.redrive)
    purge = _blocking(Verbs.purge)
    audit = _blocking(Verbs.audit)
    repair = _blocking(Verbs.repair)
    audit_store = _blocking(Verbs.audit_store)
    repair_store = _blocking(Verbs.repair_store)
    is_ready = _blocking(Verbs.is_ready)
    metrics = _blocking(Verbs.metrics)

    def put_many(self, jobs: Iterable[JobToPut]) -> Iterator[PutResult]:
        """As AsyncClient.put_many: the next batch is sent when its first result is asked for."""
        return _each(self._verbs.put_many(jobs))

    def topics(self) -> Iterator[TopicView]:
        """As AsyncClient.topics."""
        return _each(self._verbs.topics())

    def topic_pages(self) -> Iterator[TopicPage]:
        """As AsyncClient.topic_pages."""
        return _each(self._verbs.topic_pages())

    def jobs(self, topic: str, *, state: JobState | str | None = None) -> Iterator[Job]:
        """As AsyncClient.jobs."""
        return _each(self._verbs.jobs(topic, state=state))

    def buffer(self) -> BlockingPutBuffer:
        """Joins puts of concurrent threads into batches; see PutBuffer."""
        return BlockingPutBuffer(self._verbs.buffer())

    def close(self) -> None:
        """Close the connections, each when its call is answered. Further calls raise Unreachable."""
        run(self._network.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class BlockingPutBuffer:
    """PutBuffer for threads: any number of them may put into one."""

    def __init__(self, buffer: PutBuffer) -> None:
        self._buffer = buffer

    @property
    def waiting(self) -> int:
        """How many puts wait for the next batch."""
        return self._buffer.waiting

    def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> PutResult:
        """As PutBuffer.put."""
        return run(self._buffer.put(topic, body, **options))


def _each(items: AsyncIterator[Item]) -> Iterator[Item]:
    try:
        while True:
            try:
                item = run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            run(_close(items))


async def _next(items: AsyncIterator[Item]) -> Item:
    return await anext(items)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
