"""The load of the soak test: clients that put and cancel, workers that finish and release, and a ledger.

Of ten jobs one is cancelled before it is due, one is released at its first delivery and comes again after its backoff,
and eight are finished at once. All are put with an instant at which they are due.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from deferd import AsyncClient, Context, DeferdError, Retry, Worker
from deferd.contract.model import JobState

TOPIC = "bench.soak"
BATCH = 50
CANCELLED, RELEASED = 0, 1
"""The fate of a job, by its number modulo ten; the other eight are finished at the first delivery."""
SOONEST_S, LATEST_S = 0.5, 2.5
"""Delays of jobs."""
CANCEL_AFTER_S, DUE_IF_NOT_CANCELLED_S = 1.0, 120.0
BACKOFF = {"kind": "fixed", "seconds": 0.5, "jitter": 0.5}
TTR_S = 30
UNDER_WAY_MAX = 4000
"""At the top rate, puts wait while so many jobs are not finished."""


class Ledger:
    """Counts of puts and of their outcomes, and the lateness of first deliveries."""

    def __init__(self) -> None:
        self.put = 0
        self.finished = 0
        self.cancelled = 0
        self.released = 0
        self.twice = 0
        self.delivered_after_cancel = 0
        self.refused: list[str] = []
        self.under_way: set[int] = set()
        self.cancelled_numbers: set[int] = set()
        self.late: list[tuple[float, float]] = []
        """When each job arrived, by `time.monotonic()`, and its lateness in milliseconds."""

    def delivered(self, number: int, due_s: float, attempt: int) -> None:
        """A handler starts with a job."""
        if attempt == 1:
            self.late.append((time.monotonic(), (time.time() - due_s) * 1000))
        if number in self.cancelled_numbers:
            self.delivered_after_cancel += 1

    def done(self, number: int) -> None:
        """A handler has ended with a job."""
        if number in self.under_way:
            self.under_way.remove(number)
            self.finished += 1
        else:
            self.twice += 1


class Producer:
    """Puts batches of jobs and cancels some of them, one per call."""

    def __init__(self, ledger: Ledger, clients: Sequence[AsyncClient]) -> None:
        self.ledger = ledger
        self.clients = list(clients)
        self._tasks: dict[asyncio.Task[None], AsyncClient] = {}

    async def run(self, rate: float | None, stop: asyncio.Event) -> None:
        """Put `rate` jobs per second until `stop`; with None as many as possible, due at once."""
        next_s = time.monotonic()
        iteration = 0
        while not stop.is_set():
            iteration += 1
            client = self.clients[iteration % len(self.clients)]
            task = asyncio.create_task(self._put(client, at_once=rate is None))
            self._tasks[task] = client
            task.add_done_callback(self._done)
            if rate is None:
                await asyncio.sleep(0)
                while len(self.ledger.under_way) > UNDER_WAY_MAX or len(self._tasks) > 8:
                    await asyncio.sleep(0.001)
            else:
                next_s = max(next_s + BATCH / rate, time.monotonic() - 1)  # some missed puts are caught up
                await asyncio.sleep(max(next_s - time.monotonic(), 0))

    async def settle(self, client: AsyncClient | None = None) -> None:
        """Wait for the puts and cancels in progress, by this client or all."""
        while tasks := [task for task, by in self._tasks.items() if client in {None, by}]:
            await asyncio.wait(tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.ledger.refused.append(repr(error))

    async def _put(self, client: AsyncClient, *, at_once: bool) -> None:
        first = self.ledger.put
        self.ledger.put += BATCH
        numbers = range(first, first + BATCH)
        self.ledger.under_way.update(numbers)
        results = await client.put_batch([self._job(number, at_once=at_once) for number in numbers])
        self.ledger.refused += [f"{result.id}: {result.code}" for result in results if result.code is not None]
        await asyncio.sleep(0 if at_once else CANCEL_AFTER_S)
        for number in numbers:
            if number % 10 == CANCELLED:
                await self._cancel(client, number)

    def _job(self, number: int, *, at_once: bool) -> dict[str, Any]:
        ahead_s = 0.0 if at_once else random.uniform(SOONEST_S, LATEST_S)
        due_s = round(time.time() + (DUE_IF_NOT_CANCELLED_S if number % 10 == CANCELLED else ahead_s), 3)
        job = {
            "topic": TOPIC,
            "id": f"soak-{number}",
            "run_at": datetime.fromtimestamp(due_s, UTC),
            "body": {"number": number, "due_s": due_s},
            "ttr": TTR_S,
        }
        return {**job, "backoff": BACKOFF} if number % 10 == RELEASED else job

    async def _cancel(self, client: AsyncClient, number: int) -> None:
        cancelled = await client.cancel(TOPIC, f"soak-{number}")
        if cancelled.was is not JobState.DELAYED:
            self.ledger.refused.append(f"soak-{number}: cancelled when it was {cancelled.was}")
        self.ledger.cancelled_numbers.add(number)
        self.ledger.under_way.discard(number)
        self.ledger.cancelled += 1


def make_worker(ledger: Ledger, urls: Sequence[str], name: str) -> Worker:
    """A worker that finishes jobs, and releases some of them at their first delivery."""
    worker = Worker(urls, concurrency=200, name=name, grace=10)

    @worker.handler(TOPIC)
    async def handle(body: dict[str, Any], context: Context) -> None:
        number, attempt = body["number"], context.job.attempt
        ledger.delivered(number, body["due_s"], attempt)
        if number % 10 == RELEASED and attempt == 1:
            ledger.released += 1
            raise Retry
        ledger.done(number)

    return worker


async def jobs_stored(client: AsyncClient) -> int:
    """Live jobs of the topic; -1 when the service does not respond."""
    try:
        counts = (await client.topic(TOPIC)).counts
    except DeferdError:
        return -1
    return counts["delayed"] + counts["ready"] + counts["reserved"]
