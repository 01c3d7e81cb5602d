"""Failovers under load: the primary of a Sentinel set is killed, again and again, and its replica takes over.

Replication lags, so only what was confirmed by the replica is certain to survive: puts with durability `replicated:1`,
their own or their topic's. A finish, a cancel or a pop may be lost, and then a job is delivered or a receipt issued
again. So this run checks no receipts and no leases, but that each acknowledged put, also one that replaces a job,
reaches a consumer, and not before it is due; and that the end of each job has put one, no more and no fewer. Each
primary is killed while its replica lacks some puts; otherwise unconfirmed puts would survive too, and nothing would be
tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis

from deferd import AsyncClient
from deferd.client.errors import NoAnswer
from deferd.contract.errors import DeferdError
from tests.acceptance.service_process import ServiceProcess
from tests.faults.ends import wrong_ends
from tests.faults.orphans import no_orphans
from tests.faults.response_facts import delivery_facts
from tests.integration.store.store_servers import SentinelSet, StoreServer
from tests.waiting import wait_until

TOPIC, END_TOPIC = "faults.failover", "faults.failover.ended"
DURABILITY = "replicated:1"
PRODUCERS = 6
CONSUMERS = 4
RECOVERY_S = 30.0
SETTLE_S = 30.0
PUTS_BETWEEN = 60
DRAIN_S = 20.0
TTR_S = 1.0
LONG_S = 1.5
BATCH = 3
IN_DOUBT_S = 2.0
POOL = f"deferd:{{0}}:{TOPIC}:pool"
BALLAST_PIECES, BALLAST_BYTES = 6, 8 * 1024 * 1024
"""Together more than the buffers of a TCP connection."""
_BALLAST = """
local began = os.clock()
while os.clock() - began < 0.1 do end
for n = 1, ARGV[1] do redis.call('SET', ARGV[3] .. n, string.rep('x', ARGV[2])) end
return redis.call('HKEYS', KEYS[1])
"""
"""Takes 0.1 s of CPU time before the ballast: meanwhile the replica confirms what was sent before, and what is sent
later queues behind it. On a busy machine that is longer, as is all else."""
CONFIRMED_S = 0.03
DOWN_AFTER_MS = 1500
"""The sentinels must not count a primary as down while it writes the ballast."""
ATTEMPTS = 32


@dataclass
class Failovers:
    """The result of the failovers: ids of jobs by what their clients know, some with their latest version."""

    recovered_after_s: list[float] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    replaced: int = 0
    weaker: int = 0
    """Puts at the topic's default level, acknowledged by a primary that came back empty, without settings."""
    unknown: set[str] = field(default_factory=set)
    delivered: dict[str, int] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    tries: Counter[str] = field(default_factory=Counter)
    """How often each job was put."""
    wrong_ends: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)
    left: int = 0
    never_replicated: list[int] = field(default_factory=list)
    """For each failover, how many stored puts the new primary lacked; none may have been acknowledged."""

    @property
    def lost(self) -> set[str]:
        """Acknowledged and never delivered, or only in an earlier version."""
        return {job for job, version in self.acknowledged.items() if self.delivered.get(job, 0) < version}

    @property
    def never_put(self) -> set[str]:
        """Delivered but never put."""
        return self.delivered.keys() - self.acknowledged.keys() - self.unknown


