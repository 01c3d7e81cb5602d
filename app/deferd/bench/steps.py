"""The steps that load-generating processes run. A step is pickled and sent to its process."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deferd.bench.errors import BenchFailed
from deferd.bench.ledger import Ledger
from deferd.bench.service_clock import ClockOffset
from deferd.client import AsyncClient, consuming, job_requests
from deferd.client.requests import ApiRequest, Result
from deferd.contract.timestamps import instant_text

BODY = {"order": 1042, "customer": "c-17"}
CALL_TIMEOUT_S = 30.0
SINGLE_POP_WAIT_S = 10.0
CONSUMER_WAIT_S = 1.0
"""Wait of a consumer's pop. The last pops of a step wait in vain."""
BATCHES_AT_ONCE = 4
"""Concurrent batches of each process, for puts and for pops."""


@dataclass
class StepResult:
    """What a step did in one process. Instants are of the monotonic clock, which all processes of a machine share."""

    began_s: float
    cpu_s: float
    ended_s: float = 0.0
    jobs: int = 0
    calls: int = 0
    """Calls that carried a job."""
    values_ms: array[float] = field(default_factory=lambda: array("d"))
    """The duration of each call, or the lateness of each job."""

    @classmethod
    def begin(cls) -> StepResult:
        """A result that begins now."""
        return cls(began_s=time.monotonic(), cpu_s=time.process_time())

    def end(self) -> StepResult:
        """End it now, unless `ended_s` is set."""
        self.ended_s = self.ended_s or time.monotonic()
        self.cpu_s = time.process_time() - self.cpu_s
        return self


class StepContext:
    """What the steps of one process share: its client and the ledger of the jobs that it has put."""

    def __init__(self, url: str, clock: ClockOffset) -> None:
        self.url = url
        self.clock = clock
        self.done = 0
        """Jobs or calls of the current step so far, for the progress bar."""
        self.ledger = Ledger("", clock)
        self._client: AsyncClient | None = None

    @property
    def client(self) -> AsyncClient:
        """The client of batches, with a connection for each concurrent one."""
        if self._client is None:
            self._client = self.new_client(2 * BATCHES_AT_ONCE)
        return self._client

    def new_client(self, connections: int) -> AsyncClient:
        """A client of a step's own, without retries."""
        return AsyncClient(self.url, timeout=CALL_TIMEOUT_S, retry_for=0, connections=connections)

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.close()


class Step(Protocol):
    """One part of a load."""

    async def run(self, context: StepContext) -> StepResult:
        """Run it. Raises BenchFailed for a wrong response, DeferdError for none or an error response."""


@dataclass(frozen=True)
class SingleCalls:
    """Single calls over `connections` for `seconds`: puts alone, or the full cycle of three calls.

    Each connection sends its next call after the response to the last one.
    """

    topic: str
    connections: int
    seconds: float
    full_cycle: bool

    async def run(self, context: StepContext) -> StepResult:
        """The put that opens each connection is not in the figures."""
        ledger = Ledger(self.topic, context.clock)
        put = job_requests.put({"topic": self.topic, "body": BODY})
        pop = consuming.pop(self.topic, wait=SINGLE_POP_WAIT_S)
        async with context.new_client(self.connections) as client:
            for job in await asyncio.gather(*(client.send(put) for _ in range(self.connections))):
                ledger.put(job.id)
            totals = StepResult.begin()
            end_s = totals.began_s + self.seconds

            async def timed(call: ApiRequest[Result]) -> Result:
                sent_s = time.perf_counter()
                response = await client.send(call)
                totals.values_ms.append((time.perf_counter() - sent_s) * 1000)
                totals.calls += 1
                context.done = totals.calls
                return response

            async def consume_one() -> None:
                deliveries = await timed(pop)
                if len(deliveries) != 1:
                    raise BenchFailed(
                        f"a pop of topic {self.topic}, which had a ready job, waited {SINGLE_POP_WAIT_S:g} s and "
                        f"returned {len(deliveries)} jobs"
                    )
                ledger.delivered(deliveries[0], time.time())
                await timed(job_requests.finish(deliveries[0]))

            async def repeat() -> None:
                while time.monotonic() < end_s:
                    ledger.put((await timed(put)).id)
                    if self.full_cycle:
                        await consume_one()
                    totals.jobs += 1

            await asyncio.gather(*(repeat() for _ in range(self.connections)))
            totals.end()
            if self.full_cycle:
                await asyncio.gather(*(self._consume_first(client, ledger) for _ in range(self.connections)))
                ledger.check_complete()
        return totals

    async def _consume_first(self, client: AsyncClient, ledger: Ledger) -> None:
        """Consume one of the jobs that opened the connections."""
        for delivery in await client.send(consuming.pop(self.topic, wait=SINGLE_POP_WAIT_S)):
            ledger.delivered(delivery, time.time())
            await client.send(job_requests.finish(delivery))


