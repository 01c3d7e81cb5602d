"""Faults of a cluster under load: a shard dies as a whole and comes back, and a node is removed.

Two services whose timers tick every half minute, so that a lost message shows; four primaries, of which the first has a
replica. Producers put to topics of every primary, one worker has handlers for all of them, and pops wait at each
service for jobs that are put at the other. Every acknowledged job must be handled in the end. Meanwhile jobs of topics
on healthy primaries must be handled, and waiting pops be woken, within a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deferd import AsyncClient, Context, Retry, Worker
from deferd.contract.errors import DeferdError, StoreUnavailable
from deferd.engine.redis_keys import READY_CHANNEL, Keys
from tests.acceptance.service_process import ServiceProcess
from tests.faults.ends import topic_of_ends, wrong_ends
from tests.faults.orphans import no_orphans
from tests.integration.store.store_servers import ClusterSet, StoreServer
from tests.waiting import until, wait_until

SHARDS = 12
SERVICES = 2
MASTERS = 4
KEYS = Keys(SHARDS)
BOUND_S = 5.0
"""How soon a healthy topic's job is handled, and a waiting pop woken: a lost subscription is noticed within 3 s, and a
call to a failed node within the store's time-out of 1.5 s."""
LASTS_S = (3.0, 5.0)
"""How long a shard is down."""
SETTLE_S = 30.0
DRAIN_S = 30.0
TERMS = {"ttr": 2, "backoff": {"kind": "fixed", "seconds": 0.2}}


@dataclass
class Waited:
    """A job that was acknowledged; put at `from_s` and delivered at `until_s`."""

    topic: str
    from_s: float
    until_s: float | None = None


@dataclass
class ShardDeath:
    """The result of the death of a primary with its replica."""

    put_refused: bool
    named_unavailable: bool
    handled_meanwhile: int
    slowest_s: float
    back_after_s: float


@dataclass
class NodeRemoval:
    """Result of the removal of a primary: how many services were subscribed there, and how many `silent` still are."""

    slots: int
    subscribers: int
    silent: int
    woken: int
    slowest_s: float


@dataclass
class ClusterOutcome:
    """The result of a run."""

    seed: int
    shard_deaths: list[ShardDeath] = field(default_factory=list)
    node_removals: list[NodeRemoval] = field(default_factory=list)
    acknowledged: int = 0
    woken: int = 0
    lost: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)
    wrong_ends: list[str] = field(default_factory=list)
    left: int = 0
    tracebacks: list[str] = field(default_factory=list)

    def broken(self) -> Iterator[str]:
        """A sentence for each broken promise."""
        if not self.shard_deaths or not self.node_removals:
            yield "a kind of fault was not injected"
        for death in self.shard_deaths:
            if not (death.put_refused and death.named_unavailable):
                yield f"a shard was not dead, or not reported as unavailable: {death}"
            if death.slowest_s > BOUND_S or not death.handled_meanwhile:
                yield f"jobs of healthy topics were not handled within {BOUND_S:g} s: {death}"
        for removal in self.node_removals:
            if not removal.subscribers:
                yield f"no service was subscribed at the removed node: {removal}"
            if removal.silent or removal.slowest_s > BOUND_S or not removal.woken:
                yield f"pops were not woken within {BOUND_S:g} s: {removal}"
        yield from (f"lost: {job}" for job in self.lost)
        yield from self.wrong_ends
        yield from self.audit
        yield from self.tracebacks
        if self.left:
            yield f"{self.left} jobs are left"


async def run_cluster_faults(folder: Path, seed: int, rounds: int) -> ClusterOutcome:
    """Inject both faults so many times. Raises TimeoutError or AssertionError when calls do not succeed again."""
    outcome = ClusterOutcome(seed)
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_orphans(folder))
        # What is acknowledged must be on the disk: with `everysec` a node that waits for an fsync has not written it.
        cluster = stack.enter_context(
            ClusterSet(folder, masters=MASTERS, first_replicated=True, appendonly="yes", appendfsync="always")
        )
        flags = ("--redis-url", cluster.url, "--shards", str(SHARDS), "--tick", "30")
        services = [
            stack.enter_context(ServiceProcess(folder / f"service-{number}", *flags, preloaded=True))
            for number in range(SERVICES)
        ]
        load = _Load(cluster, [service.url for service in services], chance)
        async with load.running():
            for _ in range(rounds):
                outcome.shard_deaths.append(await _shard_dies(cluster, load, chance))
                outcome.node_removals.append(await _node_leaves(cluster, load))
            outcome.left = await load.drain()
            outcome.wrong_ends = await load.wrong_ends()
            outcome.acknowledged, outcome.woken = len(load.handled), len(load.woken)
            outcome.lost = [job for job, one in (load.handled | load.woken).items() if one.until_s is None]
            for topic in load.topics:
                audit = await load.clients[0].audit(topic)
                outcome.audit += [] if audit.clean else [f"audit of {topic}: {audit.fields}"]
        outcome.tracebacks = [service.output() for service in services if "Traceback" in service.output()]
    return outcome


