"""Faults of a cluster whose primaries have replicas, under load at `replicated:1`: what is acknowledged stays.

Three primaries, each with a replica, and two services. One topic is spread over partitions, whose number grows in the
middle. Producers put at `replicated:1` and at `memory`, and cancel some
jobs at `replicated:1` before they are due; consumers pop and finish. Meanwhile slots are moved, nodes join and leave, a
primary is killed while its replica lags, a shard dies as a whole, and a primary is cut off: frozen by SIGSTOP until its
replica has taken over, so that it still believes to be the primary when it continues. Where the machine allows the run
a network of its own, packets to a primary are held up beyond the time-outs of the services.

`python -m tests.faults.cluster_profile --seed 7 --minutes 10` runs this profile alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from deferd import AsyncClient, Delivery
from deferd.contract.ends import OnEnd
from deferd.contract.errors import DeferdError, JobNotFound
from deferd.engine.partitions import Layout, topic_of
from deferd.engine.redis_keys import Keys
from tests.acceptance.service_process import ServiceProcess
from tests.faults.cluster_nodes import ClusterNodes
from tests.faults.ends import topic_of_ends, wrong_ends
from tests.faults.failover import BALLAST_PIECES, make_replica_lag
from tests.faults.orphans import no_orphans
from tests.integration.store.store_servers import ClusterSet, StoreServer
from tests.private_network import in_private_network_if_possible, packets_held_up, why_no_private_network

SHARDS = 12
SERVICES = 2
KEYS = Keys(SHARDS)
SPREAD_TOPIC, PARTITIONS, MORE_PARTITIONS = "spread", 4, 6
RECOVERY_S = 30.0
DRAIN_S = 60.0
TTR_S = 3.0
DELAY_S = (0.0, 3.0)
CANCELLED_DELAY_S = 6.0
"""Of jobs that are cancelled: long enough for the cancel to be repeated through a failover."""
HELD_UP_S = 2.5
"""Longer than the services' time-outs."""
DEAD_FOR_S = (2.0, 4.0)
BETWEEN_S = (0.5, 1.5)
PAUSE_S = 0.02
GROWS_AFTER = 3
"""After so many faults the topic with partitions gets more of them."""
Level = Literal["memory", "replicated:1"]
_DROP = f"for n = 1, {BALLAST_PIECES} do redis.call('DEL', ARGV[1] .. n) end"


class ClusterFault(StrEnum):
    """A kind of fault; the value is its description in reports."""

    RESHARD = "half of a primary's shards move to another"
    NODES_COME_AND_GO = "a primary with its replica is added, gets shards, gives them back and is removed"
    PRIMARY_KILLED = "a primary is killed while its replica lags, which takes over (SIGKILL)"
    SHARD_DEAD = "a primary and its replica are killed, and start again later"
    HOLD_PACKETS = "packets on their way to a primary are held up"
    CUT_OFF = "a primary is cut off until its replica has taken over, and comes back (SIGSTOP, SIGCONT)"


@dataclass
class PutJob:
    """A put that was acknowledged; `due_ms` as its response said. `cancelled_s`: its cancel was acknowledged then."""

    topic: str
    level: str
    due_ms: float
    at_s: float
    cancelled_s: float | None = None
    is_cancelled: bool = False
    """Whether a cancel was tried, acknowledged or not."""
    deliveries: list[HandedOut] = field(default_factory=list)


@dataclass
class HandedOut:
    """A delivery: when its pop was sent and answered, how long its lease was, and when its finish was acknowledged."""

    called_s: float
    at_s: float
    popped_ms: float
    finished_s: float | None = None


@dataclass
class ProfileOutcome:
    """The result of a run."""

    seed: int
    left_out: Mapping[ClusterFault, str] = field(default_factory=dict)
    """Kinds of faults that this machine does not allow, and why."""
    took_s: float = 0.0
    faults: Counter[ClusterFault] = field(default_factory=Counter)
    recovered_s: defaultdict[ClusterFault, float] = field(default_factory=lambda: defaultdict(float))
    acknowledged: Counter[str] = field(default_factory=Counter)
    failed_calls: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    in_doubt: int = 0
    delivered: int = 0
    lost: list[str] = field(default_factory=list)
    lost_memory: int = 0
    came_back: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    undone: int = 0
    early: list[str] = field(default_factory=list)
    wrong_ends: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    left: int = 0

    def broken(self) -> Iterator[str]:
        """A sentence for each broken promise."""
        yield from (
            f"never injected: {kind}" for kind in ClusterFault if not (self.faults[kind] or kind in self.left_out)
        )
        yield from (f"lost: {job}" for job in self.lost)
        yield from (f"came back after its cancel: {job}" for job in self.came_back)
        yield from (f"twice: {job}" for job in self.twice)
        yield from (f"early: {job}" for job in self.early)
        yield from (*self.wrong_ends, *self.audit, *self.tracebacks)
        if self.left:
            yield f"{self.left} jobs are left"


