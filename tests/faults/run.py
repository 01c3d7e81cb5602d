"""A fault run: load, one fault after the other, then a drain, and a check of every promise."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from deferd import AsyncClient
from deferd.engine.partitions import names_of
from deferd.engine.script_library import NAME_PREFIX
from tests.acceptance.service_process import ServiceProcess
from tests.faults.clients import Clients
from tests.faults.deployment import Deployment, FaultyStore, RecordingProcess, clock_error_h, deployed
from tests.faults.drawn_puts import END_TOPIC, PUSHED_TOPICS, SPREAD_TOPIC, TOPICS, WORKER_TOPIC
from tests.faults.fan_in import FanIn
from tests.faults.flow_control import LIMITS, FlowControl, check_limits
from tests.faults.history import History, Operation, Recorder, read_history
from tests.faults.injection import FaultNotInjected, inject
from tests.faults.linearizability import StoreClock, check_job
from tests.faults.operation_counts import count_outcomes, count_verbs
from tests.faults.plan import NEED_PRIVATE_NETWORK, WITHOUT_SHELF, Fault, FaultKind, draw_plan
from tests.faults.progress import Progress
from tests.faults.promises import Broken, broken_promises, check_store_contents, wrong_responses
from tests.faults.push_targets import Behaviour
from tests.faults.rollout import NONE, Release, Rollout, replacements, stages_until
from tests.faults.set_commands import SET_TOPIC, Members, check_members
from tests.integration.store.store_contents import Contents, of_all_partitions, read_contents
from tests.private_network import in_private_network_if_possible, why_no_private_network

RECOVERY_S = 30.0
"""How soon after a fault all kinds of calls must succeed again."""
DRAIN_S = 30.0
END_TTR_S = 2
"""Of what ends put: soon enough another consumer gets what the last one popped and did not finish."""
PARTITIONS, MORE_PARTITIONS = 2, 4
GROWS_AFTER = 5
"""Faults, before the topic with partitions gets more of them."""
JOB_TOPICS = (*TOPICS, WORKER_TOPIC, *PUSHED_TOPICS)
ALL_TOPICS = (*JOB_TOPICS, SET_TOPIC, END_TOPIC)
CALLS_BETWEEN_FAULTS = {"put": 10, "cancel": 3, "pop": 5, "finish": 5, "sadd": 2, "spop": 2}
"""How many calls of each kind must succeed between two faults."""
UNSEEN_POPS = {WORKER_TOPIC, *PUSHED_TOPICS}
"""Here jobs are handed out without a record, to a worker, or to a service that was killed before it sent them."""


class InjectedFault(NamedTuple):
    """A fault that was injected and had its effect.

    `recovered_after_s` is the time from its end until all kinds of calls succeeded again. `failed_calls` is how many
    calls had no response meanwhile, or a 503.
    """

    fault: Fault
    recovered_after_s: float
    failed_calls: int


class Replacement(NamedTuple):
    """A service that was stopped (SIGTERM) and started as one of another release; further values as those of a fault.

    `libraries` is how many libraries of scripts the store has afterwards: one, if the releases have the same scripts.
    """

    service: int
    release: Release
    recovered_after_s: float
    failed_calls: int
    libraries: int


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    kinds: Collection[FaultKind]
    """The kinds of faults that the run is to inject."""
    faults: list[InjectedFault] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)
    left_out: Mapping[FaultKind, str] = field(default_factory=dict)
    """Kinds of faults that this machine does not allow, and why."""
    not_injected: list[str] = field(default_factory=list)
    """Faults that were drawn but had no effect."""
    took_s: float = 0
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    verbs: dict[str, Counter[str]] = field(default_factory=dict)
    """The outcomes of calls that use a verb or option which few jobs have."""
    jobs_checked: int = 0
    longest: int = 0
    uncertainty_ms: float = 0
    clock_errors_h: list[float] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    broken: Broken = field(default_factory=Broken)
    flow_control: FlowControl = field(default_factory=FlowControl)
    wrong_responses: list[str] = field(default_factory=list)
    members: Members = field(default_factory=Members)
    pushes: Counter[Behaviour] = field(default_factory=Counter)
    """Requests to the push targets, by what they did with them."""
    pushes_closed: int = 0
    """Requests that the service gave up, or that ended with it."""
    pushes_beside: int = 0
    """Requests that arrived while an earlier one of the same job, whose lease had ended, was still under way."""
    push_delays_s: list[float] = field(default_factory=list)
    """How late the jobs of the target were that always responds at once."""
    wrong_pushes: list[str] = field(default_factory=list)
    batches: int = 0
    """How many were sealed."""
    wrong_batches: list[str] = field(default_factory=list)
    batches_to_shelf: int = 0
    """How many batches of jobs have gone to the shelf."""
    audits: int = 0
    audit: list[str] = field(default_factory=list)
    left: int = 0

    @property
    def never_injected(self) -> set[FaultKind]:
        """Kinds of faults that were never injected."""
        return set(self.kinds) - {injected.fault.kind for injected in self.faults} - self.left_out.keys()


def run(
    folder: Path,
    seed: int,
    count: int,
    *,
    until_s: float | None = None,
    kinds: Collection[FaultKind] = WITHOUT_SHELF,
    rollout: Rollout = NONE,
    previous: Path | None = None,
    has_shelf: bool = False,
) -> Outcome:
    """Inject so many faults, or until `until_s` on the monotonic clock is over, then check every promise.

    With `has_shelf` all delayed jobs go to a shelf. All of it has a network of its own, where the machine allows that.
    A rollout that has stages of the previous release needs that one, unpacked by `previous_release.unpack`.

    Raises:
        TimeoutError: calls did not succeed again after a fault.
        RuntimeError: a process exited unexpectedly.
    """
    why_not = why_no_private_network()
    left_out = {} if why_not is None else dict.fromkeys(NEED_PRIVATE_NETWORK & set(kinds), why_not)
    outcome = Outcome(seed, kinds, left_out=left_out)
    plan = draw_plan(seed, count, kinds=set(kinds) - left_out.keys())

    faults = _until(plan, until_s)
    in_private_network_if_possible(
        lambda: asyncio.run(_run(folder, outcome, faults, rollout, previous, has_shelf=has_shelf))
    )
    return outcome


def _until(plan: Sequence[Fault], until_s: float | None) -> Iterator[tuple[float, Fault]]:
    """The faults, each with the part of the run that is over before it, from 0 to 1."""
    began_s = time.monotonic()
    for number, fault in enumerate(plan):
        done = number / len(plan) if until_s is None else (time.monotonic() - began_s) / (until_s - began_s)
        if done > 1:
            break
        yield done, fault


async def _run(
    folder: Path,
    outcome: Outcome,
    faults: Iterable[tuple[float, Fault]],
    rollout: Rollout,
    previous: Path | None,
    *,
    has_shelf: bool,
) -> None:
    seed = outcome.seed
    began_s = time.monotonic()
    begun = 1
    with deployed(folder, seed, rollout[0].releases, previous, has_shelf=has_shelf) as deployment:
        fan_in = await _begin(deployment, seed, has_batches=previous is None)  # earlier releases count no ends
        offset_before_ms, _ = await asyncio.to_thread(_clock_offset, deployment.store)
        await _wait_for_recovery(deployment, await _progress(deployment), "at the start")
        # After each fault one of them, since an error stays: all would take longer than the faults.
        for (done, fault), of_topic in zip(faults, itertools.cycle((*ALL_TOPICS, None)), strict=False):
            begun = await _roll_out(rollout, begun, done, deployment, outcome)
            meanwhile = await _progress(deployment)
            try:
                await inject(fault, deployment)
                is_injected = True
            except FaultNotInjected as why:
                outcome.not_injected.append(f"{fault}: {why}")
                is_injected = False
            ended_s = time.monotonic()
            await _wait_for_recovery(deployment, await _progress(deployment), f"after {fault}")
            recovered_after_s = time.monotonic() - ended_s
            await asyncio.to_thread(meanwhile.update)
            if is_injected:
                outcome.faults.append(InjectedFault(fault, recovered_after_s, meanwhile.failed_calls))
            await _audit(of_topic, deployment, outcome)
            if len(outcome.faults) == GROWS_AFTER:
                await _set_partitions(deployment, MORE_PARTITIONS)
        await _roll_out(rollout, begun, 1, deployment, outcome)
        outcome.clock_errors_h = [
            await asyncio.to_thread(clock_error_h, service.url) for service in deployment.services
        ]
        await _stop(outcome, {f"clients {n}": process for n, process in enumerate(deployment.clients)})
        outcome.batches, outcome.wrong_batches = await fan_in.end()
        deployment.targets.settle()
        await deployment.targets.set_pushes(deployment.services[0].url)  # closes the circuits
        outcome.batches_to_shelf = await deployment.bring_back()
        drained = await _drain(deployment, seed, began_s)
        for topic in (*ALL_TOPICS, None):
            await _audit(topic, deployment, outcome)
        await _stop(outcome, {"the worker": deployment.worker})
        await _stop(outcome, {f"service {n}": service for n, service in enumerate(deployment.services)})
        outputs = {f"service {number}": service.output() for number, service in enumerate(deployment.services)}
        for name, output in {**outputs, **deployment.output_of_shelf()}.items():
            if (at := output.find("Traceback")) >= 0:
                outcome.violations.append(f"{name} logged:\n{output[max(at - 500, 0) : at + 3000]}")
        contents, read_s = await asyncio.to_thread(_read_store, deployment.store)
        offset_ms, half_trip_ms = await asyncio.to_thread(_clock_offset, deployment.store)
        files = [*deployment.files, deployment.targets.file, drained]
        targets = deployment.targets
        outcome.pushes, outcome.pushes_closed = targets.requests, targets.closed
        outcome.pushes_beside, outcome.push_delays_s = targets.beside, targets.delays_s
        outcome.wrong_pushes = targets.wrong
    clock = StoreClock((offset_ms + offset_before_ms) / 2, half_trip_ms + abs(offset_ms - offset_before_ms))
    outcome.uncertainty_ms = clock.uncertainty_ms
    await asyncio.to_thread(
        _check, outcome, read_history(files), contents, read_s, clock, limits=LIMITS if previous is None else {}
    )
    outcome.took_s = time.monotonic() - began_s


async def _roll_out(rollout: Rollout, begun: int, done: float, deployment: Deployment, outcome: Outcome) -> int:
    """Replace the services whose release changes in the stages after the first `begun`; returns how many have begun."""
    until = stages_until(rollout, done)
    for before, after in itertools.pairwise(rollout[begun - 1 : until]):
        for number, release in replacements(before, after):
            meanwhile = await _progress(deployment)
            service = deployment.services[number]
            await _stop(outcome, {f"service {number}": service})
            deployment.set_release(number, release)
            await asyncio.to_thread(service.start)
            ended_s = time.monotonic()
            what = f"service {number} is of {release}"
            await _wait_for_recovery(deployment, await _progress(deployment), f"after {what}")
            recovered_after_s = time.monotonic() - ended_s
            await asyncio.to_thread(meanwhile.update)
            libraries = await asyncio.to_thread(
                deployment.store.command, "FUNCTION", "LIST", "LIBRARYNAME", f"{NAME_PREFIX}*"
            )
            outcome.replacements.append(
                Replacement(number, release, recovered_after_s, meanwhile.failed_calls, len(libraries))
            )
    return until


async def _begin(deployment: Deployment, seed: int, *, has_batches: bool) -> FanIn:
    """Set pushes and topics, and begin with batches."""
    await deployment.targets.set_pushes(deployment.services[0].url)
    async with AsyncClient(deployment.urls) as client:
        await client.set_topic(END_TOPIC, {"ttr": END_TTR_S})
    await _set_partitions(deployment, PARTITIONS)
    fan_in = FanIn(deployment.urls, seed)
    if has_batches:
        fan_in.begin()
    return fan_in


async def _set_partitions(deployment: Deployment, count: int) -> None:
    async with AsyncClient(deployment.urls) as client:
        await client.set_topic(SPREAD_TOPIC, {"partitions": count})


async def _stop(outcome: Outcome, processes: Mapping[str, RecordingProcess | ServiceProcess]) -> None:
    """Send SIGTERM to all; each must exit with 0."""
    codes = await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes.values()))
    for (name, process), code in zip(processes.items(), codes, strict=True):
        if code:
            outcome.violations.append(f"{name} exited with {code}:\n{process.output()[-3000:]}")


async def _progress(deployment: Deployment) -> Progress:
    return await asyncio.to_thread(Progress, lambda: deployment.files)


async def _wait_for_recovery(deployment: Deployment, progress: Progress, when: str) -> None:
    """Wait until enough calls of each kind have succeeded."""
    end_s = time.monotonic() + RECOVERY_S
    while not (
        all(progress.succeeded[kind] >= count for kind, count in CALLS_BETWEEN_FAULTS.items())
        and all(process.is_at_work() for process in deployment.users)
    ):
        if time.monotonic() > end_s:
            output = "\n".join(service.output()[-2000:] for service in deployment.services)
            raise TimeoutError(f"{when}: only {dict(progress.succeeded)} succeeded within {RECOVERY_S} s\n{output}")
        for process in deployment.processes:
            if process.process.poll() is not None:
                raise RuntimeError(f"{when}: a process exited unexpectedly:\n{process.output()[-3000:]}")
        await asyncio.sleep(0.05)
        await asyncio.to_thread(progress.update)


async def _drain(deployment: Deployment, seed: int, began_s: float) -> Path:
    """Finish all remaining jobs, except the worker's own and pushed ones; return the file with the history of this.

    One pop of each topic waits all the time. When nothing is left, each topic gets a burst of jobs, which limits hold
    back: the pop must be woken whenever there is room.
    """
    file = deployment.folder / "drain.jsonl"
    urls = (*deployment.urls, *deployment.resp_urls)
    clients = Clients("drain", str(seed), began_s, urls, Recorder(file), has_groups=deployment.has_groups)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(clients.finish_remaining(topic, DRAIN_S)) for topic in TOPICS]
        waiting.append(tasks.create_task(clients.take_ends()))
        if await _is_empty_in_time(deployment, clients):
            await asyncio.gather(*map(clients.put_burst, TOPICS))
            await _is_empty_in_time(deployment, clients)
        for task in waiting:
            task.cancel()
    await clients.close()
    return file


async def _is_empty_in_time(deployment: Deployment, clients: Clients) -> bool:
    end_s = time.monotonic() + DRAIN_S
    while time.monotonic() < end_s:
        await clients.take_remaining()
        contents, _ = await asyncio.to_thread(_read_store, deployment.store)
        if not any(of_topic.pool for of_topic in contents.values()):
            return True
    return False


async def _audit(topic: str | None, deployment: Deployment, outcome: Outcome) -> None:
    """Run the service's own consistency check of a topic, or outside of topics, while the load continues."""
    async with AsyncClient(deployment.urls) as client:
        audit = await (client.audit_store() if topic is None else client.audit(topic))
    outcome.audits += 1
    if not audit.clean:
        outcome.audit.append(f"{topic or 'the store'}: {audit.fields}")