async def run_failovers(folder: Path, seed: int, count: int) -> Failovers:
    """Kill the primary `count` times, each time after the one before is back as replica and puts succeed again."""
    seen = Failovers()
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_orphans(folder))
        stores = stack.enter_context(SentinelSet(folder, down_after_ms=DOWN_AFTER_MS))
        services = [
            stack.enter_context(ServiceProcess(folder / f"service-{number}", "--redis-url", stores.url, preloaded=True))
            for number in range(2)
        ]
        clients = [AsyncClient(service.url, retry_for=0, timeout=2.5) for service in services]
        await clients[0].set_topic(TOPIC, {"durability": DURABILITY})
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(_consume(clients, chance, seen)) for _ in range(CONSUMERS)]
            for number in range(PRODUCERS):
                tasks.create_task(_produce(clients, chance, seen, number, stopping))
            try:
                await _more_puts(seen, "at the start")
                primary, replica = stores.master, stores.replica
                for number in range(count):
                    await asyncio.sleep(chance.uniform(0.2, 1))
                    in_doubt = await asyncio.to_thread(make_replica_lag, primary, replica, POOL)
                    killed_s = time.monotonic()
                    seen.never_replicated.append(await asyncio.to_thread(_fail_over, primary, replica, in_doubt))
                    primary, replica = replica, primary
                    await _more_puts(seen, f"after failover {number + 1}")
                    seen.recovered_after_s.append(time.monotonic() - killed_s)
                stopping.set()
                seen.left = await _drained(clients[0])
            finally:
                stopping.set()
                for consumer in consumers:
                    consumer.cancel()
        seen.wrong_ends = await wrong_ends(clients[0], [END_TOPIC], seen.acknowledged, seen.tries)
        audit = await clients[0].audit(TOPIC)
        seen.audit = [] if audit.clean else [str(audit.fields)]
        for client in clients:
            await client.close()
    return seen


def make_replica_lag(primary: StoreServer, replica: StoreServer, pool: str, *, ballast: str = "ballast:") -> set[str]:
    """Freeze the replica and wait for puts that only the primary has; returns their ids, if there are any.

    A frozen process still receives what fits into the buffers of its connection, so these are filled first, by keys
    whose names begin with `ballast`.
    """
    for _ in range(ATTEMPTS):
        with primary.client(single_connection_client=True) as client:
            client.connection.send_command("EVAL", _BALLAST, 1, pool, BALLAST_PIECES, BALLAST_BYTES, ballast)
            time.sleep(CONFIRMED_S)
            replica.pause()
            # On a busy machine the replica may have the ballast already, so that the buffers are empty again.
            is_ballast_pending = not client.connection.can_read(timeout=0)
            before = {key.decode() for key in client.connection.read_response()}
            end_s = time.monotonic() + IN_DOUBT_S
            while is_ballast_pending and time.monotonic() < end_s:
                if in_doubt := stored_ids(primary, pool) - before:
                    return in_doubt
                time.sleep(0.01)
            replica.unpause()  # too late, or a batch had begun just before
            # Until the replica has read the ballast it confirms no puts, so none would follow the next attempt. For a
            # connection that has written nothing WAIT waits for nothing, so it is this one's.
            wait_until(partial(client.wait, 1, 1000), SETTLE_S, "the replica has the ballast")
    return set()


def stored_ids(server: StoreServer, pool: str) -> set[str]:
    """The ids in a topic's Job Pool on this server."""
    return {key.decode() for key in server.command("HKEYS", pool)}


def stored_at_the_end(replica: StoreServer, pool: str) -> set[str]:
    """The ids on a replica after it has read its connection to the killed primary to the end."""
    wait_until(lambda: not _is_in_sync(replica), SETTLE_S, "the replica has lost its primary")
    return stored_ids(replica, pool)


def _fail_over(primary: StoreServer, replica: StoreServer, in_doubt: set[str]) -> int:
    """Kill the primary, wait until the replica is promoted, and start the old primary as its replica.

    Returns how many of `in_doubt` the replica lacked when the primary was gone.
    """
    primary.kill()
    replica.unpause()
    missing = in_doubt - stored_at_the_end(replica, POOL)
    wait_until(lambda: _role(replica) == "master", SETTLE_S, "the replica is promoted")
    primary.start()
    # The sentinels would do this themselves, about ten seconds later.
    primary.command("REPLICAOF", "127.0.0.1", replica.port)
    wait_until(lambda: _role(primary) == "slave" and _is_in_sync(primary), SETTLE_S, "the old primary is in sync")
    return len(missing)