async def _shard_dies(cluster: ClusterSet, load: _Load, chance: random.Random) -> ShardDeath:
    """Kill the first primary's replica, then the primary, so that no node takes over; start both later."""
    dead, healthy = load.work[0], load.work[1:]
    for server in (cluster.replicas[0], cluster.masters[0]):
        await asyncio.to_thread(server.kill)
    died_s = time.monotonic()
    put_refused = False
    with contextlib.suppress(StoreUnavailable):
        await load.clients[0].put(dead, id="refused", on_conflict="keep", **TERMS)  # type: ignore[arg-type]
        put_refused = True
    put_refused = not put_refused
    pages = [page async for page in load.clients[0].topic_pages()]
    named = any(dead in page.unavailable and KEYS.shard_of(dead) in page.unreadable_shards for page in pages)
    await asyncio.sleep(chance.uniform(*LASTS_S))
    ended_s = time.monotonic()
    # One after the other: the replica lacks what was put after its death, and must not be elected meanwhile.
    for server in (cluster.masters[0], cluster.replicas[0]):
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(wait_until, cluster.is_healthy, SETTLE_S, "the cluster is healthy again")
    back_s = time.monotonic()
    await load.wait_for_recovery(dead, "after a shard came back")
    meanwhile = [one for one in load.handled.values() if one.topic in healthy and died_s < one.from_s < ended_s]
    return ShardDeath(put_refused, named, len(meanwhile), _slowest_s(meanwhile), time.monotonic() - back_s)


async def _node_leaves(cluster: ClusterSet, load: _Load) -> NodeRemoval:
    """Remove the one of the last two primaries that has slots, with a service subscribed there; then add it again."""
    leaving, heir = (cluster.masters[place] for place in ((3, 2) if _slots(cluster.masters[3]) else (2, 3)))
    slots = _slots(leaving)
    await asyncio.to_thread(_draw_subscription, cluster, leaving)
    subscribers = _subscribers(leaving)
    await asyncio.to_thread(cluster.remove, leaving, heir)
    removed_s = time.monotonic()
    for topic in load.wake:
        await load.wait_for_recovery(topic, "after a node was removed")
    with contextlib.suppress(AssertionError):  # then it is reported as silent
        await until(lambda: not _subscribers(leaving), "no service is subscribed there", within_s=BOUND_S)
    silent = _subscribers(leaving)
    await asyncio.sleep(max(removed_s + BOUND_S - time.monotonic(), 0))  # pops must be woken in this time
    woken = [one for one in load.woken.values() if one.from_s > removed_s]
    await asyncio.to_thread(cluster.rejoin, leaving)
    return NodeRemoval(slots, subscribers, silent, len(woken), _slowest_s(woken))


def _slowest_s(waited: list[Waited]) -> float:
    now_s = time.monotonic()
    return max(((one.until_s or now_s) - one.from_s for one in waited), default=0.0)


def _slots(node: StoreServer) -> int:
    own = node.command("CLUSTER MYID").decode()
    slots: list[list[object]] = node.command("CLUSTER SLOTS")
    return sum(last - first + 1 for first, last, primary, *_ in slots if primary[2].decode() == own)  # type: ignore[index,operator]


def _subscribers(node: StoreServer) -> int:
    return int(node.command("PUBSUB", "NUMSUB", READY_CHANNEL)[1])


