"""A fault run of the outbox: writers, one fault after the other, then a drain, and a comparison of all that is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from deferd import AsyncClient, DeferdError, TopicNotFound
from tests.faults.outbox import journal
from tests.faults.outbox.checker import Delivered, Findings, Key, StoredJob, check_delivered_jobs, check_waiting_jobs
from tests.faults.outbox.deployment import Deployment, deployed
from tests.faults.outbox.injection import Fault, FaultKind, FaultNotInjected, draw_plan, inject
from tests.faults.outbox.writers import KEPT_TOPIC, LATER_TOPICS, NOW_TOPICS, Writers
from tests.waiting import until

WRITERS = 6
RECOVERY_S = 30.0
"""How soon after a fault a put that is committed then must be delivered."""
DRAIN_S = 60.0
_SLOW_COMMITS_S = [2.5 + number / 4 for number in range(6)]
"""Before the first fault: so long that the relay has read rows behind theirs. It looks back from time to time."""
_POP_COUNT = 100
_AGAIN_S = 0.1
_SHOWN = 5


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    kinds: Collection[FaultKind]
    faults: list[tuple[Fault, float]] = field(default_factory=list)
    """Each with the seconds from its end until a put that was committed then was delivered."""
    not_injected: list[str] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)
    waiting: Findings = field(default_factory=Findings)
    delivered: Findings = field(default_factory=Findings)
    left: list[str] = field(default_factory=list)
    """What should not be: rows that are left or were refused, tracebacks in logs, no delivery after a fault."""
    took_s: float = 0

    @property
    def never_injected(self) -> set[FaultKind]:
        """Kinds of faults that were to be injected, and never were."""
        return set(self.kinds) - {fault.kind for fault, _ in self.faults}

    @property
    def wrong(self) -> list[str]:
        """All that is wrong."""
        return [*self.waiting.wrong, *self.delivered.wrong, *self.left]


def run(
    folder: Path, seed: int, count: int, *, until_s: float | None = None, kinds: Sequence[FaultKind] = tuple(FaultKind)
) -> Outcome:
    """Inject so many faults, or until `until_s` on the monotonic clock is over, then compare.

    Raises:
        TimeoutError: nothing could be committed within RECOVERY_S of a fault.
        ExceptionGroup: a writer or the consumer failed.
    """
    outcome = Outcome(seed, kinds)
    began_s = time.monotonic()
    plan = draw_plan(seed, count, kinds, quiet=until_s is not None)
    with deployed(folder) as deployment:
        asyncio.run(_run(deployment, outcome, _until(plan, until_s)))
    outcome.took_s = time.monotonic() - began_s
    return outcome


def _until(plan: Iterable[Fault], until_s: float | None) -> Iterator[Fault]:
    for fault in plan:
        if until_s is not None and time.monotonic() > until_s:
            return
        yield fault


async def _run(deployment: Deployment, outcome: Outcome, faults: Iterable[Fault]) -> None:
    async with await psycopg.AsyncConnection.connect(deployment.database_url) as connection:
        await connection.execute(journal.SCHEMA)
    writers = Writers(deployment.database_url, outcome.seed, WRITERS)
    deliveries: defaultdict[Key, list[Delivered]] = defaultdict(list)
    async with AsyncClient(deployment.service.url) as client, asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(_consume(client, deliveries))
        writing = tasks.create_task(writers.run())
        await asyncio.gather(*(writers.commit_slowly(seconds) for seconds in _SLOW_COMMITS_S))
        for fault in faults:
            try:
                await inject(fault, deployment, writers)
            except FaultNotInjected as why:
                outcome.not_injected.append(f"{fault.kind}: {why}")
                continue
            ended_s = time.monotonic()
            if not await _is_delivered(writers, deliveries):
                outcome.left.append(f"nothing was delivered within {RECOVERY_S:g} s after {fault}")
                break
            outcome.faults.append((fault, time.monotonic() - ended_s))
            await asyncio.sleep(fault.quiet_s)
        writers.stop()
        await writing
        outcome.made = writers.made
        calls = await journal.read(deployment.database_url, writers.commits)
        now = [call for call in calls if call.topic in NOW_TOPICS]
        outcome.left += await _drain(deployment)
        wanted = {(call.topic, call.id) for call in now}
        with contextlib.suppress(AssertionError):  # the checker finds which
            await until(lambda: wanted <= deliveries.keys(), "all jobs were delivered", within_s=DRAIN_S)
        consuming.cancel()
        await _finish_the_rest(client, deliveries)
        for relay in deployment.relays:
            if (code := await asyncio.to_thread(relay.stop)) != 0:
                outcome.left.append(f"{relay.name} exited with {code}")
        stored = await _stored(client, LATER_TOPICS)
        kept = await _stored(client, NOW_TOPICS)
    later = [call for call in calls if call.topic not in NOW_TOPICS]
    outcome.waiting = check_waiting_jobs(later, stored)
    outcome.delivered = check_delivered_jobs(now, deliveries, kept, KEPT_TOPIC)
    logs = {relay.name: relay.output() for relay in deployment.relays} | {"service": deployment.service.output()}
    for name, output in logs.items():
        if (at := output.find("Traceback")) >= 0:
            outcome.left.append(f"{name} logged:\n{output[max(at - 500, 0) : at + 3000]}")


async def _consume(client: AsyncClient, deliveries: defaultdict[Key, list[Delivered]]) -> None:
    """Note each delivery, and finish it."""
    while True:
        try:
            await _pop_and_finish(client, deliveries, wait_s=5)
        except DeferdError:  # the service is down
            await asyncio.sleep(_AGAIN_S)


async def _pop_and_finish(client: AsyncClient, deliveries: defaultdict[Key, list[Delivered]], wait_s: float) -> int:
    jobs = await client.pop(NOW_TOPICS, count=_POP_COUNT, wait=wait_s)
    for job in jobs:
        deliveries[job.topic, job.id].append(Delivered(job.body["number"], job.attempt))
    for topic in {job.topic for job in jobs}:
        await client.finish_many(topic, [job for job in jobs if job.topic == topic])
    return len(jobs)


async def _finish_the_rest(client: AsyncClient, deliveries: defaultdict[Key, list[Delivered]]) -> None:
    """Finish what comes back because a finish of it, or the response to a pop, was lost."""
    end_s = time.monotonic() + DRAIN_S
    while time.monotonic() < end_s:
        await _pop_and_finish(client, deliveries, wait_s=1)
        with contextlib.suppress(TopicNotFound):
            topics = [await client.topic(topic) for topic in NOW_TOPICS]
            if any(topic.counts["ready"] + topic.counts["reserved"] for topic in topics):
                continue
        return


async def _is_delivered(writers: Writers, deliveries: defaultdict[Key, list[Delivered]]) -> bool:
    """Whether a put that is committed now is delivered soon."""
    key = await asyncio.wait_for(writers.put_now(), RECOVERY_S)
    try:
        await until(lambda: key in deliveries, "a committed put is delivered", within_s=RECOVERY_S)
    except AssertionError:
        return False
    return True


async def _drain(deployment: Deployment) -> list[str]:
    """Wait until no row is left; returns what is left, and the rows that were refused."""
    end_s = time.monotonic() + DRAIN_S
    async with await psycopg.AsyncConnection.connect(deployment.database_url, autocommit=True) as connection:
        while True:
            [rows] = await (await connection.execute("select count(*) from deferd.outbox")).fetchone() or (0,)
            if rows == 0 or time.monotonic() > end_s:
                break
            await asyncio.sleep(_AGAIN_S)
        refused = await (await connection.execute("select verb, topic, id, problem from deferd.refused")).fetchall()
    return [f"refused: {row}" for row in refused] + ([f"{rows} rows are left"] if rows else [])


async def _stored(client: AsyncClient, topics: Sequence[str]) -> dict[Key, StoredJob]:
    stored: dict[Key, StoredJob] = {}
    for topic in topics:
        with contextlib.suppress(TopicNotFound):
            async for job in client.jobs(topic, bodies=True):
                due_ms = job.due_at.timestamp() * 1000
                stored[topic, job.id] = StoredJob(job.body["number"], str(job.state), due_ms)
    return stored


def report(outcome: Outcome) -> str:
    """The report of a run, for people."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    yield f"seed {outcome.seed}: {len(outcome.faults)} faults in {outcome.took_s:.0f} s"
    yield ""
    yield " times, longest time in s until a put that was committed after it was delivered"
    recoveries_s: defaultdict[FaultKind, list[float]] = defaultdict(list)
    for fault, recovered_after_s in outcome.faults:
        recoveries_s[fault.kind].append(recovered_after_s)
    for kind, of_kind in sorted(recoveries_s.items(), key=lambda item: list(FaultKind).index(item[0])):
        yield f"{len(of_kind):6} {max(of_kind):6.1f}  {kind}"
    yield f"{len(outcome.not_injected):6}  faults drawn that had no effect"
    yield from (f"        {one}" for one in outcome.not_injected)
    yield f"{len(outcome.never_injected):6}  kinds of faults that were never injected"
    yield ""
    yield from (f"{count:6}  {what.replace('_', ' ')}" for what, count in sorted(outcome.made.items()))
    yield ""
    waiting, delivered = outcome.waiting, outcome.delivered
    yield f"{waiting.puts + delivered.puts:6}  committed puts"
    yield f"{waiting.alive:6}  ids that must have a job at the end, and {waiting.cancelled} that must not"
    yield f"{waiting.either:6}  ids of which the commits overlapped so that both are right"
    yield f"{delivered.delivered:6}  jobs that were due at once, of {delivered.ids}, were delivered"
    yield f"{len(outcome.wrong):6}  broken promises"
    yield from outcome.wrong[:_SHOWN]
