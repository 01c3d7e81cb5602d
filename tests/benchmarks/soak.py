"""Soak test: half of the top rate for ten minutes, with cancels, retries and restarts.

    python -m tests.benchmarks.soak [--minutes 10] [--stored 100000] [--rate JOBS_A_SECOND]

Two services on one store (append-only file, fsync always). Clients put and cancel, workers finish jobs and release
some; see `soak_load`. First the top rate is measured with the same load without a limit. The run is at half of it,
unless a rate is given. `--stored` more jobs, due in years, are stored all the time. Every minute the second service is
stopped by SIGTERM and started again while its client and worker run; these are replaced afterwards, so that both
services have work. The first service and the store run all the time.

The first fifth after a warm-up is compared with the last fifth: memory of the first service and of the store (medians
of samples), and lateness from the due time until a handler runs (medians over windows of 5 s, so that one disturbance
or restart does not decide). At the end every job must be finished or cancelled, and the topic is audited.

All processes share the machine's cores. The run ends no later than three minutes after its time is over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deferd import AsyncClient
from tests.acceptance.service_process import ServiceProcess
from tests.benchmarks.measuring import end_in_order, new_event_loop, percentile, resident_bytes
from tests.benchmarks.soak_load import TOPIC, Ledger, Producer, jobs_stored, make_worker
from tests.faults.orphans import no_orphans
from tests.integration.store.store_servers import StoreServer

CALIBRATION_S, CALIBRATION_WARM_UP_S = 10.0, 3.0
WARM_UP_SHARE = 0.1
SAMPLE_S = 1.0
WINDOW_S = 5.0
RESTART_EVERY_S = 60.0
FINISH_S = 60.0
OVERTIME_S = 180.0
FAR_S = 9 * 365 * 86_400
RETRY_FOR_S = 30.0

SERVICE_GROWTH_MAX_MB = 3.0
STORE_GROWTH_MAX_MB = 10.0
"""The store's allocator keeps pages that it needed temporarily, for example during a rewrite of its file."""
P50_TIMES, P50_SLACK_MS = 1.25, 1.0
P99_TIMES, P99_SLACK_MS = 1.5, 5.0
"""How much later jobs may be at the end than at the start: a factor, and milliseconds in addition."""


class Sample(NamedTuple):
    """Memory of the processes at an instant, and the number of stored jobs."""

    at_s: float
    service_mb: float
    store_mb: float
    stored: int


class Crew:
    """A client and a worker for these services; they prefer the first one."""

    def __init__(self, ledger: Ledger, urls: list[str], name: str) -> None:
        self.client = AsyncClient(urls, retry_for=RETRY_FOR_S)
        self._worker = make_worker(ledger, urls, name)
        self._serving = asyncio.create_task(self._worker.serve())

    async def end(self, producer: Producer) -> None:
        """Stop the worker and close the client after their current jobs and calls."""
        self._worker.stop()
        await self._serving
        await producer.settle(self.client)
        await self.client.close()


