"""How each kind of fault is brought to a deployment, and ended."""

from __future__ import annotations

import asyncio
import os
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
    leases_in_hand,
    set_clock,
    stands_still,
)
from tests.faults.plan import BEYOND_STORE_TIMEOUT_S, Fault, FaultKind
from tests.integration.store_rights import USER
from tests.waiting import wait_until

DEAD_S = 0.3
"""How long what was killed stays so."""
NOTICED_S = 10.0
"""Within what time a fault that needs traffic, such as a full disk, is met by some."""
NO_LIMIT = 0
LATE_ANSWERS_S = 0.15
VERY_LATE_ANSWERS_S = 1.7
"""Later than the services wait for them."""
CLOCK_READ_WITHIN_H = 0.01
RIGHTS_TAKEN = ("time", "evalsha")
"""Without these a script fails before it has changed a job: those that read the clock do so before they write.

Without a right such as zadd a script is cut in its middle, and until a repair the promises do not hold for the jobs of
the calls that were under way. What a repair makes of those is shown by `integration/test_store_watch.py`."""


class FaultNotBrought(Exception):
    """The fault did not come about, so that nothing was shown."""


async def bring(fault: Fault, deployment: Deployment) -> None:
    """Bring a fault, see that it has come about, and end it; also when this is cancelled. Raises FaultNotBrought."""
    bringing = asyncio.create_task(_BRINGERS[fault.kind](fault, deployment))
    try:
        await asyncio.shield(bringing)
    except asyncio.CancelledError:
        await asyncio.wait((bringing,))  # or what it is about to start would be started after the end of all
        raise


def _see(happened: bool, what: str) -> None:
    if not happened:
        raise FaultNotBrought(what)


async def _until(condition: Callable[[], bool], what: str) -> None:
    """Wait, within bounds, until something has been noticed."""
    try:
        await asyncio.to_thread(wait_until, condition, NOTICED_S, what)
    except TimeoutError as exc:
        raise FaultNotBrought(str(exc)) from exc


async def _kill_service(fault: Fault, deployment: Deployment) -> None:
    await _kill(deployment.services[fault.which])


async def _stop_service(fault: Fault, deployment: Deployment) -> None:
    await _stand_still(_processes_of(deployment.services[fault.which]), fault.for_s)


def _processes_of(service: ServiceProcess) -> list[int]:
    """All but its store; the one that would replace others first."""
    return [service.process.pid, *service.worker_pids()]


async def _kill_timer_holder(fault: Fault, deployment: Deployment) -> None:
    holder, name = await _timer_holder(deployment)
    await _kill(deployment.services[holder], until=lambda: _other_timer_works(deployment, name))


async def _stop_timer_holder(fault: Fault, deployment: Deployment) -> None:
    holder, name = await _timer_holder(deployment)
    pids = _processes_of(deployment.services[holder])
    await _stop(*pids)
    try:
        await _other_timer_works(deployment, name)
        await asyncio.sleep(fault.for_s)
    finally:
        _go_on(*pids)


async def _timer_holder(deployment: Deployment) -> tuple[int, bytes | None]:
    for _ in range(5):
        name = await deployment.working_timer()
        holder = await deployment.timer_holder()
        if holder is not None and name == await deployment.working_timer():
            return holder, name
        await asyncio.sleep(0.2)
    raise FaultNotBrought("no timer holds the lock")


async def _other_timer_works(deployment: Deployment, name: bytes | None) -> None:
    end_s = time.monotonic() + NOTICED_S
    while await deployment.working_timer() in {name, None}:
        _see(time.monotonic() < end_s, "no other timer took over")
        await asyncio.sleep(0.05)


async def _dead_for_a_while() -> None:
    await asyncio.sleep(DEAD_S)


async def _kill(service: ServiceProcess, until: Callable[[], Awaitable[None]] = _dead_for_a_while) -> None:
    process = service.process
    workers = service.worker_pids()
    if workers:
        await _stop(process.pid)  # or it would start others
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    service.kill()
    try:
        await until()
    finally:
        await asyncio.to_thread(service.start)
    _see(process.returncode == -signal.SIGKILL, f"the service had ended before, with {process.returncode}")


async def _stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await _until(lambda: all(map(stands_still, pids)), "the process stands still")


def _go_on(*pids: int) -> None:
    stood_still = all(map(stands_still, pids))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    _see(stood_still, "the process went on before it should")


async def _stand_still(pids: Sequence[int], for_s: float) -> None:
    await _stop(*pids)
    await asyncio.sleep(for_s)
    _go_on(*pids)


