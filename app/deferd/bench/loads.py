"""The three loads on a deployment, single calls, batches and lateness: what the processes do, and the figures from it.

Each process uses its own topics, so it can check alone that each job is delivered exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from deferd.bench.figures import (
    BatchFigures,
    CallFigures,
    LatenessFigures,
    SingleFigures,
    Throughput,
    span_s,
)
from deferd.bench.options import Options
from deferd.bench.processes import LoadProcesses
from deferd.bench.steps import (
    BenchFailed,
    ClockOffset,
    ConsumeAll,
    PutAhead,
    SingleCalls,
    Step,
    StepResult,
    bench_error,
    epoch_ms,
)
from deferd.client import AsyncClient, NoAnswer
from deferd.contract.errors import DeferdError, TopicNotFound

_WARM_UP_BATCHES = 4
_MARGIN_S = 1.0
_PUT_TRIES = 3
_SAMPLES = 20
_TIMEOUT_S = 10.0
_REMOVE_TIMEOUT_S = 120.0
"""Removing a million jobs takes a while."""
_SETTLE_S = 0.2
_RECOVER_S = 5.0
"""How long removing is retried while the service fails."""
Value = TypeVar("Value")


class BenchTopics:
    """The topics of one run, with unique names. Those `in_use` have to be removed."""

    def __init__(self, processes: int) -> None:
        self._prefix = f"bench-{secrets.token_hex(6)}"
        self._processes = processes
        self.in_use: set[str] = set()

    def name(self, purpose: str) -> str:
        """Name of the topic for this purpose."""
        return f"{self._prefix}.{purpose}"

    def of(self, load: str) -> list[str]:
        """A topic for each process, in use from now on."""
        topics = [self.name(f"{load}-{number}") for number in range(1, self._processes + 1)]
        self.in_use.update(topics)
        return topics


class Loads:
    """Runs the loads. Each raises BenchFailed when a call fails, a response is wrong, or a step takes too long."""

    def __init__(
        self,
        options: Options,
        deployment: Deployment,
        processes: LoadProcesses,
        *,
        clock: ClockOffset,
        topics: BenchTopics,
        board: ProgressBars,
    ) -> None:
        self._options = options
        self._deployment = deployment
        self._processes = processes
        self._clock = clock
        self._topics = topics
        self._board = board

    def single(self) -> SingleFigures:
        """Single calls: puts alone, then full cycles."""
        put = self._single_calls("single calls: put", full_cycle=False)
        cycle = self._single_calls("single calls: put, pop, finish", full_cycle=True)
        return SingleFigures(self._options.connections, CallFigures.of(put), CallFigures.of(cycle))

    def _single_calls(self, title: str, *, full_cycle: bool) -> list[StepResult]:
        seconds, topics = self._options.seconds, self._topics.of("single")
        steps = [
            SingleCalls(topic, connections, seconds, full_cycle)
            for topic, connections in zip(topics, self._shares(self._options.connections), strict=True)
        ]
        results = self._run(steps, title, unit="calls", planned_s=seconds, by_time=True)
        self._remove(topics, left=0 if full_cycle else sum(one.jobs for one in results) + self._options.connections)
        return results

    def batch(self) -> BatchFigures:
        """Batches: all put, due at one instant, promoted by the timer, popped, finished."""
        topics, jobs = self._topics.of("batch"), self._options.jobs
        expected_s = self._warm_up(topics, "batches: warming up", jobs)
        put, due_s = self._put_ahead(topics, "batches: put", jobs, expected_s)
        steps = [ConsumeAll(topic, self._options.batch) for topic in topics]
        take = self._run(
            steps, "batches: promoted, popped, finished", unit="jobs", total=jobs, planned_s=due_s - time.monotonic()
        )
        self._remove(topics)
        taken_s = max(one.ended_s for one in take) - due_s
        return BatchFigures.of(self._options.batch, Throughput.of(put, span_s(put)), Throughput.of(take, taken_s))

    def lateness(self) -> LatenessFigures:
        """Jobs due at random instants, put in advance; consumers wait for them."""
        topics, seconds, jobs = self._topics.of("lateness"), self._options.seconds, self._options.lateness_jobs
        expected_s = self._warm_up(topics, "lateness: warming up", jobs)
        _, due_s = self._put_ahead(topics, "lateness: put ahead", jobs, expected_s, spread_s=seconds)
        consumers = self._shares(self._options.consumers)
        steps = [ConsumeAll(topic, self._options.batch, share) for topic, share in zip(topics, consumers, strict=True)]
        planned_s = due_s - time.monotonic() + seconds
        take = self._run(steps, "lateness: taken when due", unit="jobs", total=jobs, planned_s=planned_s)
        self._remove(topics)
        return LatenessFigures.of(take, self._options.rate, seconds, self._options.consumers)

    def _warm_up(self, topics: Sequence[str], title: str, jobs: int) -> float:
        """Put and consume some batches; returns the expected seconds for putting all jobs."""
        batch = self._options.batch
        some = min(jobs, _WARM_UP_BATCHES * batch * len(topics))
        steps = [PutAhead(topic, share, batch) for topic, share in zip(topics, self._shares(some), strict=True)]
        put = self._run(steps, title, unit="jobs")
        self._run([ConsumeAll(topic, batch) for topic in topics], title, unit="jobs")
        return span_s(put) / some * jobs

    def _put_ahead(
        self, topics: Sequence[str], title: str, jobs: int, expected_s: float, spread_s: float = 0
    ) -> tuple[list[StepResult], float]:
        """Put all jobs before the first is due; returns the results and that due time on the monotonic clock."""
        shares = self._shares(jobs)
        for _ in range(_PUT_TRIES):
            self._topics.in_use.update(topics)
            ahead_s = 2 * expected_s + _MARGIN_S
            due_s = time.monotonic() + ahead_s
            due_ms = round(self._clock.store_ms(time.time() + ahead_s))
            steps = [
                PutAhead(topic, share, self._options.batch, due_ms, round(spread_s * 1000))
                for topic, share in zip(topics, shares, strict=True)
            ]
            results = self._run(steps, title, unit="jobs", total=jobs, planned_s=ahead_s)
            if max(one.ended_s for one in results) < due_s:
                return results, due_s
            self._remove(topics, left=jobs)
            expected_s = span_s(results)
        raise BenchFailed(
            f"{title}: {jobs} puts took {expected_s:.1f} s, longer than expected, {_PUT_TRIES} times in a row"
        )

    def _run(
        self,
        steps: Sequence[Step],
        title: str,
        *,
        unit: str,
        total: int = 0,
        planned_s: float = 0,
        by_time: bool = False,
    ) -> list[StepResult]:
        within_s = planned_s + self._options.timeout
        with self._board.part(title, unit, total=total, seconds=planned_s if by_time else None) as show_done:
            try:
                return self._processes.run(steps, within_s=within_s, on_progress=show_done)
            except BenchFailed as failure:
                raise BenchFailed(f"{title}: {failure}") from failure

    def _remove(self, topics: Sequence[str], left: int = 0) -> None:
        """Remove the topics; they must have as many jobs as the responses so far imply."""
        removed = sum(self._deployment.remove(topic) for topic in topics)
        self._topics.in_use.difference_update(topics)
        if removed != left:
            raise BenchFailed(
                f"{removed} jobs were left in {', '.join(topics)}, but by the responses it must be {left}"
            )

    def _shares(self, total: int) -> list[int]:
        """`total` divided evenly among the processes."""
        whole, rest = divmod(total, self._options.processes)
        return [whole + (number < rest) for number in range(self._options.processes)]


class Deployment:
    """The service at a URL. Each method uses a new connection and raises BenchFailed when a call fails."""

    def __init__(self, url: str) -> None:
        self.url = url

    def check(self, topic: str) -> None:
        """Check that a deferd service with a working store responds, with a pop of this empty topic."""

        async def pop(client: AsyncClient) -> None:
            try:
                await client.pop(topic, wait=0)
            except NoAnswer as error:
                raise BenchFailed(f"cannot reach {self.url}: {error.__cause__ or error}") from error

        self._with_client(pop)

    def read_clock(self, topic: str) -> ClockOffset:
        """Compare the clock of its store with this machine's by puts into this topic; the jobs stay there."""

        async def compare(client: AsyncClient) -> ClockOffset:
            samples = []
            for _ in range(_SAMPLES):
                sent_s = time.time()
                job = await client.put(topic, delay=3600)
                received_s = time.time()
                samples.append((sent_s * 1000, epoch_ms(job.created_at), received_s * 1000))
            return ClockOffset.from_samples(samples)

        return self._with_client(compare)

    def remove(self, topic: str) -> int:
        """Remove a topic that is no longer used; returns how many jobs it had."""

        async def purge(client: AsyncClient) -> int:
            return await _purge(client, topic) or 0

        return self._with_client(purge, _REMOVE_TIMEOUT_S)

    def remove_all(self, topics: Sequence[str]) -> None:
        """Remove topics into which puts may still be in progress, from clients that have disconnected.

        It retries for a while when the service fails, for example while its store restarts.
        """

        async def purge_until_gone(client: AsyncClient) -> None:
            give_up_s = time.monotonic() + _RECOVER_S
            while time.monotonic() < give_up_s + _REMOVE_TIMEOUT_S:
                await asyncio.sleep(_SETTLE_S)
                try:
                    if {await _purge(client, topic) for topic in topics} == {None}:
                        return
                except DeferdError:
                    if time.monotonic() > give_up_s:
                        raise
            raise BenchFailed(f"jobs are still being put into {', '.join(topics)}")

        self._with_client(purge_until_gone, _REMOVE_TIMEOUT_S)

    def _with_client(self, work: Callable[[AsyncClient], Awaitable[Value]], timeout_s: float = _TIMEOUT_S) -> Value:
        async def run() -> Value:
            async with AsyncClient(self.url, timeout=timeout_s, retry_for=0, connections=1) as client:
                return await work(client)

        try:
            return asyncio.run(run())
        except DeferdError as failure:
            raise bench_error(failure, self.url) from failure


async def _purge(client: AsyncClient, topic: str) -> int | None:
    """How many jobs were removed; None without such a topic."""
    try:
        return await client.purge(topic)
    except TopicNotFound:
        return None


class ProgressBars:
    """One bar for each part of the run; a context manager that erases the bars at its end."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    @contextlib.contextmanager
    def part(
        self, title: str, unit: str = "", *, total: int = 0, seconds: float | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Show a bar while the block runs; yields a function that takes the amount done so far.

        The bar is full at `total`, or after `seconds` if given, and stays. With neither it is indeterminate and
        disappears with the block.
        """
        began_s = time.monotonic()
        task = self._progress.add_task(title, total=seconds or total or None, shown="")

        def show_done(done: int) -> None:
            completed = done if seconds is None else min(time.monotonic() - began_s, seconds)
            self._progress.update(task, completed=completed, shown=f"{done:,} {unit}")

        yield show_done
        if total or seconds is not None:
            self._progress.stop_task(task)
        else:
            self._progress.remove_task(task)
