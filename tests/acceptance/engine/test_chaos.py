"""SIGKILL of services and workers at random moments: every job is finished, and none runs again without a cause."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deferd import AsyncClient
from deferd.client.errors import NoAnswer
from deferd.contract.model import JobState
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.chaos_worker import TOPIC
from tests.faults.deployment import is_frozen
from tests.faults.orphans import no_orphans
from tests.integration.store.store_servers import StoreServer
from tests.preloaded import start_module
from tests.waiting import wait_until

pytestmark = pytest.mark.slow(seconds=30)

BATCH = 400
BATCH_EVERY_S = 0.5
SERVICES = 2
WORKERS = 3
KILLS = {"service": 5, "worker": 8}
TTR_S = 2.0
CHAOS_S = 11.0
DRAIN_S = 40.0
ROUNDING_S = 0.002
"""Lease ends have a resolution of one millisecond."""


@dataclass
class Run:
    """One run of a handler. `ended` is None if the worker was killed before."""

    worker: int
    began: float
    lease_end: float
    ended: float | None = None


class ChaosWorker:
    """One of the workers and its restarts; each of its processes writes its own file."""

    def __init__(self, number: int, folder: Path, urls: list[str]) -> None:
        self._number = number
        self._folder = folder
        self._urls = urls
        self.run_files: list[Path] = []
        self.start()

    def start(self) -> None:
        self.run_files.append(self._folder / f"worker-{self._number}.{len(self.run_files)}.jsonl")
        words = (str(self.run_files[-1]), *self._urls)
        self.process = start_module("tests.acceptance.worker.chaos_worker", *words, log=self._log(), owner=self._folder)

    def _log(self) -> Path:
        return self.run_files[-1].with_suffix(".log")

    def kill_at_work(self) -> None:
        """Kill it while a handler runs; after 20 s if none does."""
        deadline = time.monotonic() + 20
        while not self._is_stopped_in_a_handler() and time.monotonic() < deadline:
            self.process.send_signal(signal.SIGCONT)
            time.sleep(0.005)
        assert self.kill_at_once() == -signal.SIGKILL, f"it had ended by itself:\n{self._log().read_text()[-3000:]}"

    def kill_at_once(self) -> int:
        self.process.kill()
        return self.process.wait(10)

    def _is_stopped_in_a_handler(self) -> bool:
        """Stop it first, so that no handler ends between the look and the kill."""
        self.process.send_signal(signal.SIGSTOP)
        while self.process.poll() is None and not is_frozen(self.process.pid):
            time.sleep(0.0002)  # it must not be stopped for long, since its leases would end
        noted = self.run_files[-1].read_bytes() if self.run_files[-1].exists() else b""
        return noted.count(b'"began"') > noted.count(b'"ended"')

    def stop(self) -> int:
        wait_until(lambda: "starts at" in self._log().read_text(), 20, "the worker serves")
        self.process.terminate()
        return self.process.wait(30)


@dataclass
class Deployment:
    """Two services over one store, three workers, and the times of the kills."""

    services: list[ServiceProcess]
    workers: list[ChaosWorker]
    service_kills: list[float] = field(default_factory=list)
    worker_kills: dict[Path, float] = field(default_factory=dict)

    @property
    def urls(self) -> list[str]:
        return [service.url for service in self.services]

    async def kill(self, kind: str, chance: random.Random) -> None:
        """Kill a service or a worker, and restart it up to half a second later."""
        if kind == "service":
            service = chance.choice(self.services)
            process = service.process
            self.service_kills.append(time.time())
            service.kill()
            assert process.returncode == -signal.SIGKILL, f"it had ended by itself:\n{service.output()[-3000:]}"
            await asyncio.sleep(chance.uniform(0, 0.5))
            await asyncio.to_thread(service.start)
        else:
            worker = chance.choice(self.workers)
            run_file = worker.run_files[-1]
            await asyncio.to_thread(worker.kill_at_work)
            self.worker_kills[run_file] = time.time()
            await asyncio.sleep(chance.uniform(0, 0.5))
            worker.start()


@contextlib.asynccontextmanager
async def deployed(folder: Path) -> AsyncIterator[Deployment]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_orphans(folder))
        store = stack.enter_context(StoreServer(folder / "store"))
        services = [
            stack.enter_context(ServiceProcess(folder / f"service-{number}", "--redis-url", store.url, preloaded=True))
            for number in range(SERVICES)
        ]
        urls = [service.url for service in services]
        workers = [ChaosWorker(number, folder, urls) for number in range(WORKERS)]
        for worker in workers:
            stack.callback(worker.kill_at_once)
        yield Deployment(services, workers)


async def put_until(kills: asyncio.Future[None], urls: list[str]) -> Counter[str | None]:
    """Put batches of jobs until the kills are over, due within a second; returns the results counted by code."""
    codes: Counter[str | None] = Counter()
    async with AsyncClient(urls) as client:
        while not kills.done():  # so that workers have jobs whenever one is killed
            jobs = [
                # Without `retain`, a repeated put whose response was lost puts a job again that is finished by then.
                {"topic": TOPIC, "id": f"job-{number}", "ttr": TTR_S, "delay": number % 10 / 10, "retain": 600}
                for number in range(codes.total(), codes.total() + BATCH)
            ]
            codes.update([result.code async for result in client.put_many(jobs)])
            await asyncio.sleep(BATCH_EVERY_S)
    return codes


async def inject_kills(deployment: Deployment, chance: random.Random) -> None:
    kinds = [kind for kind, count in KILLS.items() for _ in range(count)]
    chance.shuffle(kinds)
    for kind in kinds:
        await asyncio.sleep(chance.uniform(0, 2 * CHAOS_S / len(kinds) - 0.5))
        await deployment.kill(kind, chance)


async def drained(client: AsyncClient) -> bool:
    """Wait until no job is left; False if some are left after DRAIN_S."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while (counts := (await client.topic(TOPIC)).counts) and sum(counts.values()) > counts[JobState.FINISHED]:
                await asyncio.sleep(0.1)
            return True
    return False


