"""Plain functions in daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time

import pytest

from deferd.worker.handler_threads import DaemonThreads


async def test_functions_run_concurrently_in_threads_that_are_reused() -> None:
    threads = DaemonThreads(asyncio.get_running_loop())
    together = threading.Barrier(3)

    def meet() -> int:
        together.wait(10)
        return threading.get_ident()

    first = await asyncio.gather(*(threads.run(meet) for _ in range(3)))
    again = await asyncio.gather(*(threads.run(meet) for _ in range(3)))
    assert len(set(first)) == 3
    assert set(again) == set(first)
    threads.close()


async def test_context_variables_and_exceptions_pass_between_threads() -> None:
    threads = DaemonThreads(asyncio.get_running_loop())
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")
    assert await threads.run(variable.get) == "mine"
    with pytest.raises(SystemExit):
        await threads.run(sys.exit)
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: "goes on") == "goes on"
    threads.close()


async def test_a_cancelled_caller_does_not_interrupt_its_thread() -> None:
    threads = DaemonThreads(asyncio.get_running_loop())
    began, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        may_end.wait(10)

    call = asyncio.create_task(threads.run(wait))
    await asyncio.to_thread(began.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    may_end.set()
    assert await threads.run(lambda: 1) == 1
    threads.close()


def test_the_interpreter_exits_while_a_function_hangs() -> None:
    program = """
import asyncio, time
from deferd.worker.handler_threads import DaemonThreads

async def main():
    threads = DaemonThreads(asyncio.get_running_loop())
    hanging = asyncio.create_task(threads.run(lambda: time.sleep(600)))
    await asyncio.sleep(0)

asyncio.run(main())
"""
    began_s = time.monotonic()
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0
    assert time.monotonic() - began_s < 30
