"""Failovers under load: the primary of a Sentinel set is killed, again and again, and its replica takes over.

Replication is behind by a moment, so that of all that was acknowledged only what waited for the replica survives for
certain: puts with durability `replicated:1`. A finish may be forgotten, and its job delivered again; so may a pop. So
this is a run of its own, which asks one thing: each acknowledged put comes to a consumer. That a primary is killed
while its replica lacks some puts is seen to: else puts that waited for nobody would survive as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

from deferd import AsyncClient
from deferd.client.failures import NoAnswer
from deferd.errors import DeferdError
from tests.acceptance.service_process import ServiceProcess
from tests.faults.orphans import none_outlives
from tests.integration.store_servers import SentinelSet, StoreServer, wait_until

TOPIC = "faults.failover"
DURABILITY = "replicated:1"
PRODUCERS = 6
CONSUMERS = 4
GOES_ON_S = 30.0
SETTLE_S = 30.0
PUTS_BETWEEN = 60
DRAIN_S = 20.0
TTR_S = 1.0
IN_DOUBT_S = 0.5
POOL = f"deferd:{{0}}:{TOPIC}:pool"
BALLAST_PIECES, BALLAST_BYTES = 6, 8 * 1024 * 1024
"""Together more than the buffers of a TCP connection hold."""
_BALLAST = """
for n = 1, 2e6 do end
for n = 1, ARGV[1] do redis.call('SET', 'ballast:' .. n, string.rep('x', ARGV[2])) end
return redis.call('HKEYS', KEYS[1])
"""
"""Takes some 50 ms, so that what was sent before is confirmed by the replica, and what is sent after comes behind."""
CONFIRMED_S = 0.01
DOWN_AFTER_MS = 1500
"""A primary that works on the ballast for so long is given up by its sentinels."""
TRIES = 16


@dataclass
class Failovers:
    """What the failovers showed: ids of jobs by what their clients know."""

    went_on_after_s: list[float] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    audit: list[str] = field(default_factory=list)
    left: int = 0
    never_replicated: list[int] = field(default_factory=list)
    """Of each failover, how many stored puts the new primary lacked; none of them may have been acknowledged."""

    @property
    def lost(self) -> set[str]:
        """Acknowledged and never delivered."""
        return self.acknowledged - self.delivered

    @property
    def unheard_of(self) -> set[str]:
        """Delivered and never put."""
        return self.delivered - self.acknowledged - self.unknown


async def run_failovers(folder: Path, seed: int, count: int) -> Failovers:
    """Kill the primary `count` times, each time when the one before is back as replica and the load has gone on."""
    seen = Failovers()
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.enter_context(none_outlives(folder))
        stores = stack.enter_context(SentinelSet(folder, down_after_ms=DOWN_AFTER_MS))
        services = [
            stack.enter_context(ServiceProcess(folder / f"service-{number}", "--redis-url", stores.url))
            for number in range(2)
        ]
        clients = [AsyncClient(service.url, retry_for=0, timeout=2.5) for service in services]
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(_consume(clients, chance, seen)) for _ in range(CONSUMERS)]
            for number in range(PRODUCERS):
                tasks.create_task(_put(clients, chance, seen, number, stopping))
            try:
                await _more_puts(seen, "at first")
                primary, replica = stores.master, stores.replica
                for number in range(count):
                    await asyncio.sleep(chance.uniform(0.2, 1))
                    in_doubt = await asyncio.to_thread(leave_behind, primary, replica, POOL)
                    killed_s = time.monotonic()
                    seen.never_replicated.append(await asyncio.to_thread(_fail_over, primary, replica, in_doubt))
                    primary, replica = replica, primary
                    await _more_puts(seen, f"after failover {number + 1}")
                    seen.went_on_after_s.append(time.monotonic() - killed_s)
                stopping.set()
                seen.left = await _drained(clients[0])
            finally:
                stopping.set()
                for consumer in consumers:
                    consumer.cancel()
        audit = await clients[0].audit(TOPIC)
        seen.audit = [] if audit.clean else [str(audit.fields)]
        for client in clients:
            await client.close()
    return seen


def leave_behind(primary: StoreServer, replica: StoreServer, pool: str) -> set[str]:
    """Let the replica stand still, and puts be stored that are lost with the primary; the ids of these, if there are.

    What is on its way to a process that stands still comes to it later: so the way is filled up first.
    """
    for _ in range(TRIES):
        with primary.client(single_connection_client=True) as client:
            client.connection.send_command("EVAL", _BALLAST, 1, pool, BALLAST_PIECES, BALLAST_BYTES)
            time.sleep(CONFIRMED_S)
            replica.pause()
            # On a busy machine that may come when the replica has the ballast already, and the way is free again.
            is_ballast_to_come = not client.connection.can_read(timeout=0)
            before = {key.decode() for key in client.connection.read_response()}
        end_s = time.monotonic() + IN_DOUBT_S
        while is_ballast_to_come and time.monotonic() < end_s:
            if in_doubt := stored_ids(primary, pool) - before:
                return in_doubt
            time.sleep(0.01)
        replica.unpause()  # too late; or calls wait for replicas in rounds, and one had begun just before
        primary.command("WAIT", 1, 3000)
    return set()


def stored_ids(server: StoreServer, pool: str) -> set[str]:
    """What is in a topic's Job Pool, as this server has it."""
    return {key.decode() for key in server.command("HKEYS", pool)}