@dataclass(frozen=True)
class PutAhead:
    """Put jobs in batches.

    They are due at random instants within `spread_ms` from `due_ms` on, by the store's clock. None: due at once.
    """

    topic: str
    jobs: int
    batch: int
    due_ms: int | None = None
    spread_ms: int = 0

    async def run(self, context: StepContext) -> StepResult:
        """The ledger of the context then has the jobs, for ConsumeAll."""
        ledger = context.ledger = Ledger(self.topic, context.clock)
        remaining = self.jobs
        totals = StepResult.begin()

        async def produce() -> None:
            nonlocal remaining
            while remaining > 0:
                size = min(self.batch, remaining)
                remaining -= size
                dues_ms = self._dues_ms(size)
                results = await context.client.put_batch([self._job(due_ms) for due_ms in dues_ms])
                for result, due_ms in zip(results, dues_ms, strict=True):
                    ledger.put_result(result, due_ms)
                totals.jobs += size
                totals.calls += 1
                context.done = totals.jobs

        await asyncio.gather(*(produce() for _ in range(BATCHES_AT_ONCE)))
        return totals.end()

    def _job(self, due_ms: int | None) -> dict[str, Any]:
        job = {"topic": self.topic, "body": BODY}
        return job if due_ms is None else {**job, "run_at": instant_text(due_ms)}

    def _dues_ms(self, count: int) -> Sequence[int | None]:
        if self.due_ms is None or self.spread_ms == 0:
            return [self.due_ms] * count
        return [self.due_ms + random.randrange(self.spread_ms) for _ in range(count)]  # noqa: S311 (a load)


@dataclass(frozen=True)
class ConsumeAll:
    """Pop and finish the jobs of PutAhead as they become ready, up to `count` at a time.

    With as many concurrent pops as PutAhead had batches; or, for `consumers` above 0, with that many waiting consumers,
    one connection each. The values of the result are the lateness of each job.
    """

    topic: str
    count: int
    consumers: int = 0

    async def run(self, context: StepContext) -> StepResult:
        """It ends when each job was delivered once and finished, and the last waiting pops have returned."""
        ledger = context.ledger
        totals = StepResult.begin()
        pop = consuming.pop(self.topic, count=self.count, wait=CONSUMER_WAIT_S)

        async def consume(client: AsyncClient) -> None:
            while ledger.missing:
                deliveries = await client.send(pop)
                at_s = time.time()
                if not deliveries:
                    continue
                totals.values_ms.extend([ledger.delivered(delivery, at_s) for delivery in deliveries])
                results = await client.send(consuming.finish_many(self.topic, deliveries))
                if [result.id for result in results if result.status == 200] != [one.id for one in deliveries]:
                    refused = next((result for result in results if result.status != 200), None)
                    raise BenchFailed(f"a finish of {len(deliveries)} jobs returned {refused}")
                totals.jobs += len(deliveries)
                totals.calls += 1
                totals.ended_s = time.monotonic()
                context.done = totals.jobs

        if self.consumers:
            async with context.new_client(self.consumers) as client:
                await asyncio.gather(*(consume(client) for _ in range(self.consumers)))
        else:
            await asyncio.gather(*(consume(context.client) for _ in range(BATCHES_AT_ONCE)))
        ledger.check_complete()
        return totals.end()
