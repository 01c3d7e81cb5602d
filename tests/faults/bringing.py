"""How each kind of fault is brought to a deployment, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import redis

from tests.acceptance.service_process import ServiceProcess
from tests.faults.deployment import CLOCK_SHIFTS_H, Deployment, clock_error_h, set_clock
from tests.faults.plan import Fault, FaultKind
from tests.integration.store_servers import wait_until

DEAD_S = 0.3
"""How long what was killed stays so."""
NOTICED_S = 10.0
"""Within what time a fault that needs traffic, such as a full disk, is met by some."""
NO_LIMIT = 0
LATE_ANSWERS_S = 0.15


class FaultNotBrought(Exception):
    """The fault did not come about, so that nothing was shown."""


async def bring(fault: Fault, deployment: Deployment) -> None:
    """Bring a fault and end it. Raises FaultNotBrought."""
    await _BRINGERS[fault.kind](fault, deployment)


async def _kill_service(fault: Fault, deployment: Deployment) -> None:
    await _kill(deployment.services[fault.which])


async def _stop_service(fault: Fault, deployment: Deployment) -> None:
    await _stand_still(deployment.services[fault.which].process.pid, fault.for_s)


async def _kill_timer_holder(fault: Fault, deployment: Deployment) -> None:
    await _kill(deployment.services[await _timer_holder(deployment)])


async def _stop_timer_holder(fault: Fault, deployment: Deployment) -> None:
    await _stand_still(deployment.services[await _timer_holder(deployment)].process.pid, fault.for_s)


async def _timer_holder(deployment: Deployment) -> int:
    for _ in range(5):
        holder = await deployment.timer_holder()
        if holder is not None:
            return holder
    raise FaultNotBrought("no timer holds the lock")


async def _kill(service: ServiceProcess) -> None:
    service.kill()
    await asyncio.sleep(DEAD_S)
    await asyncio.to_thread(service.start)


async def _stand_still(pid: int, for_s: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _kill_client(fault: Fault, deployment: Deployment) -> None:
    deployment.clients[fault.which].kill()
    await asyncio.sleep(DEAD_S)
    deployment.clients[fault.which].start()


async def _stop_client(fault: Fault, deployment: Deployment) -> None:
    await _stand_still(deployment.clients[fault.which].process.pid, fault.for_s)


async def _kill_worker(fault: Fault, deployment: Deployment) -> None:
    deployment.worker.kill()
    await asyncio.sleep(DEAD_S)
    deployment.worker.start()


async def _stop_worker(fault: Fault, deployment: Deployment) -> None:
    await _stand_still(deployment.worker.process.pid, fault.for_s)


async def _kill_store(fault: Fault, deployment: Deployment) -> None:
    await asyncio.to_thread(deployment.store.kill)
    await asyncio.sleep(DEAD_S)
    await asyncio.to_thread(deployment.store.start)


async def _stop_store(fault: Fault, deployment: Deployment) -> None:
    await _stand_still(deployment.store.pid, fault.for_s)


async def _restart_store(fault: Fault, deployment: Deployment) -> None:
    await asyncio.to_thread(deployment.store.restart)


async def _fill_disk(fault: Fault, deployment: Deployment) -> None:
    store = deployment.store
    written = len(store.log())
    await asyncio.to_thread(store.fill_disk, 5000)
    # With fsync always a store that cannot write ends itself: it must not answer for what is not on disk.
    await asyncio.to_thread(wait_until, lambda: not store.running, NOTICED_S, "the store has met the full disk")
    if "AOF write error" not in store.log()[written:]:
        raise FaultNotBrought(f"the store ended for another reason:\n{store.log()[written:]}")
    await asyncio.sleep(fault.for_s)
    await asyncio.to_thread(store.start)


async def _fill_memory(fault: Fault, deployment: Deployment) -> None:
    refused = await _refused_for_memory(deployment)
    await asyncio.to_thread(deployment.store.command, "CONFIG SET", "maxmemory", 1)
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        await asyncio.to_thread(deployment.store.command, "CONFIG SET", "maxmemory", NO_LIMIT)
    if await _refused_for_memory(deployment) == refused:
        raise FaultNotBrought("nothing was refused for want of memory")


async def _refused_for_memory(deployment: Deployment) -> int:
    def read() -> int:
        with deployment.store.client() as client:
            return int(client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])

    return await asyncio.to_thread(read)


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
        await asyncio.to_thread(wait_until, lambda: cuts() >= wanted, NOTICED_S, "answers were cut")
    except TimeoutError as exc:
        raise FaultNotBrought(str(exc)) from exc
    finally:
        cut_answers(0)


async def _delay_store_answers(fault: Fault, deployment: Deployment) -> None:
    proxy = deployment.store_proxies[fault.which]
    proxy.delay_answers(LATE_ANSWERS_S)
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        proxy.delay_answers(0)


async def _block_store(fault: Fault, deployment: Deployment) -> None:
    with contextlib.suppress(redis.TimeoutError):
        await asyncio.to_thread(deployment.store.command, "DEBUG", "SLEEP", str(fault.for_s))


async def _pause_store(fault: Fault, deployment: Deployment) -> None:
    await asyncio.to_thread(deployment.store.command, "CLIENT PAUSE", int(fault.for_s * 1000), "ALL")
    await asyncio.sleep(fault.for_s)


async def _jump_clock(fault: Fault, deployment: Deployment) -> None:
    shift_h = CLOCK_SHIFTS_H[fault.which] + fault.jump_h
    set_clock(deployment.clock_files[fault.which], shift_h)
    service = deployment.services[fault.which]
    await asyncio.to_thread(
        wait_until, lambda: abs(clock_error_h(service.url) - shift_h) < 0.1, NOTICED_S, "the clock has jumped"
    )


async def _flush_scripts(fault: Fault, deployment: Deployment) -> None:
    await asyncio.to_thread(deployment.store.command, "SCRIPT FLUSH")


_BRINGERS: dict[FaultKind, Callable[[Fault, Deployment], Awaitable[None]]] = {
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
    FaultKind.FLUSH_SCRIPTS: _flush_scripts,
}