def stored_at_the_end(replica: StoreServer, pool: str) -> set[str]:
    """What a replica has got of its killed primary, which is known when it has read its connection to the end."""
    wait_until(lambda: not _is_in_step(replica), SETTLE_S, "the replica misses its primary")
    return stored_ids(replica, pool)


def _fail_over(primary: StoreServer, replica: StoreServer, in_doubt: set[str]) -> int:
    """Kill the primary, wait until the replica has taken over, and bring the other back as its replica.

    Returns how many of `in_doubt` the replica lacked when the primary was gone.
    """
    primary.kill()
    replica.unpause()
    lacking = in_doubt - stored_at_the_end(replica, POOL)
    wait_until(lambda: _role(replica) == "master", SETTLE_S, "the replica has taken over")
    primary.start()
    # The sentinels would do so by themselves, some ten seconds later.
    primary.command("REPLICAOF", "127.0.0.1", replica.port)
    wait_until(lambda: _role(primary) == "slave" and _is_in_step(primary), SETTLE_S, "the old primary is in step")
    return len(lacking)


def _role(server: StoreServer) -> str:
    return str(_replication(server).get("role"))


def _is_in_step(server: StoreServer) -> bool:
    return _replication(server).get("master_link_status") == "up"


def _replication(server: StoreServer) -> dict[str, object]:
    """What the server says of its part, nothing while it takes on another: then it hangs up."""
    with server.client() as client, contextlib.suppress(redis.ConnectionError):
        return dict(client.info("replication"))
    return {}


async def _put(
    clients: list[AsyncClient], chance: random.Random, seen: Failovers, number: int, stopping: asyncio.Event
) -> None:
    puts = 0
    while not stopping.is_set():
        puts += 1
        job = f"{number}-{puts}"
        delay = chance.choice((0, 0.2, 1.5))
        for _ in range(3):  # asking again with the same id is safe
            try:
                put = await chance.choice(clients).put(
                    TOPIC, id=job, delay=delay, ttr=TTR_S, durability=DURABILITY, on_conflict="keep"
                )
                assert put.durability == DURABILITY, put.durability
                seen.acknowledged.add(job)
                seen.unknown.discard(job)
                break
            except (DeferdError, NoAnswer):
                seen.unknown.add(job)
                await asyncio.sleep(0.2)
        await asyncio.sleep(chance.expovariate(1 / 0.05))


async def _consume(clients: list[AsyncClient], chance: random.Random, seen: Failovers) -> None:
    while True:
        try:
            for job in await chance.choice(clients).pop(TOPIC, count=5, wait=0.5):
                seen.delivered.add(job.id)
                await chance.choice(clients).finish(job)
                seen.finished.add(job.id)
        except DeferdError:
            await asyncio.sleep(0.1)


async def _more_puts(seen: Failovers, when: str) -> None:
    wanted = len(seen.acknowledged) + PUTS_BETWEEN
    end_s = time.monotonic() + GOES_ON_S
    while len(seen.acknowledged) < wanted:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{when}: puts were not acknowledged again within {GOES_ON_S} s")
        await asyncio.sleep(0.05)


async def _drained(client: AsyncClient) -> int:
    """Wait until no job is left; how many are after all."""
    end_s = time.monotonic() + DRAIN_S
    left = -1
    while left and time.monotonic() < end_s:
        await asyncio.sleep(0.1)
        with contextlib.suppress(DeferdError):
            left = sum((await client.topic(TOPIC)).counts.values())
    return left
