"""Batches beside all other load: each that is sealed puts one job, with how many of its jobs ended in which way.

Each job names the way in which it ends, so the counts are known. A put or an end that got no response is repeated until
it has one; the ids of the jobs stay taken, so that a repeated put never is a second job of its batch.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from deferd import AsyncClient, Delivery, JobExists, JobNotFound
from deferd.contract.errors import DeferdError

TOPIC, COMPLETED = "faults.batched", "faults.batched.all"
OUTCOMES = ("finished", "dead", "cancelled")
JOBS = 4
CONSUMERS = 2
TAKEN_S = 30 * 86_400.0
"""For longer than any jump of a clock."""
TTR_S = 2.0
TERMS: dict[str, Any] = {"unique_for": TAKEN_S, "dead_retain": TAKEN_S, "ttr": TTR_S}
PAUSE_S = 0.05
PAUSE_BETWEEN_S = 0.1
"""Before the next batch: without it batches would be a large part of the load, and other calls wait for them."""
DRAIN_S = 30.0


class FanIn:
    """Puts, ends and checks batches, from `begin` to `end`."""

    def __init__(self, urls: Sequence[str], seed: int) -> None:
        self._client = AsyncClient(urls, retry_for=0)
        self._chance = random.Random(f"{seed} batches")
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._counts: dict[str, Counter[str]] = {}
        """Of each sealed batch: how its jobs end."""
        self._puts: defaultdict[str, dict[tuple[str, datetime], Any]] = defaultdict(dict)
        """By batch: the jobs that it has put, each once however often it was delivered, with its body."""

    def begin(self) -> None:
        """Begin the load."""
        work = [self._put_batches(), *(self._consume(TOPIC, self._end) for _ in range(CONSUMERS))]
        work.append(self._consume(COMPLETED, self._note))
        self._tasks = [asyncio.create_task(one) for one in work]

    async def end(self) -> tuple[int, list[str]]:
        """End the load, and wait until each batch has put its job. Returns how many there were, and what is wrong."""
        self._stopping.set()
        await asyncio.gather(*self._tasks[:1])
        end_s = time.monotonic() + DRAIN_S
        while not self._counts.keys() <= self._puts.keys() and time.monotonic() < end_s:
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(TTR_S)  # a second job of a batch would come now
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        failed = [repr(error) for error in ended if isinstance(error, Exception)]
        wrong = [f"{line}; it is {await self._shown(name)}" for name, line in self._wrong()]
        await self._client.close()
        return len(self._counts), [*failed, *wrong]

    async def _shown(self, name: str) -> str:
        jobs = [f"{job.id} {job.state}" async for job in self._client.jobs(TOPIC, tag=f"batch:{name}")]
        return f"{(await self._client.batch(name)).fields}, with {jobs}"

    def _wrong(self) -> Iterator[tuple[str, str]]:
        for name, counts in self._counts.items():
            body = {"batch": name, **{outcome: counts[outcome] for outcome in OUTCOMES}}
            if list(self._puts[name].values()) != [body]:
                yield name, f"batch {name} should have put {body}, and has put {[*self._puts[name].items()]}"

    async def _put_batches(self) -> None:
        number = 0
        # Soon enough it is handed out again, if nobody has got it.
        await self._repeated(partial(self._client.set_topic, COMPLETED, {"ttr": TTR_S}))
        while not self._stopping.is_set():
            name, number = f"batch-{number}", number + 1
            await self._repeated(partial(self._client.set_batch, name, on_end=COMPLETED))
            outcomes = {f"{name}-{place}": self._chance.choice(OUTCOMES) for place in range(JOBS)}
            for job_id, outcome in outcomes.items():
                delay = 3600 if outcome == "cancelled" else self._chance.choice((0, 0, 0.3))
                put = partial(self._client.put, TOPIC, outcome, id=job_id, delay=delay, on_conflict="keep", **TERMS)
                await self._repeated(partial(put, batch=name), JobExists)
            self._counts[name] = Counter(outcomes.values())
            await self._repeated(partial(self._client.set_batch, name, seal=True))
            for job_id, outcome in outcomes.items():
                if outcome == "cancelled":
                    await self._repeated(partial(self._client.cancel, TOPIC, job_id), JobNotFound)
            await asyncio.sleep(PAUSE_BETWEEN_S)

    async def _repeated(self, call: Callable[[], Awaitable[object]], *done: type[DeferdError]) -> None:
        """Call until there is a response, or an error that says that it was done before."""
        while True:
            try:
                await call()
            except done:
                return
            except DeferdError:
                await asyncio.sleep(PAUSE_S)
            else:
                return

    async def _consume(self, topic: str, handle: Callable[[Delivery], Awaitable[object]]) -> None:
        while True:
            try:
                for job in await self._client.pop(topic, count=3, wait=0.5):
                    await handle(job)
            except DeferdError:  # also of a delivery whose lease has ended meanwhile
                await asyncio.sleep(PAUSE_S)

    async def _end(self, job: Delivery) -> None:
        if job.body == "dead":
            await self._client.bury(job)
        elif job.body == "finished":
            await self._client.finish(job)

    async def _note(self, job: Delivery) -> None:
        self._puts[job.body["batch"]][job.id, job.created_at] = job.body
        await self._client.finish(job)
