"""What a load-generating process can be told to do. A step is a value: it travels to the process, which runs it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deferd.bench.connection import Connection
from deferd.bench.errors import BenchFailed
from deferd.bench.ledger import Ledger
from deferd.bench.service_clock import Clock, instant
from deferd.client import AsyncClient, requests
from deferd.client.requests import ApiRequest, Result

BODY = {"order": 1042, "customer": "c-17"}
CALL_TIMEOUT_S = 30.0
SINGLE_POP_WAIT_S = 10.0
PARKED_WAIT_S = 1.0
"""How long a pop of a consumer waits before it is sent again. At the end of a step the last ones wait in vain."""
BATCHES_AT_ONCE = 4
"""Batches that each process has under way at a time, on each side."""


@dataclass
class Outcome:
    """What a step did in one process. Instants are of the monotonic clock, which a machine's processes share."""

    began_s: float
    cpu_s: float
    ended_s: float = 0.0
    jobs: int = 0
    calls: int = 0
    """Calls that carried a job."""
    values_ms: array[float] = field(default_factory=lambda: array("d"))
    """The time of each call, or the lateness of each job."""

    @classmethod
    def begin(cls) -> Outcome:
        """One that begins now."""
        return cls(began_s=time.monotonic(), cpu_s=time.process_time())

    def end(self) -> Outcome:
        """It ends now, unless it has said when its last job ended."""
        self.ended_s = self.ended_s or time.monotonic()
        self.cpu_s = time.process_time() - self.cpu_s
        return self


class Site:
    """Where steps run: one process, its client, and what the process knows of the jobs that it has put."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self.clock = clock
        self.done = 0
        """Jobs or calls of the step under way so far, for the progress bar."""
        self.ledger = Ledger("", clock)
        self._client: AsyncClient | None = None

    @property
    def client(self) -> AsyncClient:
        """The official client, with a connection for each batch under way."""
        if self._client is None:
            self._client = AsyncClient(self.url, timeout=CALL_TIMEOUT_S, retry_for=0, connections=2 * BATCHES_AT_ONCE)
        return self._client

    @contextlib.asynccontextmanager
    async def connections(self, count: int) -> AsyncIterator[list[Connection]]:
        """Connections of their own for a step; they connect when they are used."""
        connections = [Connection(self.url, timeout_s=CALL_TIMEOUT_S) for _ in range(count)]
        try:
            yield connections
        finally:
            for connection in connections:
                connection.close()

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.close()


class Step(Protocol):
    """One thing to do."""

    async def run(self, site: Site) -> Outcome:
        """Do it. Raises BenchFailed for a wrong answer, DeferdError for none or a refusal."""


@dataclass(frozen=True)
class SingleCalls:
    """Single calls over so many connections for so many seconds: puts alone, or a job's full cycle of three calls.

    Each connection sends its next call when the last one is answered.
    """

    topic: str
    connections: int
    seconds: float
    full_cycle: bool

    async def run(self, site: Site) -> Outcome:
        """One put on each connection opens it, and is not in the figures."""
        ledger = Ledger(self.topic, site.clock)
        put = requests.put({"topic": self.topic, "body": BODY})
        pop = requests.pop(self.topic, wait=SINGLE_POP_WAIT_S)
        async with site.connections(self.connections) as connections:
            for job in await asyncio.gather(*(connection.send(put) for connection in connections)):
                ledger.put(job.id)
            outcome = Outcome.begin()
            end_s = outcome.began_s + self.seconds

            async def timed(connection: Connection, call: ApiRequest[Result]) -> Result:
                sent_s = time.perf_counter()
                answer = await connection.send(call)
                outcome.values_ms.append((time.perf_counter() - sent_s) * 1000)
                outcome.calls += 1
                site.done = outcome.calls
                return answer

            async def take_one(connection: Connection) -> None:
                deliveries = await timed(connection, pop)
                if len(deliveries) != 1:
                    raise BenchFailed(
                        f"a pop waited {SINGLE_POP_WAIT_S:g} s in topic {self.topic}, which had a ready job for it, "
                        f"and got {len(deliveries)}"
                    )
                ledger.took(deliveries[0], time.time())
                await timed(connection, requests.finish(deliveries[0]))

            async def go_on(connection: Connection) -> None:
                while time.monotonic() < end_s:
                    ledger.put((await timed(connection, put)).id)
                    if self.full_cycle:
                        await take_one(connection)
                    outcome.jobs += 1

            await asyncio.gather(*map(go_on, connections))
            outcome.end()
            if self.full_cycle:
                await asyncio.gather(*(self._take_first(connection, ledger) for connection in connections))
                ledger.settle()
        return outcome

    async def _take_first(self, connection: Connection, ledger: Ledger) -> None:
        """Take what opened the connection, or what is there in its place."""
        for delivery in await connection.send(requests.pop(self.topic, wait=SINGLE_POP_WAIT_S)):
            ledger.took(delivery, time.time())
            await connection.send(requests.finish(delivery))


@dataclass(frozen=True)
class PutAhead:
    """Put jobs in batches with the official client, due at random instants of the store's clock.

    They are due from `due_ms` on, within `spread_ms`; with a spread of 0 all at the same instant. None: due at once.
    """

    topic: str
    jobs: int
    batch: int
    due_ms: int | None = None
    spread_ms: int = 0

    async def run(self, site: Site) -> Outcome:
        """The site's ledger knows the jobs afterwards, for TakeAll."""
        ledger = site.ledger = Ledger(self.topic, site.clock)
        unput = self.jobs
        outcome = Outcome.begin()

        async def produce() -> None:
            nonlocal unput
            while unput > 0:
                size = min(self.batch, unput)
                unput -= size
                dues = self._dues(size)
                results = await site.client.put_batch([self._job(due) for due in dues])
                for result, due in zip(results, dues, strict=True):
                    ledger.put_answer(result, due)
                outcome.jobs += size
                outcome.calls += 1
                site.done = outcome.jobs

        await asyncio.gather(*(produce() for _ in range(BATCHES_AT_ONCE)))
        return outcome.end()

    def _job(self, due: str | None) -> dict[str, Any]:
        job = {"topic": self.topic, "body": BODY}
        return job if due is None else {**job, "run_at": due}

    def _dues(self, count: int) -> Sequence[str | None]:
        if self.due_ms is None:
            return [None] * count
        if self.spread_ms == 0:
            return [instant(self.due_ms)] * count
        return [instant(self.due_ms + random.randrange(self.spread_ms)) for _ in range(count)]  # noqa: S311 (a load)