def _draw_subscription(cluster: ClusterSet, node: StoreServer) -> None:
    """Close subscriptions at the other nodes until a service has chosen this one."""

    def has_come() -> bool:
        if _subscribers(node):
            return True
        for other in cluster.masters:
            if other is not node:
                other.command("CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(0.2)  # time to subscribe
        return False

    wait_until(has_come, SETTLE_S, "a service is subscribed at the node")


class _Load:
    """Producers, a worker, and waiting pops.

    `work` has a topic for each primary, `wake` one for each primary and service, with the service at which pops wait.
    """

    def __init__(self, cluster: ClusterSet, urls: list[str], chance: random.Random) -> None:
        self._chance = chance
        self.clients = [AsyncClient(url, retry_for=0, timeout=5) for url in urls]
        self.work = [_topic_of(cluster, master, "work") for master in cluster.masters]
        places = itertools.product(cluster.masters, range(SERVICES))
        self.wake = {_topic_of(cluster, master, f"wake{place}"): place for master, place in places}
        self.handled: dict[str, Waited] = {}
        self.woken: dict[str, Waited] = {}
        self._seen_s: dict[str, float] = {}
        self._tries: Counter[str] = Counter()
        self._producing = True
        self._worker = Worker(urls, concurrency=20)
        for topic in self.work:
            self._worker.handler(topic)(self._handle)

    @property
    def topics(self) -> list[str]:
        return [*self.work, *self.wake]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the end of the block."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(self._worker.serve())
            consuming = []
            for topic in self.work:
                tasks.create_task(self._produce(topic))
            for topic, place in self.wake.items():
                consuming.append(tasks.create_task(self._wait_for_jobs(topic, place)))
                tasks.create_task(self._wake(topic, place))
            try:
                for topic in self.topics:
                    await self.wait_for_recovery(topic, "at the start")
                yield
            finally:
                self._producing = False
                self._worker.stop()
                await working
                for task in consuming:
                    task.cancel()
        for client in self.clients:
            await client.close()

    async def wait_for_recovery(self, topic: str, when: str) -> None:
        """Wait until jobs of the topic that are put from now on are delivered."""
        since_s = time.monotonic()
        waited = self.handled if topic in self.work else self.woken

        def has_come() -> bool:
            latest = itertools.islice(reversed(waited.values()), 500)
            return any(one.topic == topic and one.from_s > since_s and one.until_s is not None for one in latest)

        await until(has_come, f"{topic} is delivered {when}", within_s=SETTLE_S)

    async def drain(self) -> int:
        """Stop putting, wait until every acknowledged job is handled and finished; returns how many jobs are left."""
        self._producing = False
        with contextlib.suppress(AssertionError):  # the rest is reported as lost
            await until(
                lambda: all(one.until_s is not None for one in (self.handled | self.woken).values()),
                "all jobs have been handled",
                within_s=DRAIN_S,
            )
        end_s = time.monotonic() + DRAIN_S
        while left := sum([sum((await self.clients[0].topic(topic)).counts.values()) for topic in self.topics]):
            if time.monotonic() > end_s:
                break
            await asyncio.sleep(0.1)
        return left

    async def wrong_ends(self) -> list[str]:
        """A sentence for each job that does not have one end."""
        ended = [topic_of_ends(KEYS, topic) for topic in self.topics]
        return await wrong_ends(self.clients[0], ended, self.handled | self.woken, self._tries)

    async def _handle(self, context: Context) -> None:
        job = context.job
        self._note(self.handled, job.id)
        if job.attempts == 1 and self._chance.random() < 0.1:
            raise Retry(error="so that it is released")

    def _note(self, where: dict[str, Waited], job: str) -> None:
        self._seen_s.setdefault(job, time.monotonic())
        if job in where and where[job].until_s is None:
            where[job].until_s = self._seen_s[job]

    async def _put(self, client: AsyncClient, where: dict[str, Waited], topic: str, job: str) -> bool:
        began_s = time.monotonic()
        self._tries[job] += 1
        try:
            await client.put(topic, id=job, on_conflict="keep", on_end={"topic": topic_of_ends(KEYS, topic)}, **TERMS)  # type: ignore[arg-type]
        except DeferdError:
            return False
        where[job] = Waited(topic, began_s, self._seen_s.get(job))
        return True

    async def _produce(self, topic: str) -> None:
        for number in itertools.count():
            if not self._producing:
                return
            await self._put(self._chance.choice(self.clients), self.handled, topic, f"{topic}-{number}")
            await asyncio.sleep(self._chance.expovariate(1 / 0.03))

    async def _wait_for_jobs(self, topic: str, place: int) -> None:
        while True:
            try:
                for job in await self.clients[place].pop(topic, wait=20):
                    self._note(self.woken, job.id)
                    await self.clients[place].finish(job)
            except DeferdError:
                await asyncio.sleep(0.1)

    async def _wake(self, topic: str, place: int) -> None:
        """Put a job at the other service whenever the previous one was delivered."""
        other = self.clients[(place + 1) % SERVICES]
        number, stored = 0, True
        while self._producing:
            last = self.woken.get(f"{topic}-{number}")
            if last is None or last.until_s is not None or not stored:
                number += 1
                stored = await self._put(other, self.woken, topic, f"{topic}-{number}")
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.01)


def _topic_of(cluster: ClusterSet, master: StoreServer, prefix: str) -> str:
    """A topic whose shard is on this primary."""
    names = (f"{prefix}-{number}" for number in range(1000))
    return next(name for name in names if cluster.holder_of(KEYS.of_topic(name)[0]) is master)


def report_cluster(outcome: ClusterOutcome) -> str:
    """The report for people."""
    deaths, removals = outcome.shard_deaths, outcome.node_removals
    meanwhile = sum(one.handled_meanwhile for one in deaths)
    slowest_s = max((one.slowest_s for one in deaths), default=0)
    back_s = max((one.back_after_s for one in deaths), default=0)
    woken = sum(one.woken for one in removals)
    subscribers = sum(one.subscribers for one in removals)
    woken_s = max((one.slowest_s for one in removals), default=0)
    lines = [
        f"cluster, seed {outcome.seed}: {outcome.acknowledged} jobs for a worker and {outcome.woken} for waiting pops",
        f"{len(deaths):6}  shards died; their topics were served again {back_s:.1f} s after the cluster was healthy",
        f"{meanwhile:6}  jobs of healthy topics handled meanwhile, each within {slowest_s:.1f} s of its put",
        f"{len(removals):6}  nodes removed, and {subscribers} subscriptions with them",
        f"{woken:6}  pops woken after that, each within {woken_s:.1f} s of the put",
        f"{len(outcome.lost):6}  acknowledged jobs lost",
        f"{len(outcome.wrong_ends):6}  jobs that have not ended once",
        f"{outcome.left:6}  jobs left at the end",
        f"{len(outcome.audit):6}  findings of the consistency check",
    ]
    return "\n".join([*lines, *outcome.broken()])