def _role(server: StoreServer) -> str:
    return str(_replication(server).get("role"))


def _is_in_sync(server: StoreServer) -> bool:
    return _replication(server).get("master_link_status") == "up"


def _replication(server: StoreServer) -> dict[str, object]:
    """The server's INFO replication; empty while it changes its role, when it closes connections."""
    with server.client() as client, contextlib.suppress(redis.ConnectionError):
        return dict(client.info("replication"))
    return {}


async def _produce(
    clients: list[AsyncClient], chance: random.Random, seen: Failovers, number: int, stopping: asyncio.Event
) -> None:
    puts = 0
    while not stopping.is_set():
        puts += 1
        ids = [f"{number}-{puts}-{n}" for n in range(chance.choice((1, 1, 1, BATCH)))]
        delay = chance.choice((0, 0.2, LONG_S))
        terms: dict[str, Any] = {"delay": delay, "ttr": TTR_S, "on_end": {"topic": END_TOPIC}}
        if chance.random() < 0.5:
            terms["durability"] = DURABILITY  # the same as the topic's
        for version in (1, 2) if delay == LONG_S and chance.random() < 0.5 else (1,):
            job = {**terms, "body": {"version": version, "delay": delay}}
            for _ in range(3):  # a repeated put with the same id is safe
                try:
                    await _put(chance.choice(clients), seen, ids, version, job)
                    break
                except (DeferdError, NoAnswer):
                    seen.unknown.update(ids)
                    await asyncio.sleep(0.2)
        await asyncio.sleep(chance.expovariate(1 / 0.05))


async def _put(client: AsyncClient, seen: Failovers, ids: Sequence[str], version: int, terms: dict[str, Any]) -> None:
    """Put jobs; the second version replaces the first. Record those that were acknowledged."""
    job = {**terms, "on_conflict": "keep" if version == 1 else "replace"}
    seen.tries.update(ids)
    if len(ids) == 1:
        levels = {ids[0]: (await client.put(TOPIC, id=ids[0], **job)).durability}
    else:
        results = await client.put_batch([{"topic": TOPIC, "id": one, **job} for one in ids])
        levels = {one.id: one.durability for one in results if one.code is None}
    as_requested = [one for one, level in levels.items() if level == DURABILITY]
    assert "durability" not in terms or len(as_requested) == len(levels), levels
    seen.weaker += len(levels) - len(as_requested)
    seen.acknowledged.update(dict.fromkeys(as_requested, version))
    seen.replaced += len(as_requested) if version > 1 else 0
    seen.unknown = (seen.unknown | set(ids)) - set(as_requested)


async def _consume(clients: list[AsyncClient], chance: random.Random, seen: Failovers) -> None:
    while True:
        try:
            for job in await chance.choice(clients).pop(TOPIC, count=5, wait=0.5):
                seen.delivered[job.id] = max(job.body["version"], seen.delivered.get(job.id, 0))
                facts = delivery_facts(job)
                if facts["at_ms"] < facts["created_ms"] + round(job.body["delay"] * 1000):
                    seen.early.add(job.id)
                await chance.choice(clients).finish(job)
                seen.finished.add(job.id)
        except DeferdError:
            await asyncio.sleep(0.1)


async def _more_puts(seen: Failovers, when: str) -> None:
    target = len(seen.acknowledged) + PUTS_BETWEEN
    end_s = time.monotonic() + RECOVERY_S
    while len(seen.acknowledged) < target:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{when}: no puts were acknowledged within {RECOVERY_S} s")
        await asyncio.sleep(0.05)


async def _drained(client: AsyncClient) -> int:
    """Wait until no job is left; returns how many are left in the end."""
    end_s = time.monotonic() + DRAIN_S
    left = -1
    while left and time.monotonic() < end_s:
        await asyncio.sleep(0.1)
        with contextlib.suppress(DeferdError):
            left = sum((await client.topic(TOPIC)).counts.values())
    return left