class Soak:
    """The run: its processes and its samples."""

    def __init__(self, store: StoreServer, services: list[ServiceProcess]) -> None:
        self.ledger = Ledger()
        self.store = store
        self.services = services
        self.crews: list[Crew] = []
        self.producer = Producer(self.ledger, [])
        self.samples: list[Sample] = []
        self.restarts = 0
        self.rate_reached = 0.0

    def begin(self) -> None:
        """Start a crew for each service."""
        self.crews = [self._crew(number) for number in range(len(self.services))]
        self.producer.clients = [crew.client for crew in self.crews]

    def _crew(self, number: int) -> Crew:
        urls = [service.url for service in self.services]
        return Crew(self.ledger, urls[number:] + urls[:number], f"soak-{number}.{self.restarts}")

    async def end(self) -> None:
        """Stop all crews."""
        await asyncio.gather(*(crew.end(self.producer) for crew in self.crews))

    async def store_far_jobs(self, count: int) -> None:
        """Put jobs that stay stored all the time."""
        jobs = ({"topic": TOPIC, "id": f"far-{number}", "delay": FAR_S, "body": None} for number in range(count))
        async for result in self.crews[0].client.put_many(jobs):
            assert result.code is None, result

    async def find_top_rate(self) -> float:
        """Measure the top rate: jobs per second when as many are put as possible."""
        stop = asyncio.Event()
        putting = asyncio.create_task(self.producer.run(None, stop))
        await asyncio.sleep(CALIBRATION_WARM_UP_S)
        before, began_s = self._through(), time.monotonic()
        await asyncio.sleep(CALIBRATION_S)
        rate = (self._through() - before) / (time.monotonic() - began_s)
        stop.set()
        await putting
        await self.drain()
        self.ledger.late.clear()
        return rate

    def _through(self) -> int:
        return self.ledger.finished + self.ledger.cancelled

    async def drain(self) -> None:
        """Wait until all jobs are finished or cancelled, for a limited time."""
        await self.producer.settle()
        end_s = time.monotonic() + FINISH_S
        while self.ledger.under_way and time.monotonic() < end_s:
            await asyncio.sleep(0.05)

    async def run(self, rate: float, seconds: float) -> None:
        """Run the load for so long, then drain it."""
        stop, put_before = asyncio.Event(), self.ledger.put
        sampling = asyncio.create_task(self._sample())
        putting = asyncio.create_task(self.producer.run(rate, stop))
        try:
            await self._restart_now_and_then(seconds)
        finally:
            stop.set()
            self.rate_reached = (self.ledger.put - put_before) / seconds
            sampling.cancel()
            await asyncio.wait((sampling, putting))
        putting.result()
        if not sampling.cancelled():
            sampling.result()
        await self.drain()

    async def _sample(self) -> None:
        while True:
            stored = await jobs_stored(self.crews[0].client)
            service_mb = resident_bytes(self.services[0].process.pid) / 1e6
            self.samples.append(Sample(time.monotonic(), service_mb, resident_bytes(self.store.pid) / 1e6, stored))
            await asyncio.sleep(SAMPLE_S)

    async def _restart_now_and_then(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        every_s = min(RESTART_EVERY_S, seconds / 4)
        await asyncio.sleep(every_s / 2)
        while time.monotonic() + every_s / 4 < end_s:
            next_s = time.monotonic() + every_s
            await self._restart(1)
            await asyncio.sleep(max(min(next_s, end_s) - time.monotonic(), 0))
        await asyncio.sleep(max(end_s - time.monotonic(), 0))

    async def _restart(self, number: int) -> None:
        service = self.services[number]
        if (code := await asyncio.to_thread(service.stop)) != 0:
            raise SystemExit(f"the service exited with {code}:\n{service.output()[-3000:]}")
        await asyncio.to_thread(service.start)
        await asyncio.to_thread(service.wait_ready)
        self.restarts += 1
        old, self.crews[number] = self.crews[number], self._crew(number)
        self.producer.clients[number] = self.crews[number].client
        await old.end(self.producer)


@contextlib.contextmanager
def store_and_services() -> Iterator[tuple[StoreServer, list[ServiceProcess]]]:
    """A store that fsyncs every change before it replies, and two services on it."""
    with tempfile.TemporaryDirectory(prefix="deferd-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(no_orphans(folder))
        (folder / "store").mkdir()
        store = stack.enter_context(StoreServer(folder / "store", appendonly="yes", appendfsync="always"))
        flags = ("--redis-url", store.url)
        services = [stack.enter_context(ServiceProcess(folder / f"service-{number}", *flags)) for number in (0, 1)]
        for service in services:
            service.wait_ready()
        yield store, services


# Evaluation


def windows(ledger: Ledger, from_s: float, to_s: float) -> list[list[float]]:
    """Lateness of jobs in milliseconds, for each complete window of WINDOW_S that has some."""
    found: list[list[float]] = [[] for _ in range(max(int((to_s - from_s) / WINDOW_S), 1))]
    for at_s, late_ms in ledger.late:
        at = int((at_s - from_s) / WINDOW_S)
        if 0 <= at < len(found) and at_s >= from_s:
            found[at].append(late_ms)
    return [window for window in found if window]


def median_of_windows(found: list[list[float]], share: float) -> float:
    """The median over the windows of a percentile."""
    return statistics.median(percentile(window, share) for window in found)


def show_table(soak: Soak, from_s: float, to_s: float) -> None:
    """Print a line for each tenth of the time."""
    print("  minute   jobs/s   p50 ms   p99 ms     max   service MB   store MB    stored")
    step_s = (to_s - from_s) / 10
    for number in range(10):
        low_s, high_s = from_s + number * step_s, from_s + (number + 1) * step_s
        late = [late_ms for at_s, late_ms in soak.ledger.late if low_s <= at_s < high_s] or [0.0]
        samples = [sample for sample in soak.samples if low_s <= sample.at_s < high_s]
        if samples:
            service_mb, store_mb, stored = (statistics.median(column) for column in [*zip(*samples, strict=True)][1:])
            print(
                f"  {(high_s - from_s) / 60:6.1f} {len(late) / step_s:8.0f} {percentile(late, 0.5):8.1f} "
                f"{percentile(late, 0.99):8.1f} {max(late):7.0f} {service_mb:12.1f} {store_mb:10.1f} {stored:9.0f}"
            )


class Verdict:
    """Prints each figure with its target, and counts the missed ones."""

    def __init__(self) -> None:
        self.missed = 0

    def show(self, what: str, measured: float, at_most: float) -> None:
        """Print one figure."""
        is_met = measured <= at_most
        self.missed += not is_met
        print(f"  {what}: {measured:.2f}  (target <= {at_most:.2f}: {'met' if is_met else 'MISSED'})")


def evaluate(soak: Soak, from_s: float, to_s: float) -> Verdict:
    """Compare the first fifth after the warm-up with the last fifth."""
    warm_s = from_s + WARM_UP_SHARE * (to_s - from_s)
    fifth_s = (to_s - warm_s) / 5
    first, last = (warm_s, warm_s + fifth_s), (to_s - fifth_s, to_s)
    verdict = Verdict()
    early, late = (
        [sample for sample in soak.samples if low_s <= sample.at_s < high_s and sample.stored >= 0]
        for low_s, high_s in (first, last)
    )
    stored = [statistics.median(sample.stored for sample in part) for part in (early, late)]
    print(
        f"  first fifth after the warm-up compared with the last fifth; {stored[0]:.0f} and {stored[1]:.0f} jobs stored"
    )
    for what, column, most in (("service", 1, SERVICE_GROWTH_MAX_MB), ("store", 2, STORE_GROWTH_MAX_MB)):
        before, after = (statistics.median(sample[column] for sample in part) for part in (early, late))
        verdict.show(f"growth of the {what} ({before:.1f} to {after:.1f} MB), MB", after - before, most)
    begin, end = (windows(soak.ledger, *part) for part in (first, last))
    for share, times, slack_ms in ((0.5, P50_TIMES, P50_SLACK_MS), (0.99, P99_TIMES, P99_SLACK_MS)):
        before, after = median_of_windows(begin, share), median_of_windows(end, share)
        verdict.show(
            f"lateness p{100 * share:.0f} ({before:.1f} to {after:.1f} ms), ms", after, before * times + slack_ms
        )
    return verdict


async def compare_counts(soak: Soak, far: int, rate: float, verdict: Verdict) -> None:
    """Compare the clients' counts with the service's counters, and audit the topic."""
    ledger = soak.ledger
    print(
        f"  {ledger.put} put, {ledger.finished} finished, {ledger.cancelled} cancelled, {ledger.released} released "
        f"first, {ledger.twice} finished twice, {soak.restarts} restarts"
    )
    for refusal in ledger.refused[:10]:
        print(f"    refused: {refusal}")
    verdict.show("shortfall of the put rate, jobs/s", rate - soak.rate_reached, 0.05 * rate)
    verdict.show("jobs lost", len(ledger.under_way), 0)
    verdict.show("cancelled jobs delivered later", ledger.delivered_after_cancel, 0)
    verdict.show("calls refused or failed", len(ledger.refused), 0)
    client, end_s = soak.crews[0].client, time.monotonic() + FINISH_S
    while await jobs_stored(client) != far and time.monotonic() < end_s:  # finishes follow the handlers
        await asyncio.sleep(0.05)
    audit = await client.audit(TOPIC)
    verdict.show(f"audits that were not clean {dict(audit.findings) or ''}", not audit.clean, 0)
    sums = audit.sums or {}
    known = {"put": ledger.put + far, "finished": ledger.finished, "cancelled": ledger.cancelled, "live": far}
    wrong = {name: sums.get(name) for name, count in known.items() if sums.get(name) != count}
    verdict.show(f"sums of the service that differ from the clients' {known} {wrong or ''}", len(wrong), 0)


async def measure(soak: Soak, options: argparse.Namespace) -> Verdict:
    """Run the soak test."""
    seconds = options.minutes * 60
    async with asyncio.timeout(seconds + OVERTIME_S):
        soak.begin()
        await soak.store_far_jobs(options.stored)
        top = await soak.find_top_rate()
        rate = options.rate or top / 2
        print(f"  the top rate is {top:.0f} jobs/s; {options.minutes:g} minutes at {rate:.0f} jobs/s", flush=True)
        from_s = time.monotonic()
        await soak.run(rate, seconds)
        to_s = from_s + seconds
        show_table(soak, from_s, to_s)
        verdict = evaluate(soak, from_s, to_s)
        await compare_counts(soak, options.stored, rate, verdict)
        await soak.end()
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--stored", type=int, default=100_000, help="jobs that stay stored all the time")
    parser.add_argument("--rate", type=float, help="jobs per second, instead of half of the top rate")
    options = parser.parse_args()
    end_in_order()
    logging.getLogger("deferd").setLevel(logging.CRITICAL)  # the workers log each restart
    with store_and_services() as (store, services), asyncio.Runner(loop_factory=new_event_loop) as runner:
        verdict = runner.run(measure(Soak(store, services), options))
    print("soak: " + (f"{verdict.missed} targets MISSED" if verdict.missed else "all targets met"))
    sys.exit(1 if verdict.missed else 0)


if __name__ == "__main__":
    main()
