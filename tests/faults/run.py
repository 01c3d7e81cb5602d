"""A fault run: load, one fault after the other, then rest, and what became of everything."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deferd import AsyncClient
from tests.acceptance.service_process import ServiceProcess
from tests.faults.bringing import bring
from tests.faults.clients import TOPICS, WORKER_TOPIC, Clients
from tests.faults.deployment import Deployment, FaultyStore, RecordingProcess, clock_error_h, deployed
from tests.faults.history import History, Operation, Recorder, read_history
from tests.faults.linearizability import StoreClock, check_job
from tests.faults.plan import Fault
from tests.faults.progress import Progress
from tests.faults.promises import Broken, broken_promises, check_books, count_outcomes
from tests.integration.store_contents import Contents, read_contents

GOES_ON_S = 30.0
"""Within what time after a fault all kinds of calls must be answered again."""
DRAIN_S = 30.0
ALL_TOPICS = (*TOPICS, WORKER_TOPIC)
CALLS_BETWEEN = {"put": 10, "cancel": 3, "pop": 5, "finish": 5}
"""How many of each kind of call must be answered between one fault and the next."""


@dataclass
class Outcome:
    """What a run showed."""

    seed: int
    faults: list[tuple[Fault, float]] = field(default_factory=list)
    """Each fault that was brought, and the seconds after it within which calls of all kinds went on."""
    took_s: float = 0
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    jobs_checked: int = 0
    longest: int = 0
    uncertainty_ms: float = 0
    clock_errors_h: list[float] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    broken: Broken = field(default_factory=lambda: Broken([], [], [], []))
    audits: int = 0
    audit: list[str] = field(default_factory=list)
    left: int = 0


async def run(folder: Path, seed: int, plan: Sequence[Fault], *, until_s: float | None = None) -> Outcome:
    """Bring the faults of a plan, as many as there is time for until `until_s` on the monotonic clock, and check all.

    Raises:
        FaultNotBrought, TimeoutError: a fault did not come about, or the load did not go on after it.
    """
    outcome = Outcome(seed)
    began_s = time.monotonic()
    with deployed(folder, seed) as deployment:
        offset_before_ms, _ = await asyncio.to_thread(_clock_offset, deployment.store)
        for fault in (None, *plan):
            if until_s is not None and time.monotonic() > until_s:
                break
            if fault is not None:
                await bring(fault, deployment)
            ended_s = time.monotonic()
            await _goes_on(deployment, f"after {fault}")
            if fault is not None:
                outcome.faults.append((fault, time.monotonic() - ended_s))
            await _audit(deployment, outcome, [ALL_TOPICS[len(outcome.faults) % len(ALL_TOPICS)]])
        outcome.clock_errors_h = [
            await asyncio.to_thread(clock_error_h, service.url) for service in deployment.services
        ]
        await _stop(outcome, {f"clients {n}": process for n, process in enumerate(deployment.clients)})
        drained = await _drain(deployment, seed, began_s)
        await _audit(deployment, outcome, ALL_TOPICS)
        await _stop(outcome, {"the worker": deployment.worker})
        await _stop(outcome, {f"service {n}": service for n, service in enumerate(deployment.services)})
        contents, look_s = await asyncio.to_thread(_look, deployment.store)
        offset_ms, half_trip_ms = await asyncio.to_thread(_clock_offset, deployment.store)
        files = [*deployment.files, drained]
    clock = StoreClock((offset_ms + offset_before_ms) / 2, half_trip_ms + abs(offset_ms - offset_before_ms))
    outcome.uncertainty_ms = clock.uncertainty_ms
    await asyncio.to_thread(_check, outcome, read_history(files), contents, look_s, clock)
    outcome.took_s = time.monotonic() - began_s
    return outcome


async def _stop(outcome: Outcome, processes: Mapping[str, RecordingProcess | ServiceProcess]) -> None:
    """SIGTERM them all; each must end in order."""
    codes = await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes.values()))
    for (name, process), code in zip(processes.items(), codes, strict=True):
        if code:
            outcome.violations.append(f"{name} ended with {code}:\n{process.output()[-3000:]}")


async def _goes_on(deployment: Deployment, when: str) -> None:
    """Wait until enough calls of each kind that were begun from now on have been answered."""
    progress = await asyncio.to_thread(Progress, lambda: deployment.files)
    end_s = time.monotonic() + GOES_ON_S
    while any(progress.answered[kind] < count for kind, count in CALLS_BETWEEN.items()):
        if time.monotonic() > end_s:
            output = "\n".join(service.output()[-2000:] for service in deployment.services)
            raise TimeoutError(f"{when}: within {GOES_ON_S} s only {dict(progress.answered)} were answered\n{output}")
        for process in (*deployment.clients, deployment.worker):
            if process.process.poll() is not None:
                raise RuntimeError(f"{when}: a process ended by itself:\n{process.output()[-3000:]}")
        await asyncio.sleep(0.05)
        await asyncio.to_thread(progress.look)


async def _drain(deployment: Deployment, seed: int, began_s: float) -> Path:
    """Finish all that is left; the file in which that is written down. The worker does so with its own topic."""
    file = deployment.folder / "drain.jsonl"
    clients = Clients("drain", str(seed), began_s, deployment.urls, Recorder(file))
    end_s = time.monotonic() + DRAIN_S
    while time.monotonic() < end_s:
        await asyncio.gather(*map(clients.finish_what_is_left, TOPICS))
        contents, _ = await asyncio.to_thread(_look, deployment.store)
        if not any(of_topic.pool for of_topic in contents.values()):
            break
    await clients.close()
    return file


async def _audit(deployment: Deployment, outcome: Outcome, topics: Sequence[str]) -> None:
    """What the service itself says about its store, the load going on."""
    async with AsyncClient(deployment.urls) as client:
        for topic in topics:
            found = await client.audit(topic)
            outcome.audits += 1
            if not found.clean:
                outcome.audit.append(f"{topic}: {found.fields}")
        found_elsewhere = await client.audit_store()
        outcome.audits += 1
        if not found_elsewhere.clean:
            outcome.audit.append(f"{found_elsewhere.fields}")


def _look(store: FaultyStore) -> tuple[dict[str, Contents], tuple[float, float]]:
    """What is left in the store, and from when to when it was looked at."""
    began_s = time.monotonic()
    with store.client() as client:
        contents = {topic: read_contents(client, topic) for topic in ALL_TOPICS}
    return contents, (began_s, time.monotonic())


def _clock_offset(store: FaultyStore) -> tuple[float, float]:
    """Store's clock less monotonic clock, and half of the time that it took to ask, in ms: the best of some tries."""
    tries = []
    with store.client() as client:
        for _ in range(20):
            asked_s = time.monotonic()
            seconds, microseconds = client.time()
            answered_s = time.monotonic()
            middle_s = (asked_s + answered_s) / 2
            tries.append(((answered_s - asked_s) * 500, seconds * 1000 + microseconds / 1000 - middle_s * 1000))
    half_trip_ms, offset_ms = min(tries)
    return offset_ms, half_trip_ms


def _check(
    outcome: Outcome, history: History, contents: dict[str, Contents], look_s: tuple[float, float], clock: StoreClock
) -> None:
    outcome.left = sum(len(of_topic.pool) for of_topic in contents.values())
    for (topic, job), operations in history.of_job.items():
        there = "there" if job in contents[topic].pool else "gone"
        operations.append(Operation("look", topic, job, *look_s, there))
    outcome.operations = count_outcomes(history)
    outcome.broken = broken_promises(history, clock)
    outcome.audit += [fault for topic in ALL_TOPICS for fault in check_books(topic, contents[topic], history)]
    pops_s = {topic: [pop.call_s for pop in history.unanswered_pops if pop.topic == topic] for topic in ALL_TOPICS}
    for (topic, job), operations in history.of_job.items():
        verdict = check_job(operations, clock, pops_s[topic], hides_any=topic == WORKER_TOPIC)
        outcome.jobs_checked += 1
        outcome.longest = max(outcome.longest, len(operations))
        if not verdict.is_decided:
            outcome.undecided.append(f"{topic}/{job}: {len(operations)} operations")
        elif not verdict.is_right:
            outcome.violations.append(f"{topic}/{job} has no right order:\n{verdict.explain(operations)}")