async def _stop_at_work(process: RecordingProcess) -> None:
    """Let it stand still from an instant on at which it has jobs in hand."""
    pid = process.process.pid
    end_s = time.monotonic() + NOTICED_S
    while True:
        await _stop(pid)
        if leases_in_hand(process.files[-1]):
            return
        _go_on(pid)
        _see(time.monotonic() < end_s, "it never had a job in hand")
        await asyncio.sleep(0.02)


async def _kill_client(fault: Fault, deployment: Deployment) -> None:
    await _kill_at_work(deployment.clients[fault.which])


async def _stop_client(fault: Fault, deployment: Deployment) -> None:
    await _stop_beyond_leases(deployment.clients[fault.which], fault.for_s)


async def _kill_worker(fault: Fault, deployment: Deployment) -> None:
    await _kill_at_work(deployment.worker)


async def _stop_worker(fault: Fault, deployment: Deployment) -> None:
    await _stop_beyond_leases(deployment.worker, fault.for_s)


async def _kill_at_work(process: RecordingProcess) -> None:
    await _stop_at_work(process)
    code = process.kill()
    await asyncio.sleep(DEAD_S)
    process.start()
    _see(code == -signal.SIGKILL, f"the process had ended before, with {code}")


async def _stop_beyond_leases(process: RecordingProcess, for_s: float) -> None:
    await _stop_at_work(process)
    await asyncio.sleep(for_s)
    are_over = not leases_in_hand(process.files[-1])
    _go_on(process.process.pid)
    _see(are_over, "a lease has not run out")


