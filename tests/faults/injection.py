"""Injects each kind of fault into a deployment, and ends it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import httpx

from tests.acceptance.service_process import ServiceProcess
from tests.faults.deployment import (
    KEY_NAME,
    KEYED,
    Deployment,
    FaultyStore,
    RecordingProcess,
    clock_error_h,
    is_frozen,
    live_leases,
    set_clock,
)
from tests.faults.plan import BEYOND_STORE_TIMEOUT_S, Fault, FaultKind
from tests.integration.store.store_rights import USER
from tests.private_network import packets_held_up
from tests.waiting import wait_until

DEAD_S = 0.3
"""How long a killed process stays down."""
NOTICED_S = 10.0
"""How long a fault that needs traffic to show, such as a full disk, may take to have its effect."""
PUSHER_KILLS = 3
"""How often a service is killed until a request ends with it: those that were seen may have ended just before."""
NO_LIMIT = 0
SHORT_DELAY_S = 0.15
LONG_DELAY_S = 1.7
"""Longer than the services' time-out."""
CLOCK_READ_WITHIN_H = 0.01
REVOCABLE = ("time", "fcall")
"""Without these a script fails before it has changed a job: scripts that read the clock do so before they write.

Without a permission such as zadd a script fails halfway, and until a repair no promise holds for the jobs of the calls
that were in progress. `integration/store/test_store_watch.py` tests that repair."""


_IN_FLIGHT = re.compile(r"^deferd_push_in_flight (\S+)", re.MULTILINE)


class FaultNotInjected(Exception):
    """The fault had no effect, so nothing was tested."""


async def inject(fault: Fault, deployment: Deployment) -> None:
    """Inject a fault, verify its effect, and end it, even if this is cancelled. Raises FaultNotInjected."""
    injection = asyncio.create_task(_INJECTORS[fault.kind](fault, deployment))
    try:
        await asyncio.shield(injection)
    except asyncio.CancelledError:
        await asyncio.wait((injection,))  # otherwise it might start processes after the end of the run
        raise


def _require(happened: bool, what: str) -> None:
    if not happened:
        raise FaultNotInjected(what)


async def _until(condition: Callable[[], bool], what: str, within_s: float = NOTICED_S) -> None:
    """Wait until a fault has had its effect, or can have one."""
    try:
        await asyncio.to_thread(wait_until, condition, within_s, what)
    except TimeoutError as exc:
        raise FaultNotInjected(str(exc)) from exc


async def _kill_service(fault: Fault, deployment: Deployment) -> None:
    await _kill(deployment.services[fault.which])


async def _freeze_service(fault: Fault, deployment: Deployment) -> None:
    await _freeze_for(_processes_of(deployment.services[fault.which]), fault.for_s)


def _processes_of(service: ServiceProcess) -> list[int]:
    """Its process ids without its store, the supervisor first, which would replace the others."""
    return [service.process.pid, *service.server_process_pids()]


async def _kill_timer_holder(fault: Fault, deployment: Deployment) -> None:
    holder, name = await _timer_holder(deployment)
    await _kill(deployment.services[holder], until=lambda: _other_timer_takes_over(deployment, name))


async def _freeze_timer_holder(fault: Fault, deployment: Deployment) -> None:
    holder, name = await _timer_holder(deployment)
    pids = _processes_of(deployment.services[holder])
    await _freeze(*pids)
    try:
        await _other_timer_takes_over(deployment, name)
        await asyncio.sleep(fault.for_s)
    finally:
        _thaw(*pids)


async def _timer_holder(deployment: Deployment) -> tuple[int, bytes | None]:
    for _ in range(5):
        name = await deployment.active_timer()
        holder = await deployment.timer_holder()
        if holder is not None and name == await deployment.active_timer():
            return holder, name
        await asyncio.sleep(0.2)
    raise FaultNotInjected("no timer holds the lock")


async def _other_timer_takes_over(deployment: Deployment, name: bytes | None) -> None:
    end_s = time.monotonic() + NOTICED_S
    while await deployment.active_timer() in {name, None}:
        _require(time.monotonic() < end_s, "no other timer took over")
        await asyncio.sleep(0.05)


async def _dead_for_a_while() -> None:
    await asyncio.sleep(DEAD_S)


async def _kill(service: ServiceProcess, until: Callable[[], Awaitable[None]] = _dead_for_a_while) -> None:
    process = service.process
    workers = service.server_process_pids()
    if workers:
        await _freeze(process.pid)  # otherwise it would start others
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    service.kill()
    try:
        await until()
    finally:
        await asyncio.to_thread(service.start)
    _require(process.returncode == -signal.SIGKILL, f"the service had already exited with {process.returncode}")


