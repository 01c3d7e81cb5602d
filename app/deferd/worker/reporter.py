"""Reports the outcomes of jobs to the service, and retries each report until it gets a definite response.

Finishes of a topic are sent in batches: a finish starts a batch at once if none is in flight, otherwise it joins the
next, so none waits for others to arrive. Jobs that nobody worked on are returned in batches too. Finishes that put
other jobs, releases and buries are sent one by one, a limited number per topic at a time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from deferd.client import AsyncClient, FinishResult, UnexpectedAnswer, Unreachable
from deferd.client.request_body import JobToFinish
from deferd.client.sender import RetryPolicy, SendOutcome
from deferd.contract.errors import (
    DeferdError,
    DifferentShard,
    DurabilityUnavailable,
    InvalidInput,
    JobCancelled,
    JobExists,
    JobNotFound,
    JobReserved,
    PayloadTooLarge,
    ReceiptStale,
)
from deferd.contract.limits import BATCH_MAX
from deferd.worker.held_job import HeldJob
from deferd.worker.log import LOG, FailureLog
from deferd.worker.outcomes import Bury, Finish, Outcome, Release, Return, bounded

Result = TypeVar("Result")

_RETRY = RetryPolicy(heeds_proxies=False)
_CONCURRENT_REPORTS = 16
_OVER = (JobCancelled, JobNotFound, ReceiptStale)
_REFUSED = (InvalidInput, PayloadTooLarge)
_STORE_UNAVAILABLE = 503
_REFUSED_PUTS = (*_REFUSED, DifferentShard, DurabilityUnavailable, JobExists, JobReserved)


class Reporter:
    """Reports outcomes. Calls `on_reported` with each job when the service has its outcome or the delivery is over."""

    def __init__(self, client: AsyncClient, on_reported: Callable[[HeldJob], None]) -> None:
        self._client = client
        self._spans = client.spans
        self._on_reported = on_reported
        self._finishes: dict[str, list[tuple[HeldJob, Finish]]] = {}
        self._returns: dict[str, list[HeldJob]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_CONCURRENT_REPORTS))
        self._failures = FailureLog("reporting finished jobs")

    def report(self, held: HeldJob, outcome: Outcome | Return) -> None:
        """Report an outcome in the background; returns at once."""
        if isinstance(outcome, Return):
            self._return(held)
        elif isinstance(outcome, Finish) and outcome.put:
            self._spawn(self._logging_bugs(self._finish_and_put(held, outcome), [held]))
        elif isinstance(outcome, Finish):
            topic = held.job.topic
            pending = self._finishes.get(topic)
            if pending is None:
                self._finishes[topic] = [(held, outcome)]
                self._spawn(self._send_finishes(topic))
            else:
                pending.append((held, outcome))
        else:
            self._spawn(self._logging_bugs(self._release_or_bury(held, outcome), [held]))

    async def wait_until_done(self, timeout_s: float) -> None:
        """Wait until everything is reported, at most `timeout_s`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while self._tasks and (left_s := end_s - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)

    async def close(self) -> None:
        """Abandon reports that are not done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _logging_bugs(self, report: Coroutine[Any, Any, None], jobs: Sequence[HeldJob]) -> None:
        """Await a report. After an unexpected exception its jobs are delivered again when their leases end."""
        try:
            await report
        except Exception as error:  # noqa: BLE001 (a bug here must not stop the reports of other jobs)
            LOG.error("a report of %d jobs failed; the first is %s", len(jobs), jobs[0], exc_info=error)
            for held in jobs:
                if not held.reported:
                    self._on_reported(held)

    async def _send_finishes(self, topic: str) -> None:
        while pending := self._finishes[topic]:
            batch = pending[:BATCH_MAX]
            self._finishes[topic] = pending[BATCH_MAX:]
            await self._logging_bugs(self._finish_batch(topic, batch), [held for held, _ in batch])
        del self._finishes[topic]

    async def _finish_batch(self, topic: str, batch: Sequence[tuple[HeldJob, Finish]]) -> None:
        jobs: list[JobToFinish] = [
            held.job
            if finish.result is None
            else {"id": held.job.id, "receipt": held.job.receipt, "result": finish.result}
            for held, finish in batch
        ]
        with self._spans.settling(held.process for held, _ in batch):
            outcome = await self._send_until_definite(lambda: self._finish_many(topic, jobs))
        if outcome.error is not None:
            # The batch was refused as a whole because one job's result is too large or invalid.
            for held, finish in batch:
                await self._finish_one(held, finish)
            return
        for (held, _), result in zip(batch, outcome.result(), strict=True):
            if result.code is not None:
                _log_over(held, "finished", result.code, doubtful=outcome.doubtful)
            self._on_reported(held)

    def _return(self, held: HeldJob) -> None:
        topic = held.job.topic
        pending = self._returns.get(topic)
        if pending is None:
            self._returns[topic] = [held]
            self._spawn(self._send_returns(topic))
        else:
            pending.append(held)

    async def _send_returns(self, topic: str) -> None:
        while pending := self._returns[topic]:
            # The last ones first: each call puts its jobs before all others.
            self._returns[topic], batch = pending[:-BATCH_MAX], pending[-BATCH_MAX:]
            await self._logging_bugs(self._return_batch(topic, batch), batch)
        del self._returns[topic]

    async def _return_batch(self, topic: str, batch: Sequence[HeldJob]) -> None:
        """Return jobs; jobs that the store did not confirm are returned again.

        A job that is refused has no live delivery any more.
        """
        outcome = await self._send_until_definite(lambda: self._client.return_many(topic, [held.job for held in batch]))
        for held, result in zip(batch, outcome.result(), strict=True):
            if result.status == _STORE_UNAVAILABLE:
                self._return(held)
            else:
                self._on_reported(held)

    async def _finish_many(self, topic: str, jobs: Sequence[JobToFinish]) -> list[FinishResult]:
        results = await self._client.finish_many(topic, jobs)
        if len(results) != len(jobs):
            raise UnexpectedAnswer(200, f"the response to {len(jobs)} finishes has {len(results)} results")
        return results

    async def _finish_and_put(self, held: HeldJob, finish: Finish) -> None:
        async with self._slots[held.handler.topic]:
            with self._spans.settling((held.process,)):
                outcome = await self._send_until_definite(
                    lambda: self._client.finish(held.job, finish.result, put=finish.put), _REFUSED_PUTS
                )
        await self._finished(held, outcome, "jobs that the handler put, or its result")

    async def _finish_one(self, held: HeldJob, finish: Finish) -> None:
        """Finish a job whose batch was refused, or executed in part by a request without a response."""
        with self._spans.settling((held.process,)):
            outcome = await self._send_until_definite(lambda: self._client.finish(held.job, finish.result))
        await self._finished(held, outcome, "handler's result", doubtful=True)

    async def _finished(
        self, held: HeldJob, outcome: SendOutcome[None], refused: str, *, doubtful: bool = False
    ) -> None:
        """Handle the response to a finish; release the job if the service refused what it was to store."""
        if isinstance(outcome.error, _REFUSED_PUTS):
            error = bounded(f"the service refused the {refused}: {outcome.error}")
            await self._release_or_bury(held, Release(None, error))
            return
        if outcome.error is not None:
            _log_over(held, "finished", outcome.error.code, doubtful=doubtful or outcome.doubtful)
        self._on_reported(held)

    async def _release_or_bury(self, held: HeldJob, outcome: Release | Bury) -> None:
        done = "released" if isinstance(outcome, Release) else "buried"
        async with self._slots[held.handler.topic]:  # per topic, so that an unreachable shard blocks no other topic
            with self._spans.settling((held.process,)):
                sent = await self._send_until_definite(lambda: self._send_outcome(held, outcome))
        if isinstance(sent.error, _REFUSED):
            text = "%s could not be %s and is delivered again when its lease ends: %s"
            LOG.error(text, held, done, sent.error, extra=held.facts())
        elif sent.error is not None:
            _log_over(held, done, sent.error.code, doubtful=sent.doubtful)
        self._on_reported(held)

    async def _send_outcome(self, held: HeldJob, outcome: Release | Bury) -> None:
        if isinstance(outcome, Release):
            await self._client.release(held.job, delay=outcome.delay_s, error=outcome.error, count=outcome.counts)
        else:
            await self._client.bury(held.job, error=outcome.error)

    async def _send_until_definite(
        self, send: Callable[[], Awaitable[Result]], refusals: tuple[type[DeferdError], ...] = _REFUSED
    ) -> SendOutcome[Result]:
        doubtful = False
        failures = 0
        while True:
            try:
                result = await send()
            except DeferdError as error:
                if isinstance(error, (*_OVER, *refusals)):
                    self._failures.succeeded()
                    return SendOutcome(None, error, doubtful)
                self._failures.failed(error)
                doubtful = doubtful or not isinstance(error, Unreachable)
                await asyncio.sleep(_RETRY.pause_s(failures, error))
                failures += 1
            else:
                self._failures.succeeded()
                return SendOutcome(result, None, doubtful)


def _log_over(held: HeldJob, done: str, code: str, *, doubtful: bool) -> None:
    """Log a report for a delivery that is over. After a lost response this very report may have ended it."""
    facts = held.facts(code=code)
    if doubtful and code != JobCancelled.code:
        LOG.info("%s was %s, probably: a response was lost", held, done, extra=facts)
    elif code == JobCancelled.code:
        LOG.info("%s was cancelled before it could be %s", held, done, extra=facts)
    elif code == JobNotFound.code:
        LOG.warning("%s could not be %s: it is gone", held, done, extra=facts)
    elif code == ReceiptStale.code:
        text = "%s could not be %s: its lease has ended, so it runs again or has run elsewhere"
        LOG.warning(text, held, done, extra=facts)
    else:
        LOG.error("%s could not be %s: %s", held, done, code, extra=facts, exc_info=False)