def run_cluster_profile(folder: Path, seed: int, minutes: float) -> ProfileOutcome:
    """Inject faults for so long, each kind at least once. Raises TimeoutError when calls do not succeed again."""
    why_not = why_no_private_network()
    outcome = ProfileOutcome(seed, left_out={} if why_not is None else {ClusterFault.HOLD_PACKETS: why_not})
    in_private_network_if_possible(lambda: asyncio.run(_run(folder, outcome, minutes)))
    return outcome


async def _run(folder: Path, outcome: ProfileOutcome, minutes: float) -> None:
    seed = outcome.seed
    kinds = [kind for kind in ClusterFault if kind not in outcome.left_out]
    chance = random.Random(seed)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_orphans(folder))
        cluster = stack.enter_context(ClusterSet(folder, replicas=1, appendonly="yes"))
        nodes = ClusterNodes(cluster.mark_used(SHARDS), KEYS)
        flags = ("--redis-url", cluster.url, "--shards", str(SHARDS), "--replication-timeout", "2")
        services = [
            stack.enter_context(ServiceProcess(folder / f"service-{number}", *flags, preloaded=True))
            for number in range(SERVICES)
        ]
        load = Load([service.url for service in services], chance, outcome)
        faults = Faults(nodes, load, chance, folder)
        async with load.running():
            await load.set_partitions(PARTITIONS)
            await load.wait_for_recovery()
            while time.monotonic() < began_s + minutes * 60 or any(not outcome.faults[kind] for kind in kinds):
                for kind in chance.sample(kinds, len(kinds)):
                    await faults.inject(kind)
                    ended_s = time.monotonic()
                    await load.wait_for_recovery()
                    recovered_s = time.monotonic() - ended_s
                    outcome.recovered_s[kind] = max(outcome.recovered_s[kind], recovered_s)
                    outcome.faults[kind] += 1
                    await asyncio.to_thread(nodes.settle)
                    await asyncio.sleep(chance.uniform(*BETWEEN_S))
                    if outcome.faults.total() == GROWS_AFTER:
                        await load.set_partitions(MORE_PARTITIONS)
            await load.drain()
            await load.judge(faults.windows)
        outcome.tracebacks = [service.output()[-3000:] for service in services if "Traceback" in service.output()]
    outcome.took_s = time.monotonic() - began_s


