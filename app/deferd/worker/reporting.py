"""Tells the service how jobs went, again and again until it answers definitely.

Finishes of a topic go in batches: whoever finds none under way sends at once all that has gathered, so nothing is
held back to wait for company. Releases and buries go one by one, a bounded number of a topic at a time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from deferd.client import AsyncClient, FinishResult, UnexpectedAnswer, Unreachable, requests
from deferd.client.requests import JobToFinish
from deferd.contract.errors import DeferdError, InvalidInput, JobCancelled, JobNotFound, PayloadTooLarge, ReceiptStale
from deferd.contract.limits import BATCH_MAX
from deferd.worker.held_job import Held
from deferd.worker.outcomes import Bury, Finish, Outcome, Release, bounded
from deferd.worker.transient_errors import LOG, Pauses, Trouble

Answer = TypeVar("Answer")

_SINGLE_AT_ONCE = 16
_OVER = (JobCancelled, JobNotFound, ReceiptStale)
_REFUSED = (InvalidInput, PayloadTooLarge)


class _Said(NamedTuple):
    """What came of a call: an answer, or the error that is one. `doubtful`: it may have been carried out before."""

    answer: Any
    error: DeferdError | None
    doubtful: bool


class Reporter:
    """Reports outcomes; calls `on_reported` for each job when the service knows of it or the delivery is over."""

    def __init__(self, client: AsyncClient, on_reported: Callable[[Held], None]) -> None:
        self._client = client
        self._on_reported = on_reported
        self._finishes: dict[str, list[tuple[Held, Finish]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_SINGLE_AT_ONCE))
        self._trouble = Trouble("reporting finished jobs")

    def report(self, held: Held, outcome: Outcome) -> None:
        """Have the service told; returns at once."""
        if isinstance(outcome, Finish):
            topic = held.handler.topic
            gathered = self._finishes.get(topic)
            if gathered is None:
                self._finishes[topic] = [(held, outcome)]
                self._spawn(self._send_finishes(topic))
            else:
                gathered.append((held, outcome))
        else:
            self._spawn(self._surely(self._give_away(held, outcome), [held]))

    async def wait_until_done(self, timeout_s: float) -> None:
        """Wait until all is reported, or for so long."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while self._tasks and (left_s := end_s - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)

    async def close(self) -> None:
        """Give up on what is not reported."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _surely(self, report: Coroutine[Any, Any, None], jobs: Sequence[Held]) -> None:
        """Await a report. If it has a fault inside, its jobs come back as their leases end and nothing else is lost."""
        try:
            await report
        except Exception as error:  # noqa: BLE001 (whatever it is, other jobs are to be reported)
            LOG.error("a report of %d jobs, %s the first, failed", len(jobs), jobs[0], exc_info=error)
            for held in jobs:
                if not held.reported:
                    self._on_reported(held)

    async def _send_finishes(self, topic: str) -> None:
        while gathered := self._finishes[topic]:
            batch = gathered[:BATCH_MAX]
            self._finishes[topic] = gathered[BATCH_MAX:]
            await self._surely(self._finish(topic, batch), [held for held, _ in batch])
        del self._finishes[topic]

    async def _finish(self, topic: str, batch: Sequence[tuple[Held, Finish]]) -> None:
        jobs: list[JobToFinish] = [
            held.job
            if finish.result is None
            else {"id": held.job.id, "receipt": held.job.receipt, "result": finish.result}
            for held, finish in batch
        ]
        said = await self._insist(lambda: self._finish_many(topic, jobs))
        if said.error is not None:
            # One job's result is too large or not allowed, and the batch went as a whole.
            for held, finish in batch:
                await self._finish_alone(held, finish, doubtful=True)
            return
        results: list[FinishResult] = said.answer
        for (held, _), result in zip(batch, results, strict=True):
            if result.code is not None:
                _tell_over(held, "finished", result.code, doubtful=said.doubtful)
            self._on_reported(held)

    async def _finish_many(self, topic: str, jobs: Sequence[JobToFinish]) -> list[FinishResult]:
        results = await self._client.finish_many(topic, jobs)
        if len(results) != len(jobs):
            raise UnexpectedAnswer(200, f"{len(jobs)} finishes were answered with {len(results)} results")
        return results

    async def _finish_alone(self, held: Held, finish: Finish, *, doubtful: bool) -> None:
        said = await self._insist(lambda: self._client.finish(held.job, finish.result))
        if isinstance(said.error, _REFUSED):
            error = f"the service refused the handler's result: {said.error}"
            await self._give_away(held, Release(None, bounded(error)))
            return
        if said.error is not None:
            _tell_over(held, "finished", said.error.code, doubtful=doubtful or said.doubtful)
        self._on_reported(held)

    async def _give_away(self, held: Held, outcome: Release | Bury) -> None:
        call: requests.Call[Any]
        if isinstance(outcome, Release):
            done = "released"
            call = requests.release(held.job, delay=outcome.delay_s, error=outcome.error)
        else:
            done = "buried"
            call = requests.bury(held.job, error=outcome.error)
        async with self._turns[held.handler.topic]:  # one whose part of the store is away takes none from others
            said = await self._insist(lambda: self._client.send(call))
        if isinstance(said.error, _REFUSED):
            LOG.error(
                "%s could not be %s and comes back when its lease ends: %s", held, done, said.error, extra=held.facts()
            )
        elif said.error is not None:
            _tell_over(held, done, said.error.code, doubtful=said.doubtful)
        self._on_reported(held)

    async def _insist(self, send: Callable[[], Awaitable[Answer]]) -> _Said:
        """Send until there is a definite answer."""
        pauses = Pauses()
        doubtful = False
        while True:
            try:
                answer = await send()
            except (*_OVER, *_REFUSED) as error:
                self._trouble.over()
                return _Said(None, error, doubtful)
            except DeferdError as error:
                self._trouble.met(error)
                doubtful = doubtful or not isinstance(error, Unreachable)
                await asyncio.sleep(pauses.next_s(error))
            else:
                self._trouble.over()
                return _Said(answer, None, doubtful)


def _tell_over(held: Held, done: str, code: str, *, doubtful: bool) -> None:
    """Log that a report came to nothing. After a lost answer it may be that very report that has ended the delivery."""
    facts = held.facts(code=code)
    if doubtful and code != JobCancelled.code:
        LOG.info("%s was %s, as far as can be known: an answer was lost", held, done, extra=facts)
    elif code == JobCancelled.code:
        LOG.info("%s was cancelled before it could be %s", held, done, extra=facts)
    elif code == JobNotFound.code:
        LOG.warning("%s could not be %s: it is gone", held, done, extra=facts)
    elif code == ReceiptStale.code:
        text = "%s could not be %s: its lease has ended, so it runs again or has run elsewhere"
        LOG.warning(text, held, done, extra=facts)
    else:
        LOG.error("%s could not be %s: %s", held, done, code, extra=facts, exc_info=False)
