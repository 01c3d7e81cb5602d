"""The steps that load-generating processes run, and the checks of jobs. A step is pickled and sent to its process."""

from __future__ import annotations

import asyncio
import random
import textwrap
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from deferd.client import AsyncClient, Delivery, NoAnswer, PutResult, UnexpectedAnswer, consuming, job_requests
from deferd.client.requests import ApiRequest, Result
from deferd.contract.errors import DeferdError
from deferd.contract.timestamps import instant_text

BODY = {"order": 1042, "customer": "c-17"}
CALL_TIMEOUT_S = 30.0
SINGLE_POP_WAIT_S = 10.0
CONSUMER_WAIT_S = 1.0
"""Wait of a consumer's pop. The last pops of a step wait in vain."""
BATCHES_AT_ONCE = 4
"""Concurrent batches of each process, for puts and for pops."""
_SHOWN_CHARACTERS = 150
"""How much of an unexpected response is shown."""
_STEP_MS = 1.0
"""Instants of the store are truncated to milliseconds."""
_ROUNDING_MS = 1.0
"""Tolerance for the rounding of both clocks to milliseconds."""


class BenchFailed(Exception):
    """The deployment cannot be measured, or responded wrongly. The text is one sentence for users."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Milliseconds by which the store's clock is ahead of this machine's, and the largest error of that."""

    offset_ms: float
    error_ms: float

    @classmethod
    def from_samples(cls, samples: Iterable[tuple[float, float, float]]) -> ClockOffset:
        """The offset from samples: request sent, the store's instant, response received; in milliseconds.

        The store read its clock between request and response, so each sample bounds the offset on both sides. If 0 is
        within the bounds, the clocks are assumed to agree, as on one machine or with synchronized clocks.
        """
        samples = list(samples)
        low = max(stored - received for _, stored, received in samples)
        high = min(stored + _STEP_MS - sent for sent, stored, _ in samples)
        if low <= 0 <= high:
            return cls(0.0, max(-low, high))
        return cls((low + high) / 2, abs(high - low) / 2)

    def store_ms(self, here_s: float) -> float:
        """The store's time in milliseconds since the epoch at this `time.time()`."""
        return here_s * 1000 + self.offset_ms


class Ledger:
    """The jobs of one topic, put and consumed by this process: each must be delivered exactly once and not early."""

    def __init__(self, topic: str, clock: ClockOffset) -> None:
        self._topic = topic
        self._clock = clock
        self._put: dict[str, int | None] = {}
        self._taken: set[str] = set()

    @property
    def missing(self) -> int:
        """How many jobs were put and not delivered."""
        return len(self._put) - len(self._taken)

    def put(self, job_id: str, due_ms: int | None = None) -> None:
        """Record a put with this id. `due_ms` is the requested instant."""
        if job_id in self._put:
            raise BenchFailed(f"two jobs of topic {self._topic} got the same id {job_id}")
        self._put[job_id] = due_ms

    def put_result(self, result: PutResult, due_ms: int | None) -> None:
        """Record the result of a put in a batch."""
        if result.status != 201 or result.topic != self._topic:
            raise BenchFailed(f"a put into topic {self._topic} returned {result}, not 201")
        self.put(result.id, due_ms)

    def delivered(self, job: Delivery, at_s: float) -> float:
        """Record a delivery at this `time.time()`; returns its lateness in milliseconds.

        With concurrent producers and consumers it may precede the response to its put; `check_complete` then finds jobs
        that were never put.
        """
        job_id, due_ms = job.id, epoch_ms(job.due_at)
        if job_id in self._taken:
            raise BenchFailed(f"job {job_id} of topic {self._topic} was delivered twice")
        if job.topic != self._topic or job.attempt != 1:
            raise BenchFailed(f"a pop of topic {self._topic} returned {job!r} as attempt {job.attempt}")
        if (requested_ms := self._put.get(job_id)) is not None and requested_ms != due_ms:
            raise BenchFailed(
                f"job {job_id} of topic {self._topic} was put for {instant_text(requested_ms)} and delivered as due at "
                f"{instant_text(due_ms)}"
            )
        self._taken.add(job_id)
        late_ms = self._clock.store_ms(at_s) - due_ms
        if late_ms < -(self._clock.error_ms + _ROUNDING_MS):
            raise BenchFailed(f"job {job_id} of topic {self._topic} was delivered {-late_ms:.1f} ms before it was due")
        return late_ms

    def check_complete(self) -> None:
        """Check at the end that the delivered jobs are those that were put."""
        if self.missing or self._put.keys() != self._taken:
            lost, unknown = len(self._put.keys() - self._taken), len(self._taken - self._put.keys())
            raise BenchFailed(
                f"of the jobs put into topic {self._topic}, {lost} were not delivered; {unknown} others were"
            )


@dataclass
class StepResult:
    """The result of a step in one process. Instants are of the monotonic clock, which all processes share."""

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
    """Shared by the steps of one process: its client and the ledger of the jobs that it has put."""

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


def bench_error(failure: DeferdError, url: str) -> BenchFailed:
    """A failed call as one sentence for users."""
    if isinstance(failure, NoAnswer):
        return BenchFailed(f"no response from {url}: {failure}")
    if isinstance(failure, UnexpectedAnswer):
        text = textwrap.shorten(str(failure), _SHOWN_CHARACTERS, placeholder=" ...")
        return BenchFailed(f"{url} responds, but not as a deferd service does: {text}")
    return BenchFailed(f"{url} refused a call: {failure}")


def epoch_ms(at: datetime) -> int:
    """Milliseconds since the epoch of an instant of the service."""
    return round(at.timestamp() * 1000)
