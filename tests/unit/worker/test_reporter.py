"""Reports of jobs that the service confirms in part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

from deferd import AsyncClient, Delivery
from deferd.contract.errors import StoreUnavailable
from deferd.contract.operations.jobs import FinishResult
from deferd.worker.handlers import Handler
from deferd.worker.held_job import HeldJob
from deferd.worker.outcomes import DONE, Return
from deferd.worker.reporter import Reporter
from tests.deliveries import delivery_of


class PartlyAway:
    """A client of a service that cannot reach the part of its store that has the job b, at the first call."""

    spans: Any = None

    def __init__(self) -> None:
        self.returned: list[list[str]] = []

    async def return_many(self, _topic: str, jobs: Sequence[Delivery]) -> list[FinishResult]:
        is_first = not self.returned
        self.returned.append([job.id for job in jobs])
        return [
            FinishResult(id=job.id, status=503, code=StoreUnavailable.code)
            if is_first and job.id == "b"
            else FinishResult(id=job.id, status=200)
            for job in jobs
        ]


async def nothing() -> None: ...


async def test_jobs_that_the_store_did_not_confirm_are_returned_again() -> None:
    client, reported, loop = PartlyAway(), list[str](), asyncio.get_running_loop()
    reporter = Reporter(cast("AsyncClient", client), lambda held: reported.append(held.job.id))
    for job_id in "abc":
        held = HeldJob(delivery_of(id=job_id), Handler("t", nothing), lambda _: nothing(), loop)
        reporter.report(held, Return("the worker stops"))
    await reporter.wait_until_done(5)
    assert (client.returned, reported) == ([["a", "b", "c"], ["b"]], ["a", "c", "b"])


class Finishing:
    """A client that notes the finishes of each call."""

    def __init__(self) -> None:
        self.spans: Any = self
        self.finished: list[tuple[str, list[str]]] = []

    def settling(self, _processes: Any) -> Any:
        return nullcontext()

    async def finish_many(self, topic: str, jobs: Sequence[Delivery]) -> list[FinishResult]:
        self.finished.append((topic, [job.id for job in jobs]))
        return [FinishResult(id=job.id, status=200) for job in jobs]


async def test_finishes_of_a_pattern_are_sent_together_by_topic() -> None:
    client, loop = Finishing(), asyncio.get_running_loop()
    reporter = Reporter(cast("AsyncClient", client), lambda _held: None)
    for topic, job_id in (("orders.eu", "a"), ("orders.us", "b"), ("orders.eu", "c")):
        held = HeldJob(delivery_of(topic=topic, id=job_id), Handler("orders.*", nothing), lambda _: nothing(), loop)
        reporter.report(held, DONE)
    await reporter.wait_until_done(5)
    assert client.finished == [("orders.eu", ["a", "c"]), ("orders.us", ["b"])]
