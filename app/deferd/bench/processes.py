"""The load-generating processes, separate from the one that draws the progress bars, which would cost lateness."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from deferd.bench.steps import BenchFailed, ClockOffset, Step, StepContext, StepResult, bench_error
from deferd.contract.errors import DeferdError

_START_S = 60.0
_REPORT_EVERY_S = 0.1
_OVERDUE_S = 5.0
"""How long after the time limit of a step a process may report that it has ended."""
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class _StepOrder:
    step: Step
    within_s: float


@dataclass(frozen=True, slots=True)
class _Ready:
    """The process has started."""


@dataclass(frozen=True, slots=True)
class _Progress:
    done: int


@dataclass(frozen=True, slots=True)
class _Failed:
    reason: str


class LoadProcesses:
    """The load-generating processes; a context manager that starts and ends them."""

    def __init__(self, count: int, url: str, clock: ClockOffset) -> None:
        self._count = count
        self._arguments = url, clock
        self._started: dict[Connection, SpawnProcess] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        with _interrupts_ignored():  # the processes inherit that: the parent handles Ctrl-C
            for number in range(self._count):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_run_steps, args=(*self._arguments, theirs), name=f"load-{number}", daemon=True
                )
                process.start()
                theirs.close()
                self._started[ours] = process
        for connection in self._started:
            if not connection.poll(_START_S) or not isinstance(_received(connection), _Ready):
                raise BenchFailed("a load-generating process did not start")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """End the processes at once."""
        for connection, process in self._started.items():
            process.terminate()
            connection.close()
        for process in self._started.values():
            process.join(_END_S)
            if process.exitcode is None:
                process.kill()
                process.join(_END_S)
        self._started.clear()

    def run(self, steps: Sequence[Step], *, within_s: float, on_progress: Callable[[int], None]) -> list[StepResult]:
        """Run one step in each process, concurrently, and return their results.

        `on_progress` is called repeatedly with the jobs or calls done so far. Raises BenchFailed when a step fails or
        takes more than `within_s` seconds.
        """
        done = dict.fromkeys(self._started, 0)
        results: dict[Connection, StepResult] = {}
        for connection, step in zip(self._started, steps, strict=True):
            connection.send(_StepOrder(step, within_s))
        deadline_s = time.monotonic() + within_s + _OVERDUE_S
        while len(results) < len(self._started):
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"a load-generating process did not end within {within_s:.0f} s")
            pending = [connection for connection in self._started if connection not in results]
            ready = wait(pending, timeout=_REPORT_EVERY_S)
            for connection in (one for one in pending if one in ready):
                message = _received(connection)
                if isinstance(message, _Failed):
                    raise BenchFailed(message.reason)
                if isinstance(message, _Progress):
                    done[connection] = message.done
                elif isinstance(message, StepResult):
                    results[connection] = message
            on_progress(sum(done.values()))
        return [results[connection] for connection in self._started]


def _received(connection: Connection) -> object:
    try:
        return connection.recv()
    except (EOFError, OSError):
        raise BenchFailed("a load-generating process ended unexpectedly") from None


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_steps(url: str, clock: ClockOffset, connection: Connection) -> None:
    """Main function of a load-generating process: run steps until the parent ends it or exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # loaded modules stay: collecting them would pause the load
    context = StepContext(url, clock)
    with contextlib.suppress(EOFError, OSError), asyncio.Runner() as runner:
        connection.send(_Ready())
        try:
            while True:
                order = connection.recv()
                connection.send(runner.run(_run_step(order, context, connection)))
        finally:
            runner.run(context.close())


async def _run_step(order: _StepOrder, context: StepContext, connection: Connection) -> StepResult | _Failed:
    """Run the step and report its progress. Sending to a parent that has exited ends it with an OSError."""
    context.done = 0
    work = asyncio.ensure_future(order.step.run(context))
    deadline_s = time.monotonic() + order.within_s
    try:
        while not work.done() and time.monotonic() < deadline_s:
            await asyncio.wait({work}, timeout=_REPORT_EVERY_S)
            connection.send(_Progress(context.done))
        if not work.done():
            return _Failed(f"not done within {order.within_s:.0f} s, {context.done} so far")
        return work.result()
    except BenchFailed as failure:
        return _Failed(str(failure))
    except DeferdError as failure:
        return _Failed(str(bench_error(failure, context.url)))
    finally:
        work.cancel()
