"""The faults of a run, their order and durations drawn from a seed, and how each is made."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import psycopg

from tests.faults.outbox.deployment import Deployment, Relay
from tests.faults.outbox.writers import Writers


class FaultKind(StrEnum):
    """A kind of fault; the value is its description in reports."""

    KILL_RELAY = "the working relay is killed"
    KILL_OTHER_RELAY = "the relay that waits is killed"
    KILL_BEFORE_RESPONSE = "the working relay is killed before the responses to its calls reach it"
    KILL_BEFORE_DELETE = "the working relay is killed before it has deleted what was acknowledged"
    STOP_RELAY = "the working relay is stopped (SIGTERM)"
    FREEZE_RELAY = "the working relay is frozen (SIGSTOP, SIGCONT)"
    DEPOSE_KILLED_RELAY = "a request of the working relay, which is killed, arrives after what another one has sent"
    DEPOSE_FROZEN_RELAY = "the working relay is frozen, loses its connections, and its request arrives as late"
    TERMINATE_BACKENDS = "the database closes the connections of the working relay"
    CRASH_DATABASE = "the database crashes (immediate stop) and recovers"
    RESTART_DATABASE = "the database is restarted"
    KILL_SERVICE = "the service is killed"
    KILL_STORE = "the service's store is killed"
    FREEZE_SERVICE = "the service is frozen for longer than the relay waits"
    CUT_RESPONSES = "responses of the service break off in the middle"
    CUT_REQUESTS = "requests to the service break off in the middle"


class Fault(NamedTuple):
    """One fault. `for_s` is its duration, if it has one; `at_once`: what was killed is started again at once.

    `quiet_s` is how long after it the next one comes.
    """

    kind: FaultKind
    for_s: float
    at_once: bool
    quiet_s: float


class FaultNotInjected(Exception):
    """The fault had no effect; the text says why."""


_SHORT_S = (0.2, 3.0)
_QUIET_S = (-4.0, 4.0)
_BEYOND_RESPONSE_S = 4.0
_HELD_S = 0.5
_TAKEOVER_WITHIN_S = 15.0
_POLL_S = 0.05


def draw_plan(seed: int, count: int, kinds: Sequence[FaultKind] = tuple(FaultKind), *, quiet: bool) -> list[Fault]:
    """`count` faults of these kinds in random order; every kind comes once before any comes again.

    With `quiet` some seconds without faults are between some of them.
    """
    chance = random.Random(seed)
    drawn: list[FaultKind] = []
    while len(drawn) < count:
        drawn += chance.sample(kinds, len(kinds))
    return [_draw(kind, chance, quiet) for kind in drawn[:count]]


def _draw(kind: FaultKind, chance: random.Random, quiet: bool) -> Fault:
    for_s, quiet_s = (round(chance.uniform(*bounds), 2) for bounds in (_SHORT_S, _QUIET_S))
    return Fault(kind, for_s, chance.random() < 0.5, max(quiet_s, 0) if quiet else 0)


async def inject(fault: Fault, deployment: Deployment, writers: Writers) -> None:
    """Make the fault and end it. Raises FaultNotInjected."""
    database, service = deployment.database, deployment.service
    match fault.kind:
        case FaultKind.CRASH_DATABASE:
            await asyncio.to_thread(database.kill)
            await asyncio.to_thread(database.start)
        case FaultKind.RESTART_DATABASE:
            await asyncio.to_thread(database.stop)
            await asyncio.sleep(fault.for_s / 3)
            await asyncio.to_thread(database.start)
        case FaultKind.KILL_SERVICE:
            service.kill()
            await asyncio.to_thread(service.start)
            await asyncio.to_thread(service.wait_ready)
        case FaultKind.KILL_STORE:
            service.kill_store()
        case FaultKind.FREEZE_SERVICE:
            with service.frozen():
                await asyncio.sleep(_BEYOND_RESPONSE_S)
        case FaultKind.CUT_RESPONSES:
            await _cut(deployment, requests=False)
        case FaultKind.CUT_REQUESTS:
            await _cut(deployment, requests=True)
        case _:
            await _inject_into_relay(fault, deployment, writers)


async def _inject_into_relay(fault: Fault, deployment: Deployment, writers: Writers) -> None:  # noqa: PLR0912 (a case for each kind)
    relay = await deployment.working_relay()
    if relay is None:
        raise FaultNotInjected("no relay works")
    [other] = [one for one in deployment.relays if one is not relay]
    match fault.kind:
        case FaultKind.KILL_RELAY:
            await _kill(relay, fault)
        case FaultKind.KILL_OTHER_RELAY:
            await _kill(other, fault)
        case FaultKind.KILL_BEFORE_RESPONSE:
            delayed = deployment.proxy.delayed
            deployment.proxy.delay_responses(2 * _HELD_S)
            await asyncio.sleep(_HELD_S)
            deployment.proxy.delay_responses(0)
            await _kill(relay, fault)
            if deployment.proxy.delayed == delayed:
                raise FaultNotInjected("the relay made no call")
        case FaultKind.KILL_BEFORE_DELETE:
            async with await psycopg.AsyncConnection.connect(deployment.database_url) as connection:
                await connection.execute("lock table deferd.outbox in share mode")  # reads go on, deletes wait
                await asyncio.sleep(_HELD_S)
                waiting = "select from pg_locks where not granted and mode = 'RowExclusiveLock'"
                await _kill(relay, fault)
                if not await (await connection.execute(waiting)).fetchall():
                    raise FaultNotInjected("nothing waited for the table")
        case FaultKind.STOP_RELAY:
            code = await asyncio.to_thread(relay.stop)
            relay.start()
            if code != 0:
                raise RuntimeError(f"{relay.name} exited with {code}:\n{relay.output()[-3000:]}")
        case FaultKind.FREEZE_RELAY:
            with relay.frozen():
                await asyncio.sleep(fault.for_s)
        case FaultKind.DEPOSE_KILLED_RELAY:
            try:
                await _depose(relay.kill, other, deployment, writers)
            finally:
                relay.start()
        case FaultKind.DEPOSE_FROZEN_RELAY:
            with contextlib.ExitStack() as ends:
                await _depose(lambda: ends.enter_context(relay.frozen()), other, deployment, writers)
        case FaultKind.TERMINATE_BACKENDS:
            if not await deployment.terminate_backends_of(relay):
                raise FaultNotInjected("the relay had no connection")
        case _:
            raise AssertionError(fault.kind)


async def _kill(relay: Relay, fault: Fault) -> None:
    relay.kill()
    if not fault.at_once:
        await asyncio.sleep(fault.for_s)
    relay.start()


async def _depose(end: Callable[[], object], other: Relay, deployment: Deployment, writers: Writers) -> None:
    """End the working relay while a request with a put is on its way, which arrives when the put's cancel was sent."""
    proxy = deployment.proxy

    async def depose() -> None:
        await _poll(lambda: proxy.held > held, "the relay made no call")
        end()
        for relay in deployment.relays:
            if relay is not other:
                await deployment.terminate_backends_of(relay)

    held = proxy.held
    proxy.hold_requests(1)
    try:
        await writers.put_and_cancel(depose)
        for _ in range(round(_TAKEOVER_WITHIN_S / _POLL_S)):
            if await deployment.working_relay() is other and await _is_empty(deployment):
                return
            await asyncio.sleep(_POLL_S)
        raise FaultNotInjected("no other relay took over")
    finally:
        proxy.release_requests()


async def _is_empty(deployment: Deployment) -> bool:
    """Whether the rows that were there a second ago have been sent."""
    statement = "select from deferd.outbox where written_at < clock_timestamp() - interval '1 second' limit 1"
    async with await psycopg.AsyncConnection.connect(deployment.database_url) as connection:
        return not await (await connection.execute(statement)).fetchall()


async def _cut(deployment: Deployment, *, requests: bool) -> None:
    """Cut a few in turn, each when the relay makes its next call."""
    proxy, count = deployment.proxy, 3
    before = proxy.request_cuts if requests else proxy.cuts
    (proxy.cut_requests if requests else proxy.cut_responses)(count)
    await _poll(
        lambda: (proxy.request_cuts if requests else proxy.cuts) >= before + count, "the relay made too few calls"
    )


async def _poll(holds: Callable[[], bool], otherwise: str) -> None:
    for _ in range(round(_TAKEOVER_WITHIN_S / _POLL_S)):
        if holds():
            return
        await asyncio.sleep(_POLL_S)
    raise FaultNotInjected(otherwise)