def _read_store(store: FaultyStore) -> tuple[dict[str, Contents], tuple[float, float]]:
    """What is left in the store, and from when to when it was read."""
    began_s = time.monotonic()
    with store.client() as client:
        contents = {topic: read_contents(client, topic) for topic in ALL_TOPICS}
        partitions = [read_contents(client, name) for name in names_of(SPREAD_TOPIC, MORE_PARTITIONS)]
        contents[SPREAD_TOPIC] = of_all_partitions(partitions)
    return contents, (began_s, time.monotonic())


def _clock_offset(store: FaultyStore) -> tuple[float, float]:
    """Store's clock minus monotonic clock, and half the round trip, in ms: the best of some attempts."""
    samples = []
    with store.client() as client:
        for _ in range(20):
            sent_s = time.monotonic()
            seconds, microseconds = client.time()
            received_s = time.monotonic()
            middle_s = (sent_s + received_s) / 2
            samples.append(((received_s - sent_s) * 500, seconds * 1000 + microseconds / 1000 - middle_s * 1000))
    half_trip_ms, offset_ms = min(samples)
    return offset_ms, half_trip_ms


def _check(
    outcome: Outcome,
    history: History,
    contents: dict[str, Contents],
    read_s: tuple[float, float],
    clock: StoreClock,
    *,
    limits: Mapping[str, Any],
) -> None:
    outcome.left = sum(len(of_topic.pool) for of_topic in contents.values())
    for (topic, job), operations in history.of_job.items():
        there = "there" if job in contents[topic].pool else "not found"
        operations.append(Operation("look", topic, job, *read_s, there))
        if topic in TOPICS:
            operations.append(Operation("end", topic, job, *read_s, "none"))
    outcome.operations = count_outcomes(history)
    outcome.verbs = count_verbs(history)
    outcome.broken = broken_promises(history, clock)
    outcome.flow_control = check_limits(history, clock, limits)
    outcome.wrong_responses = wrong_responses(history)
    outcome.members = check_members(history.lines, contents[SET_TOPIC], clock)
    outcome.audit += [error for topic in JOB_TOPICS for error in check_store_contents(topic, contents[topic], history)]
    pops_s = {
        topic: [pop.call_s for pop in history.pops_without_response if pop.topic == topic] for topic in ALL_TOPICS
    }
    for (topic, job), operations in history.of_job.items():
        verdict = check_job(operations, clock, pops_s[topic], hides_any=topic in UNSEEN_POPS)
        outcome.jobs_checked += 1
        outcome.longest = max(outcome.longest, len(operations))
        if not verdict.is_decided:
            outcome.undecided.append(f"{topic}/{job}: {len(operations)} operations")
        elif not verdict.is_right:
            outcome.violations.append(f"{topic}/{job} has no valid order:\n{verdict.explain(operations)}")
