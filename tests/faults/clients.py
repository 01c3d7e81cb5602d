"""Clients of all calls on a few topics, whose every try is written down as one operation.

Several of them use the same job ids at the same time, put ids again that were finished or cancelled, let leases run
out, and speak of deliveries that are over. Each client speaks to one service and never repeats a call by itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from deferd import AsyncClient, Delivery
from deferd.client.failures import NoAnswer, UnexpectedAnswer, Unreachable
from deferd.errors import (
    DeferdError,
    JobCancelled,
    JobExists,
    JobNotFound,
    ReceiptStale,
    StoreUnavailable,
)
from tests.faults.history import NOT_SENT, UNKNOWN, Kind, Recorder

TOPICS = ("faults.a", "faults.b", "faults.c")
WORKER_TOPIC = "faults.worker"
ANSWER_S = 2.5
IDS_A_SECOND = 6
"""Each second has ids of its own; a few puts and cancels meet at each."""
TTRS_MS = (400, 800, 1500)
DELAYS_MS = (0, 0, 100, 400, 1500)
PAUSE_AFTER_TROUBLE_S = 0.25
PAUSE_WHEN_EMPTY_S = 0.1
_REFUSALS: dict[type[DeferdError], str] = {
    JobExists: "exists",
    JobNotFound: "not found",
    ReceiptStale: "stale",
    JobCancelled: "cancelled",
}


class Clients:
    """What one process does. `began_s` is the beginning of the run, the same in all of its processes."""

    def __init__(self, name: str, seed: str, began_s: float, urls: Iterable[str], recorder: Recorder) -> None:
        self._name = name
        self._chance = random.Random(seed)
        self._began_s = began_s
        self._clients = [AsyncClient(url, retry_for=0, timeout=ANSWER_S) for url in urls]
        self._recorder = recorder
        self._requests = 0
        self._puts = 0
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.close()

    def _client(self) -> AsyncClient:
        return self._chance.choice(self._clients)

    def _job_id(self) -> str:
        second = int(time.monotonic() - self._began_s) - self._chance.choice((0, 0, 1))
        return f"{max(second, 0)}-{self._chance.randrange(IDS_A_SECOND)}"

    async def _record(
        self,
        number: int,
        call: Awaitable[Any],
        facts: Callable[[Any], dict[str, Any]],
    ) -> Any:
        """Wait for a call and write down how it ended; its answer, None when there is none."""
        try:
            answer = await call
        except Unreachable:
            self._recorder.end(number, NOT_SENT)
        except (NoAnswer, StoreUnavailable):
            self._recorder.end(number, UNKNOWN)
        except UnexpectedAnswer as error:
            if error.status < 500:
                raise
            self._recorder.end(number, UNKNOWN, status=error.status)
        except tuple(_REFUSALS) as error:
            self._recorder.end(number, _REFUSALS[type(error)])
            return None
        else:
            self._recorder.end(number, **facts(answer))
            return answer
        await asyncio.sleep(PAUSE_AFTER_TROUBLE_S)
        return None

    # Producers

    async def put_now_and_then(self, pause_s: float) -> None:
        """Put jobs until told to stop."""
        while not self.stopping.is_set():
            topic = self._chance.choice((*TOPICS, *TOPICS, WORKER_TOPIC))
            self._puts += 1
            tag = f"{self._name}/{self._puts}"
            delay_ms, ttr_ms, job = self._chance.choice(DELAYS_MS), self._chance.choice(TTRS_MS), self._job_id()
            number = self._recorder.begin("put", topic, job, tag=tag, delay_ms=delay_ms, ttr_ms=ttr_ms)
            call = self._client().put(topic, tag, id=job, delay=delay_ms / 1000, ttr=ttr_ms / 1000)
            await self._record(
                number, call, lambda put: {"outcome": "created", "at_ms": ms(put.created_at), "due_ms": ms(put.due_at)}
            )
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))

    async def cancel_now_and_then(self, pause_s: float) -> None:
        """Cancel jobs, whoever put them and wherever they are, until told to stop."""
        while not self.stopping.is_set():
            await self._cancel(self._chance.choice(TOPICS), self._job_id())
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))

    async def _cancel(self, topic: str, job: str) -> None:
        number = self._recorder.begin("cancel", topic, job)
        await self._record(number, self._client().cancel(topic, job), lambda cancelled: {"outcome": str(cancelled.was)})

    # Consumers

    async def consume(self, topic: str) -> None:
        """Pop and do this and that with what comes, until told to stop."""
        while not self.stopping.is_set():
            jobs = await self._pop(topic, count=self._chance.choice((1, 1, 5)), wait_s=self._chance.choice((0, 0.3, 1)))
            await asyncio.gather(*map(self._handle, jobs))
            if not jobs:
                await asyncio.sleep(PAUSE_WHEN_EMPTY_S)

    async def finish_what_is_left(self, topic: str) -> int:
        """Pop once and finish all that comes; how many came."""
        jobs = await self._pop(topic, count=100, wait_s=0.2)
        for job in jobs:
            await self._say("finish", job)
        return len(jobs)

    async def _pop(self, topic: str, *, count: int, wait_s: float) -> Sequence[Delivery]:
        """Pop, and ask again by the same request id when no answer came, up to three times in all."""
        self._requests += 1
        request = f"{self._name}-{self._requests}"
        for _ in range(3):
            number = self._recorder.begin("pop", topic, request=request, count=count)
            call = self._client().pop(topic, count=count, wait=wait_s, request_id=request, consumer=self._name)
            jobs: list[Delivery] | None = await self._record(
                number, call, lambda popped: {"outcome": "jobs", "jobs": [delivery_facts(job) for job in popped]}
            )
            if jobs is not None:
                return jobs
            if self.stopping.is_set():
                break
        return []

    async def _handle(self, job: Delivery) -> None:
        what = self._chance.random()
        if what < 0.55:
            await self._say("finish", job)
        elif what < 0.65:
            await self._say("touch", job)
            await asyncio.sleep(self._chance.uniform(0, 0.3))
            await self._say("finish", job)
        elif what < 0.8:
            await self._say("release", job, delay_ms=self._chance.choice((0, 50, 700)))
            if self._chance.random() < 0.3:
                await self._say("finish", job)  # which it may not any more
        elif what < 0.9:
            await asyncio.sleep(job.ttr * self._chance.uniform(0.7, 1.3))  # about as long as its lease
            await self._say("finish", job)
        elif what < 0.95:
            await self._cancel(job.topic, job.id)
            await self._say("finish", job)

    async def _say(self, kind: Kind, job: Delivery, delay_ms: int = 0) -> None:
        ttr_ms = round(job.ttr * 1000)
        number = self._recorder.begin(kind, job.topic, job.id, receipt=job.receipt, delay_ms=delay_ms)
        client = self._client()
        if kind == "finish":
            await self._record(number, client.finish(job), lambda _: {"outcome": "done"})
        elif kind == "release":
            call = client.release(job, delay=delay_ms / 1000, error="not now")
            await self._record(
                number, call, lambda released: {"outcome": "done", "at_ms": ms(released.due_at) - delay_ms}
            )
        else:
            await self._record(
                number,
                client.touch(job),
                lambda until: {"outcome": "done", "at_ms": ms(until) - ttr_ms, "lease_end_ms": ms(until)},
            )


def delivery_facts(job: Delivery) -> dict[str, Any]:
    """What a delivery tells, for the history."""
    assert job.reserved_until is not None
    lease_end_ms = ms(job.reserved_until)
    return {
        "job": job.id,
        "tag": job.body,
        "attempt": job.attempt,
        "receipt": job.receipt,
        "lease_end_ms": lease_end_ms,
        "created_ms": ms(job.created_at),
        "at_ms": lease_end_ms - round(job.ttr * 1000),
    }


def ms(instant: datetime) -> int:
    """Milliseconds since the epoch."""
    return round(instant.timestamp() * 1000)
