"""A worker as a program, for tests that send it signals: `python -m tests.acceptance.worker.worker_program ...`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from deferd import Context, Worker
from deferd.worker import worker as worker_module
from deferd.worker import worker_run


def main() -> int:
    """Work on the topics below TOPIC; a job runs for as many seconds as its body says, or until that file exists.

    Handlers write a line when they begin, when they end and when they are cancelled. Those of `TOPIC.stubborn` and
    `TOPIC.stubborn-plain` ignore that they are cancelled.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("--grace", type=float, default=30)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--without-signal-handlers", action="store_true", help="like the event loops of Windows")
    parser.add_argument("--short-waits", action="store_true", help="shorten the waits of a stop to tenths of a second")
    options = parser.parse_args()
    if options.without_signal_handlers:
        asyncio.new_event_loop = LoopWithoutSignalHandlers
    if options.short_waits:
        worker_run._CLEANUP_S = worker_run._LAST_REPORTS_S = worker_module._LEFT_TASKS_S = 0.3
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    worker = Worker(options.url, grace=options.grace, concurrency=options.concurrency)

    @worker.handler(f"{options.topic}.async")
    async def take_time(until: float | str, context: Context) -> str:
        write_line(f"began {context.job.id}")
        is_over = end_of(until)
        try:
            while not is_over():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            write_line(f"cancelled {context.job.id}")
            raise
        write_line(f"ended {context.job.id}")
        return "done"

    @worker.handler(f"{options.topic}.plain")
    def take_time_in_thread(until: float | str, context: Context) -> str:
        write_line(f"began {context.job.id}")
        is_over = end_of(until)
        while not is_over():
            if context.cancelled:
                write_line(f"cancelled {context.job.id}")
                break
            time.sleep(0.01)
        else:
            write_line(f"ended {context.job.id}")
        return "done"

    @worker.handler(f"{options.topic}.stubborn")
    async def take_time_regardless(seconds: float, context: Context) -> None:
        write_line(f"began {context.job.id}")
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left_s)
            except asyncio.CancelledError:
                write_line(f"ignored {context.job.id}")

    @worker.handler(f"{options.topic}.forks")
    async def fork(way: str, context: Context) -> int:
        return WAYS_TO_FORK[way](context)

    @worker.handler(f"{options.topic}.forks-plain")
    def fork_in_thread(way: str, context: Context) -> int:
        return WAYS_TO_FORK[way](context)

    @worker.handler(f"{options.topic}.stubborn-plain")
    def take_time_regardless_in_thread(seconds: float, context: Context) -> None:
        write_line(f"began {context.job.id}")
        time.sleep(seconds)

    return worker.run()


def terminate_child(_context: Context) -> int:
    """Fork as multiprocessing does by default before Python 3.14, end the child, and return its exit code."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def return_in_child(context: Context) -> int:
    """Fork, and return in both processes; in this one the exit code of the child."""
    child = os.fork()
    if child == 0:
        return 1
    assert not context.cancelled
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def raise_in_child(_context: Context) -> int:
    """As `return_in_child`, but an exception is raised in the child."""
    child = os.fork()
    if child == 0:
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def leave_child(_context: Context) -> int:
    """Fork a child that outlives the worker, and return its process id."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
    return child


WAYS_TO_FORK: dict[str, Callable[[Context], int]] = {
    "terminate": terminate_child,
    "return": return_in_child,
    "raise": raise_in_child,
    "leave": leave_child,
}


class LoopWithoutSignalHandlers(asyncio.SelectorEventLoop):
    """An event loop that cannot handle signals, as on Windows."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> NoReturn:
        raise NotImplementedError

    def remove_signal_handler(self, sig: int) -> NoReturn:
        raise NotImplementedError


def end_of(until: float | str) -> Callable[[], bool]:
    """Whether a handler that began now may end: after so many seconds, or when there is a file with this name."""
    if isinstance(until, str):
        return Path(until).exists
    end_s = time.monotonic() + until
    return lambda: time.monotonic() >= end_s


def write_line(line: str) -> None:
    """Write a line to the test, in one call because threads write concurrently."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