@dataclass(frozen=True)
class TakeAll:
    """Pop and finish, up to `count` at a time, what PutAhead has put, as it becomes ready.

    By the official client, with as many pops under way as it had batches; or, for `consumers` above 0, by so many
    waiting consumers with a connection each. The outcome's values are how late each job came.
    """

    topic: str
    count: int
    consumers: int = 0

    async def run(self, site: Site) -> Outcome:
        """It ends when each job has come once and is finished, and the pops that got nothing are answered."""
        ledger = site.ledger
        outcome = Outcome.begin()
        pop = requests.pop(self.topic, count=self.count, wait=PARKED_WAIT_S)

        async def consume(send: Callable[[ApiRequest[Any]], Awaitable[Any]]) -> None:
            while ledger.missing:
                deliveries = await send(pop)
                at_s = time.time()
                if not deliveries:
                    continue
                outcome.values_ms.extend([ledger.took(delivery, at_s) for delivery in deliveries])
                results = await send(requests.finish_many(self.topic, deliveries))
                if [result.id for result in results if result.status == 200] != [one.id for one in deliveries]:
                    refused = next((result for result in results if result.status != 200), None)
                    raise BenchFailed(f"a finish of {len(deliveries)} jobs was answered {refused}")
                outcome.jobs += len(deliveries)
                outcome.calls += 1
                outcome.ended_s = time.monotonic()
                site.done = outcome.jobs

        if self.consumers:
            async with site.connections(self.consumers) as connections:
                await asyncio.gather(*(consume(connection.send) for connection in connections))
        else:
            await asyncio.gather(*(consume(site.client.send) for _ in range(BATCHES_AT_ONCE)))
        ledger.settle()
        return outcome.end()