async def _freeze(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await _until(lambda: all(map(is_frozen, pids)), "the process is frozen")


def _thaw(*pids: int) -> None:
    were_frozen = all(map(is_frozen, pids))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    _require(were_frozen, "the process continued too early")


async def _freeze_for(pids: Sequence[int], for_s: float) -> None:
    await _freeze(*pids)
    await asyncio.sleep(for_s)
    _thaw(*pids)


async def _freeze_with_leases(process: RecordingProcess) -> None:
    """Freeze it at a moment at which it holds leases."""
    pid = process.process.pid
    end_s = time.monotonic() + NOTICED_S
    while True:
        await _freeze(pid)
        if live_leases(process.files[-1]):
            return
        _thaw(pid)
        _require(time.monotonic() < end_s, "it never held a lease")
        await asyncio.sleep(0.02)


async def _kill_client(fault: Fault, deployment: Deployment) -> None:
    await _kill_with_leases(deployment.clients[fault.which])


async def _freeze_client(fault: Fault, deployment: Deployment) -> None:
    await _freeze_beyond_leases(deployment.clients[fault.which], fault.for_s)


async def _kill_worker(fault: Fault, deployment: Deployment) -> None:
    await _kill_with_leases(deployment.worker)


async def _freeze_worker(fault: Fault, deployment: Deployment) -> None:
    await _freeze_beyond_leases(deployment.worker, fault.for_s)


async def _kill_with_leases(process: RecordingProcess) -> None:
    await _freeze_with_leases(process)
    code = process.kill()
    await asyncio.sleep(DEAD_S)
    process.start()
    _require(code == -signal.SIGKILL, f"the process had already exited with {code}")


async def _freeze_beyond_leases(process: RecordingProcess, for_s: float) -> None:
    await _freeze_with_leases(process)
    await asyncio.sleep(for_s)
    have_expired = not live_leases(process.files[-1])
    _thaw(process.process.pid)
    _require(have_expired, "a lease has not expired")


async def _kill_store(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    before = await _run_id_of(store)
    await asyncio.to_thread(store.kill)
    await asyncio.sleep(DEAD_S)
    await asyncio.to_thread(store.start)
    _require(await _run_id_of(store) != before, "the store is still the same process")


async def _run_id_of(store: FaultyStore) -> str:
    """An id that differs for each process of the store."""
    return str((await asyncio.to_thread(store.info, "server"))["run_id"])


async def _freeze_store(fault: Fault, deployment: Deployment) -> None:
    await _freeze_for([deployment.store.pid], fault.for_s)


async def _restart_store(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    before, written = await _run_id_of(store), len(store.log())
    await asyncio.to_thread(store.restart)
    _require(await _run_id_of(store) != before, "the store is still the same process")
    _require("bye bye" in store.log()[written:], "the store did not shut down in order")


async def _fill_disk(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    written = len(store.log())
    await asyncio.to_thread(store.fill_disk, 5000)
    # With `appendfsync always` a store that cannot write exits: it must not acknowledge what is not on disk.
    await _until(lambda: not store.running, "the store has exited because the disk is full")
    await asyncio.sleep(fault.for_s)
    log = store.log()[written:]
    await asyncio.to_thread(store.start)
    _require("AOF write error" in log, f"the store exited for another reason:\n{log}")


async def _fill_memory(fault: Fault, deployment: Deployment) -> None:
    errors_before = await asyncio.to_thread(_count_errors, deployment.store, "OOM")
    await asyncio.to_thread(deployment.store.command, "CONFIG SET", "maxmemory", 1)
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        await asyncio.to_thread(deployment.store.command, "CONFIG SET", "maxmemory", NO_LIMIT)
    errors_after = await asyncio.to_thread(_count_errors, deployment.store, "OOM")
    _require(errors_after > errors_before, "no command was refused for lack of memory")


def _count_errors(store: FaultyStore, kind: str) -> int:
    """How many error replies of this kind the store has sent since its start."""
    return int(store.info("errorstats").get(f"errorstat_{kind}", {"count": 0})["count"])


def _count_loads(store: FaultyStore) -> int:
    """How often a library was loaded since the store's start; the self-test tries it without one, which fails."""
    stats = store.info("commandstats").get("cmdstat_function|load", {"calls": 0, "failed_calls": 0})
    return int(stats["calls"]) - int(stats["failed_calls"])


async def _cut_store_responses(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.store_proxies[fault.which]
    await _cut(proxy.cut_responses, lambda: proxy.cuts)


async def _cut_service_responses(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.service_proxies[fault.which]
    await _cut(proxy.cut_responses, lambda: proxy.cuts)


async def _cut(cut_responses: Callable[[int], None], cuts: Callable[[], int]) -> None:
    target = cuts() + 4
    cut_responses(4)
    try:
        await _until(lambda: cuts() >= target, "responses were cut")
    finally:
        cut_responses(0)


async def _cut_resp_connections(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.resp_proxies[fault.which]
    await _cut(proxy.cut_requests, lambda: proxy.request_cuts)
    await _cut(proxy.cut_responses, lambda: proxy.cuts)


async def _kill_pusher(fault: Fault, deployment: Deployment) -> None:
    targets, token = deployment.targets, deployment.keys.tokens[KEY_NAME]
    pushing: list[ServiceProcess] = []

    def one_pushes() -> bool:
        pushing[:] = [service for service in deployment.services if _pushes_under_way(service, token) > 0]
        return bool(pushing)

    targets.holds = True  # most requests take milliseconds, and would have ended before the kill
    try:
        for _ in range(PUSHER_KILLS):
            # One service may send everything for a while. Circuits may be open, and a busy machine seldom looks.
            await _until(one_pushes, "a service pushes", within_s=12 * NOTICED_S)
            before = targets.closed
            await _kill(pushing[fault.which % len(pushing)])
            if targets.closed > before:
                return
    finally:
        targets.holds = False
    raise FaultNotInjected("no request ended with the service")


def _pushes_under_way(service: ServiceProcess, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    metrics = httpx.get(f"{service.url}/metrics", headers=headers, trust_env=False, timeout=NOTICED_S).text
    return sum(int(float(count)) for count in _IN_FLIGHT.findall(metrics))


async def _delay_store_responses(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.store_proxies[fault.which]
    before = proxy.delayed
    is_long = fault.for_s == BEYOND_STORE_TIMEOUT_S
    proxy.delay_responses(LONG_DELAY_S if is_long else SHORT_DELAY_S)
    try:
        await asyncio.sleep(fault.for_s)
        await _until(lambda: proxy.delayed > before, "responses were delayed")
    finally:
        proxy.delay_responses(0)


async def _block_store(fault: Fault, deployment: Deployment) -> None:
    began_s = time.monotonic()
    await asyncio.to_thread(deployment.store.command, "DEBUG", "SLEEP", str(fault.for_s))
    _require(time.monotonic() - began_s >= fault.for_s, "the store did not sleep")


async def _pause_store(fault: Fault, deployment: Deployment) -> None:
    began_s = time.monotonic()
    await asyncio.to_thread(deployment.store.command, "CLIENT PAUSE", int(fault.for_s * 1000), "ALL")
    await asyncio.to_thread(deployment.store.command, "PING")  # the reply comes when the pause is over
    _require(time.monotonic() - began_s >= fault.for_s - 0.05, "the store did not make clients wait")


async def _hold_packets(fault: Fault, deployment: Deployment) -> None:
    await _hold_up(deployment.store.port, fault.for_s)


async def _hold_requests(fault: Fault, deployment: Deployment) -> None:
    await _hold_up(deployment.services[fault.which].port, fault.for_s)


async def _hold_up(port: int, for_s: float) -> None:
    def hold() -> int:
        with packets_held_up(port) as held_up:
            time.sleep(for_s)
        return held_up.packets

    # What the proxies have taken is sent again at the end, also what the services or clients have given up.
    _require(await asyncio.to_thread(hold) > 0, "no packet was held up")


async def _jump_clock(fault: Fault, deployment: Deployment) -> None:
    # One clock is always behind and the other ahead, so that they never agree.
    shift_h = fault.jump_h if fault.which else -fault.jump_h
    service = deployment.services[fault.which]
    before_h = await asyncio.to_thread(clock_error_h, service.url)
    set_clock(deployment.clock_files[fault.which], shift_h)
    await _until(lambda: abs(clock_error_h(service.url) - shift_h) < CLOCK_READ_WITHIN_H, "the clock has jumped")
    _require(abs(before_h - shift_h) > CLOCK_READ_WITHIN_H, "the clock already had this error")


async def _revoke_permission(fault: Fault, deployment: Deployment) -> None:
    store, command = deployment.store, REVOCABLE[fault.which]
    refusals = f"lacks the permissions +{command};"
    before = [service.output().count(refusals) for service in deployment.services]
    await asyncio.to_thread(store.command, "ACL LOG", "RESET")
    await asyncio.to_thread(store.command, "ACL SETUSER", USER, f"-{command}")
    try:
        await _until(
            lambda: all(
                service.output().count(refusals) > count
                for service, count in zip(deployment.services, before, strict=True)
            ),
            "both services have reported the missing permission",
        )
        await asyncio.sleep(fault.for_s)
    finally:
        await asyncio.to_thread(store.command, "ACL SETUSER", USER, f"+{command}")
    _require(bool(await asyncio.to_thread(store.command, "ACL LOG")), "the store refused no command")


async def _flush_scripts(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    loads_before = await asyncio.to_thread(_count_loads, store)
    await asyncio.to_thread(store.command, "FUNCTION FLUSH")
    await _until(lambda: _count_loads(store) > loads_before, "the scripts were loaded again")


async def _break_key_file(fault: Fault, deployment: Deployment) -> None:
    service, keys = deployment.services[KEYED], deployment.keys
    refused, read = (service.output().count(line) for line in ("the keys stay as they were", "keys were reloaded"))
    keys.write("[[key")
    try:
        await _until(lambda: service.output().count("the keys stay as they were") > refused, "the key file was refused")
        await asyncio.to_thread(service.kill_server_processes)
        statuses = [await asyncio.to_thread(_status, service, token) for token in (keys.tokens[KEY_NAME], "unknown")]
        _require(statuses == [200, 401], f"the new server processes responded with {statuses}")
    finally:
        keys.write()
    await _until(lambda: service.output().count("keys were reloaded") > read, "the valid key file was read")


def _status(service: ServiceProcess, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{service.url}/topics", headers=headers, trust_env=False, timeout=NOTICED_S).status_code


async def _kill_shelf(fault: Fault, deployment: Deployment) -> None:
    shelf = deployment.shelf
    assert shelf is not None
    await asyncio.to_thread(shelf.kill)
    await _dead_for_a_while()
    shelf.start()
    await _until(shelf.serves, "the shelf serves again")  # else the audit that follows may not reach it


async def _freeze_shelf(fault: Fault, deployment: Deployment) -> None:
    assert deployment.shelf is not None
    await _freeze_for([deployment.shelf.pid], fault.for_s)


_INJECTORS: dict[FaultKind, Callable[[Fault, Deployment], Coroutine[Any, Any, None]]] = {
    FaultKind.KILL_SERVICE: _kill_service,
    FaultKind.FREEZE_SERVICE: _freeze_service,
    FaultKind.KILL_TIMER_HOLDER: _kill_timer_holder,
    FaultKind.FREEZE_TIMER_HOLDER: _freeze_timer_holder,
    FaultKind.KILL_CLIENT: _kill_client,
    FaultKind.FREEZE_CLIENT: _freeze_client,
    FaultKind.KILL_WORKER: _kill_worker,
    FaultKind.FREEZE_WORKER: _freeze_worker,
    FaultKind.KILL_STORE: _kill_store,
    FaultKind.FREEZE_STORE: _freeze_store,
    FaultKind.RESTART_STORE: _restart_store,
    FaultKind.FILL_DISK: _fill_disk,
    FaultKind.FILL_MEMORY: _fill_memory,
    FaultKind.CUT_STORE_RESPONSES: _cut_store_responses,
    FaultKind.CUT_SERVICE_RESPONSES: _cut_service_responses,
    FaultKind.CUT_RESP_CONNECTIONS: _cut_resp_connections,
    FaultKind.KILL_PUSHER: _kill_pusher,
    FaultKind.DELAY_STORE_RESPONSES: _delay_store_responses,
    FaultKind.BLOCK_STORE: _block_store,
    FaultKind.PAUSE_STORE: _pause_store,
    FaultKind.HOLD_PACKETS: _hold_packets,
    FaultKind.HOLD_REQUESTS: _hold_requests,
    FaultKind.JUMP_CLOCK: _jump_clock,
    FaultKind.REVOKE_PERMISSION: _revoke_permission,
    FaultKind.FLUSH_SCRIPTS: _flush_scripts,
    FaultKind.BREAK_KEY_FILE: _break_key_file,
    FaultKind.KILL_SHELF: _kill_shelf,
    FaultKind.FREEZE_SHELF: _freeze_shelf,
}