class Faults:
    """Injects faults. `windows` are from when to when a failover may have undone what was acknowledged at `memory`."""

    def __init__(self, nodes: ClusterNodes, load: Load, chance: random.Random, folder: Path) -> None:
        self._nodes = nodes
        self._load = load
        self._chance = chance
        self._folder = folder
        self._added = 0
        self.windows: list[tuple[float, float, set[str]]] = []

    async def inject(self, kind: ClusterFault) -> None:
        """Inject a fault, and undo it as far as it does not heal by itself."""
        inject: dict[ClusterFault, Callable[[], None]] = {
            ClusterFault.RESHARD: self._reshard,
            ClusterFault.NODES_COME_AND_GO: self._nodes_come_and_go,
            ClusterFault.PRIMARY_KILLED: self._kill_primary,
            ClusterFault.SHARD_DEAD: self._kill_shard,
            ClusterFault.HOLD_PACKETS: self._hold_packets,
            ClusterFault.CUT_OFF: self._cut_off,
        }
        await asyncio.to_thread(inject[kind])

    def _reshard(self) -> None:
        source, target = self._draw(2)
        shards = self._nodes.shards_of(source)
        self._nodes.move(shards[: len(shards) // 2 + 1], source, target)

    def _nodes_come_and_go(self) -> None:
        self._added += 1
        pair = self._nodes.add(self._folder / f"added-{self._added}")
        [heir] = self._draw(1, but=pair[0])
        shards = self._nodes.shards_of(heir)
        moving = shards[: max(len(shards) - 1, 1)]
        self._nodes.move(moving, heir, pair[0])
        time.sleep(self._chance.uniform(*BETWEEN_S))
        self._nodes.remove(pair, moving, heir)

    def _kill_primary(self) -> None:
        [primary] = self._draw(1)
        replica = self._replica_of(primary)
        topics = self._topics_of(primary)
        began_s = time.monotonic()
        pool = KEYS.of_topic(topics[0])[0]
        ballast = f"{pool[: pool.index('}') + 1]}ballast:"
        self._load.outcome.in_doubt += len(make_replica_lag(primary, replica, pool, ballast=ballast))
        primary.kill()
        replica.unpause()
        self._nodes.wait_for_promotion(replica)
        self.windows.append((began_s, time.monotonic(), set(map(topic_of, topics))))
        replica.command("EVAL", _DROP, 1, pool, ballast)
        primary.start()

    def _kill_shard(self) -> None:
        [primary] = self._draw(1)
        replica = self._replica_of(primary)
        for node in (replica, primary):
            node.kill()
        time.sleep(self._chance.uniform(*DEAD_FOR_S))
        for node in (primary, replica):
            node.start()

    def _hold_packets(self) -> None:
        [primary] = self._draw(1)
        with packets_held_up(primary.port) as held_up:  # the nodes go on talking to it, over their own ports
            time.sleep(HELD_UP_S)
        assert held_up.packets, "no packet was held up"

    def _cut_off(self) -> None:
        [primary] = self._draw(1)
        replica = self._replica_of(primary)
        topics = self._topics_of(primary)
        began_s = time.monotonic()
        primary.pause()
        try:
            self._nodes.wait_for_promotion(replica)
        finally:
            primary.unpause()
        self.windows.append((began_s - 1, time.monotonic() + 1, set(map(topic_of, topics))))

    def _draw(self, count: int, but: StoreServer | None = None) -> list[StoreServer]:
        """Primaries that have shards."""
        primaries = [self._nodes.roles(pair)[0] for pair in self._nodes.pairs]
        able = [one for one in primaries if one is not but and self._nodes.shards_of(one)]
        drawn = self._chance.sample(able, min(count, len(able)))
        return drawn if len(drawn) == count else [*drawn, *(one for one in primaries if one not in drawn)][:count]

    def _replica_of(self, primary: StoreServer) -> StoreServer:
        pair = next(pair for pair in self._nodes.pairs if primary in pair)
        return pair[1] if pair[0] is primary else pair[0]

    def _topics_of(self, primary: StoreServer) -> list[str]:
        """The topics and partitions that a primary has."""
        shards = self._nodes.shards_of(primary)
        return [name for name in KEYS.partitions.of_all(self._load.topics) if KEYS.shard_of(name) in shards]


class Load:
    """Producers at both levels, cancels, and consumers, on a topic of each shard."""

    def __init__(self, urls: list[str], chance: random.Random, outcome: ProfileOutcome) -> None:
        self.outcome = outcome
        self._chance = chance
        self._clients = [AsyncClient(url, retry_for=0, timeout=6) for url in urls]
        self.topics = [*(_topic_of(shard) for shard in range(SHARDS)), SPREAD_TOPIC]
        self._jobs: dict[str, PutJob] = {}
        self._early: dict[str, list[HandedOut]] = defaultdict(list)
        """Deliveries of jobs whose puts are not acknowledged yet, or never were."""
        self._ended = {topic: topic_of_ends(KEYS, topic) for topic in self.topics if topic != SPREAD_TOPIC}
        """Where the ends of their jobs put one; not of a topic whose partitions are in several shards."""
        self._tries: Counter[str] = Counter()
        self._producing = True
        self._confirmed_s: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the end of the block."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._produce(topic, "replicated:1")) for topic in self.topics]
            running += [tasks.create_task(self._produce(topic, "memory")) for topic in self.topics]
            running += [tasks.create_task(self._put_and_cancel(topic)) for topic in self.topics]
            running += [tasks.create_task(self._consume(topic)) for topic in self.topics]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()
                for client in self._clients:
                    await client.close()

    async def set_partitions(self, count: int) -> None:
        """Give the topic that has partitions so many."""
        await self._clients[0].set_topic(SPREAD_TOPIC, {"partitions": count})
        KEYS.partitions.note(SPREAD_TOPIC, Layout((count,)))

    async def wait_for_recovery(self) -> None:
        """Wait until a put at `replicated:1` into each partition, begun after this call, is acknowledged."""
        began_s = time.monotonic()
        partitions = KEYS.partitions.of_all(self.topics)
        while not all(self._confirmed_s.get(partition, 0) > began_s for partition in partitions):
            if time.monotonic() > began_s + RECOVERY_S:
                missing = [one for one in partitions if self._confirmed_s.get(one, 0) <= began_s]
                raise TimeoutError(f"puts into {missing} are not confirmed within {RECOVERY_S:g} s")
            await asyncio.sleep(0.02)

    async def drain(self) -> None:
        """Stop producing, and wait until all acknowledged jobs that are not cancelled are handed out and finished."""
        self._producing = False
        end_s = time.monotonic() + DRAIN_S
        quiet_s = time.monotonic() + CANCELLED_DELAY_S + TTR_S + 1
        while time.monotonic() < end_s:
            await asyncio.sleep(0.2)
            safe = (job for job in self._jobs.values() if job.level != "memory" and not job.is_cancelled)
            if time.monotonic() > quiet_s and all(job.deliveries for job in safe):
                return

    async def judge(self, windows: list[tuple[float, float, set[str]]]) -> None:
        """Fill in the outcome."""
        outcome, client = self.outcome, self._clients[0]
        for job_id, job in self._jobs.items():
            name = f"{job.topic}/{job_id} put at {job.level}: {job}"
            outcome.acknowledged[job.level] += 1
            outcome.delivered += bool(job.deliveries)
            if job.cancelled_s is not None:
                outcome.cancelled += 1
                if any(one.called_s > job.cancelled_s for one in job.deliveries) or await self._is_there(job, job_id):
                    outcome.came_back.append(name)
            elif not job.deliveries and not job.is_cancelled:
                if job.level == "memory":
                    outcome.lost_memory += 1
                else:
                    outcome.lost.append(name)
            for one in job.deliveries:
                if one.popped_ms < job.due_ms - 1:
                    outcome.early.append(name)
            for first, second in itertools.pairwise(sorted(job.deliveries, key=lambda one: one.at_s)):
                # The lease cannot end before the pop was sent plus the ttr; a finish ends it for good.
                is_live = second.at_s < first.called_s + TTR_S or (
                    first.finished_s is not None and first.finished_s < second.called_s
                )
                if is_live and _undone(job.topic, first, windows):
                    outcome.undone += 1
                elif is_live:
                    outcome.twice.append(name)
        safe = {job_id for job_id, job in self._jobs.items() if job.level != "memory" and job.topic in self._ended}
        outcome.wrong_ends = await wrong_ends(client, self._ended.values(), safe, self._tries)
        for topic in self.topics:
            audit = await client.audit(topic)
            outcome.audit += [] if audit.clean else [f"audit of {topic}: {audit.fields}"]
            outcome.left += sum((await client.topic(topic)).counts.values())

    async def _is_there(self, job: PutJob, job_id: str) -> bool:
        with contextlib.suppress(JobNotFound):
            await self._clients[0].get(job.topic, job_id)
            return True
        return False

    async def _produce(self, topic: str, level: Level) -> None:
        for number in itertools.count():
            if not self._producing:
                return
            await self._put(topic, f"{level[:3]}-{number}-{topic}", level, self._chance.uniform(*DELAY_S))
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))

    async def _put(self, topic: str, job_id: str, level: Level, delay_s: float) -> PutJob | None:
        began_s = time.monotonic()
        self._tries[job_id] += 1
        on_end = OnEnd(topic=self._ended[topic]) if topic in self._ended else None
        try:
            job = await self._chance.choice(self._clients).put(
                topic, id=job_id, delay=delay_s, ttr=TTR_S, on_conflict="keep", durability=level, on_end=on_end
            )
        except DeferdError as error:
            self.outcome.failed_calls[f"put at {level}: {error.code}"] += 1
            await asyncio.sleep(0.05)
            return None
        assert job.durability == level, f"acknowledged at {job.durability}, asked for {level}"
        if level != "memory":
            self._confirmed_s[KEYS.partitions.home(topic, job_id)] = began_s
        put = PutJob(topic, level, job.due_at.timestamp() * 1000, began_s, deliveries=self._early[job_id])
        self._jobs[job_id] = put
        return put

    async def _put_and_cancel(self, topic: str) -> None:
        for number in itertools.count():
            job_id = f"cancelled-{number}-{topic}"
            job = None
            while job is None:  # repeated until it is acknowledged: no attempt may come back after the cancel
                if not self._producing:
                    return
                job = await self._put(topic, job_id, "replicated:1", CANCELLED_DELAY_S)
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S) * 2)
            job.is_cancelled = True
            try:
                cancelled = await self._chance.choice(self._clients).cancel(topic, job_id, durability="replicated:1")
            except DeferdError as error:
                self.outcome.failed_calls[f"cancel at replicated:1: {error.code}"] += 1
            else:
                assert cancelled.durability == "replicated:1"
                job.cancelled_s = time.monotonic()

    async def _consume(self, topic: str) -> None:
        for client in itertools.cycle(self._clients):
            called_s = time.monotonic()
            try:
                popped = await client.pop(topic, count=20, wait=2)
            except DeferdError as error:
                self.outcome.failed_calls[f"pop: {error.code}"] += 1
                await asyncio.sleep(0.1)
                continue
            await asyncio.gather(*(self._finish(client, job, called_s) for job in popped))

    async def _finish(self, client: AsyncClient, job: Delivery, called_s: float) -> None:
        assert job.reserved_until is not None
        popped_ms = (job.reserved_until.timestamp() - job.ttr) * 1000
        one = HandedOut(called_s, time.monotonic(), popped_ms)
        known = self._jobs.get(job.id)
        (self._early[job.id] if known is None else known.deliveries).append(one)
        try:
            await client.finish(job)
            one.finished_s = time.monotonic()
        except DeferdError as error:
            self.outcome.failed_calls[f"finish: {error.code}"] += 1