async def _kill_store(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    before = await _life_of(store)
    await asyncio.to_thread(store.kill)
    await asyncio.sleep(DEAD_S)
    await asyncio.to_thread(store.start)
    _see(await _life_of(store) != before, "the store is the one of before")


async def _life_of(store: FaultyStore) -> str:
    """What no two processes of the store have in common."""
    return str((await asyncio.to_thread(store.info, "server"))["run_id"])


async def _stop_store(fault: Fault, deployment: Deployment) -> None:
    await _stand_still([deployment.store.pid], fault.for_s)


async def _restart_store(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    before, written = await _life_of(store), len(store.log())
    await asyncio.to_thread(store.restart)
    _see(await _life_of(store) != before, "the store is the one of before")
    _see("bye bye" in store.log()[written:], "the store did not end in order")


async def _fill_disk(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    written = len(store.log())
    await asyncio.to_thread(store.fill_disk, 5000)
    # With fsync always a store that cannot write ends itself: it must not answer for what is not on disk.
    await _until(lambda: not store.running, "the store has met the full disk")
    await asyncio.sleep(fault.for_s)
    log = store.log()[written:]
    await asyncio.to_thread(store.start)
    _see("AOF write error" in log, f"the store ended for another reason:\n{log}")


async def _fill_memory(fault: Fault, deployment: Deployment) -> None:
    refused = await asyncio.to_thread(_count_errors, deployment.store, "OOM")
    await asyncio.to_thread(deployment.store.command, "CONFIG SET", "maxmemory", 1)
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        await asyncio.to_thread(deployment.store.command, "CONFIG SET", "maxmemory", NO_LIMIT)
    now_refused = await asyncio.to_thread(_count_errors, deployment.store, "OOM")
    _see(now_refused > refused, "nothing was refused for want of memory")


def _count_errors(store: FaultyStore, kind: str) -> int:
    """How often the store has answered with an error of this kind since its start."""
    return int(store.info("errorstats").get(f"errorstat_{kind}", {"count": 0})["count"])


async def _cut_store_answers(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.store_proxies[fault.which]
    await _cut(proxy.cut_answers, lambda: proxy.cuts)


async def _cut_service_answers(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.service_proxies[fault.which]
    await _cut(proxy.cut_answers, lambda: proxy.cuts)


async def _cut(cut_answers: Callable[[int], None], cuts: Callable[[], int]) -> None:
    wanted = cuts() + 4
    cut_answers(4)
    try:
        await _until(lambda: cuts() >= wanted, "answers were cut")
    finally:
        cut_answers(0)


async def _delay_store_answers(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.store_proxies[fault.which]
    before = proxy.held_back
    is_long = fault.for_s == BEYOND_STORE_TIMEOUT_S
    proxy.delay_answers(VERY_LATE_ANSWERS_S if is_long else LATE_ANSWERS_S)
    try:
        await asyncio.sleep(fault.for_s)
        await _until(lambda: proxy.held_back > before, "answers were late")
    finally:
        proxy.delay_answers(0)


async def _block_store(fault: Fault, deployment: Deployment) -> None:
    began_s = time.monotonic()
    await asyncio.to_thread(deployment.store.command, "DEBUG", "SLEEP", str(fault.for_s))
    _see(time.monotonic() - began_s >= fault.for_s, "the store did not sleep")


async def _pause_store(fault: Fault, deployment: Deployment) -> None:
    began_s = time.monotonic()
    await asyncio.to_thread(deployment.store.command, "CLIENT PAUSE", int(fault.for_s * 1000), "ALL")
    await asyncio.to_thread(deployment.store.command, "PING")  # which is answered when the pause is over
    _see(time.monotonic() - began_s >= fault.for_s - 0.05, "the store did not let clients wait")


async def _jump_clock(fault: Fault, deployment: Deployment) -> None:
    # One is always behind and the other ahead, so that the two never agree.
    shift_h = fault.jump_h if fault.which else -fault.jump_h
    service = deployment.services[fault.which]
    before_h = await asyncio.to_thread(clock_error_h, service.url)
    set_clock(deployment.clock_files[fault.which], shift_h)
    await _until(lambda: abs(clock_error_h(service.url) - shift_h) < CLOCK_READ_WITHIN_H, "the clock has jumped")
    _see(abs(before_h - shift_h) > CLOCK_READ_WITHIN_H, "the clock was there before")


async def _narrow_rights(fault: Fault, deployment: Deployment) -> None:
    store, right = deployment.store, RIGHTS_TAKEN[fault.which]
    refusals = f"lacks the rights +{right};"
    before = [service.output().count(refusals) for service in deployment.services]
    await asyncio.to_thread(store.command, "ACL LOG", "RESET")
    await asyncio.to_thread(store.command, "ACL SETUSER", USER, f"-{right}")
    try:
        await _until(
            lambda: all(
                service.output().count(refusals) > count
                for service, count in zip(deployment.services, before, strict=True)
            ),
            "both services have noticed",
        )
        await asyncio.sleep(fault.for_s)
    finally:
        await asyncio.to_thread(store.command, "ACL SETUSER", USER, f"+{right}")
    _see(bool(await asyncio.to_thread(store.command, "ACL LOG")), "the store refused nothing")


async def _flush_scripts(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    missed = await asyncio.to_thread(_count_errors, store, "NOSCRIPT")
    await asyncio.to_thread(store.command, "SCRIPT FLUSH")
    await _until(lambda: _count_errors(store, "NOSCRIPT") > missed, "a script was missed")


async def _break_keys(fault: Fault, deployment: Deployment) -> None:
    service, keys = deployment.services[KEYED], deployment.keys
    refused, read = (service.output().count(line) for line in ("the keys stay as they were", "keys were reloaded"))
    keys.write("[[key")
    try:
        await _until(lambda: service.output().count("the keys stay as they were") > refused, "the file was refused")
        await asyncio.to_thread(service.kill_workers)
        answers = [await asyncio.to_thread(_status, service, token) for token in (keys.tokens[KEY_NAME], "unknown")]
        _see(answers == [200, 401], f"the other worker processes answered {answers} to the old key and to none")
    finally:
        keys.write()
    await _until(lambda: service.output().count("keys were reloaded") > read, "the whole file was read")


def _status(service: ServiceProcess, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{service.url}/topics", headers=headers, trust_env=False, timeout=NOTICED_S).status_code


_BRINGERS: dict[FaultKind, Callable[[Fault, Deployment], Coroutine[Any, Any, None]]] = {
    FaultKind.KILL_SERVICE: _kill_service,
    FaultKind.STOP_SERVICE: _stop_service,
    FaultKind.KILL_TIMER_HOLDER: _kill_timer_holder,
    FaultKind.STOP_TIMER_HOLDER: _stop_timer_holder,
    FaultKind.KILL_CLIENT: _kill_client,
    FaultKind.STOP_CLIENT: _stop_client,
    FaultKind.KILL_WORKER: _kill_worker,
    FaultKind.STOP_WORKER: _stop_worker,
    FaultKind.KILL_STORE: _kill_store,
    FaultKind.STOP_STORE: _stop_store,
    FaultKind.RESTART_STORE: _restart_store,
    FaultKind.FILL_DISK: _fill_disk,
    FaultKind.FILL_MEMORY: _fill_memory,
    FaultKind.CUT_STORE_ANSWERS: _cut_store_answers,
    FaultKind.CUT_SERVICE_ANSWERS: _cut_service_answers,
    FaultKind.DELAY_STORE_ANSWERS: _delay_store_answers,
    FaultKind.BLOCK_STORE: _block_store,
    FaultKind.PAUSE_STORE: _pause_store,
    FaultKind.JUMP_CLOCK: _jump_clock,
    FaultKind.NARROW_RIGHTS: _narrow_rights,
    FaultKind.FLUSH_SCRIPTS: _flush_scripts,
    FaultKind.BREAK_KEYS: _break_keys,
}