def read_runs(workers: list[ChaosWorker]) -> tuple[dict[str, list[Run]], list[Path]]:
    """The runs of each job in the order in which they began, and the file of each worker number in them."""
    run_files = [run_file for worker in workers for run_file in worker.run_files]
    runs: dict[str, list[Run]] = defaultdict(list)
    for number, run_file in enumerate(run_files):
        open_runs: dict[tuple[str, int], Run] = {}
        for line in run_file.read_text().splitlines() if run_file.exists() else ():
            entry = json.loads(line)
            key = (entry["id"], entry["attempt"])
            if entry["what"] == "began":
                open_runs[key] = Run(number, entry["at"], entry["lease_end"])
                runs[entry["id"]].append(open_runs[key])
            else:
                open_runs[key].ended = entry["at"]
    for of_job in runs.values():
        of_job.sort(key=lambda run: run.began)
    return runs, run_files


async def test_every_job_is_finished_and_runs_again_only_where_a_lease_ended(tmp_path: Path) -> None:
    seed = int(os.environ.get("DEFERD_CHAOS_SEED") or random.randrange(10_000))
    chance = random.Random(seed)
    began_s = time.monotonic()
    async with deployed(tmp_path) as deployment:
        kills = asyncio.ensure_future(inject_kills(deployment, chance))
        codes, _ = await asyncio.gather(put_until(kills, deployment.urls), kills)
        async with AsyncClient(deployment.urls) as client:
            is_drained = await drained(client)
            left = {str(state): count for state, count in (await client.topic(TOPIC)).counts.items()}
        exit_codes = await asyncio.gather(*(asyncio.to_thread(worker.stop) for worker in deployment.workers))
    took_s = time.monotonic() - began_s
    count = codes.total()

    runs, run_files = read_runs(deployment.workers)
    again = [pair for of_job in runs.values() for pair in itertools.pairwise(of_job)]
    early = [(first, second) for first, second in again if second.began < first.lease_end - ROUNDING_S]
    causes: Counter[str] = Counter()
    for first, second in again:
        worker_killed = deployment.worker_kills.get(run_files[first.worker])
        if worker_killed is not None and worker_killed < second.began:
            causes["its worker was killed"] += 1
        elif any(first.began - TTR_S < killed < second.began for killed in deployment.service_kills):
            causes["a service was killed, its lease ended meanwhile"] += 1
        else:
            causes["none"] += 1
    never_ended = [job_id for job_id, of_job in runs.items() if all(run.ended is None for run in of_job)]
    print(
        f"\nseed {seed}: {count} jobs in {took_s:.1f} s, put {dict(codes)}, left {left}; "
        f"killed {len(deployment.service_kills)} services, {len(deployment.worker_kills)} workers; "
        f"runs {sum(map(len, runs.values()))}, of {len(runs)} jobs; again {len(again)}: {dict(causes)}"
    )
    assert codes.keys() <= {None, NoAnswer.code}  # the latter if a worker finished the job before the put was verified
    assert codes[None] > count / 2
    assert is_drained
    assert len(runs) == count
    assert never_ended == []
    assert early == []
    assert causes["none"] == 0
    assert exit_codes == [0] * WORKERS
    assert len(deployment.service_kills) == KILLS["service"]
    assert len(deployment.worker_kills) == KILLS["worker"]
    assert causes["its worker was killed"] > 0, "too few kills hit a running job"