def _undone(topic: str, delivery: HandedOut, windows: list[tuple[float, float, set[str]]]) -> bool:
    """Whether a failover may have undone the pop or the finish of a delivery."""
    last_s = delivery.finished_s or delivery.at_s
    return any(topic in topics and delivery.called_s < end_s and last_s > began_s for began_s, end_s, topics in windows)


def _topic_of(shard: int) -> str:
    return next(name for name in map("t{}".format, itertools.count()) if KEYS.shard_of(name) == shard)


def report_profile(outcome: ProfileOutcome) -> str:
    """The report for people."""
    of_level, failed = outcome.acknowledged, outcome.failed_calls
    lines = [
        f"cluster with replicas, seed {outcome.seed}: {outcome.faults.total()} faults in {outcome.took_s:.0f} s",
        " times, longest time in s until puts into all topics were confirmed again",
        *(f"{count:6} {outcome.recovered_s[kind]:6.1f}  {kind}" for kind, count in outcome.faults.items()),
        *(f"     0         {kind}: not on this machine ({why})" for kind, why in outcome.left_out.items()),
        f"{failed.total():6}  calls failed: {', '.join(f'{what} {count}' for what, count in failed.most_common())}",
        f"{outcome.in_doubt:6}  stored puts that a replica lacked when its primary was killed",
        f"{of_level['replicated:1']:6}  puts acknowledged at replicated:1",
        f"{of_level['memory']:6}  puts acknowledged at memory",
        f"{outcome.cancelled:6}  cancels acknowledged at replicated:1",
        f"{outcome.delivered:6}  jobs delivered",
        f"{outcome.lost_memory:6}  jobs lost that were acknowledged at memory, which promises no more",
        f"{outcome.undone:6}  deliveries repeated because a failover may have undone a pop or a finish",
        f"{len(outcome.lost):6}  jobs lost that were acknowledged at replicated:1",
        f"{len(outcome.came_back):6}  jobs back after a cancel that was acknowledged at replicated:1",
        f"{len(outcome.twice):6}  other deliveries while a lease was live, or after an acknowledged finish",
        f"{len(outcome.early):6}  jobs delivered before they were due",
        f"{len(outcome.wrong_ends):6}  jobs with fewer or more ends than they may have",
        f"{outcome.left:6}  jobs left at the end",
        f"{len(outcome.audit):6}  findings of the consistency check",
    ]
    return "\n".join([*lines, *outcome.broken()])


def main() -> int:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster_profile", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(100_000))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--keep", type=Path, help="directory for logs, which is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deferd-faults-") as folder:
        kept = (options.keep or Path(folder)).resolve()
        outcome = run_cluster_profile(kept, options.seed, options.minutes)
        print(report_profile(outcome))
    return 1 if any(outcome.broken()) else 0


if __name__ == "__main__":
    sys.exit(main())
