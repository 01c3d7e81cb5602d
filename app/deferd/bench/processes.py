"""The processes that generate load, apart from the one that draws the progress bar: drawing must not cost lateness."""

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

from deferd.bench.errors import BenchFailed, explained
from deferd.bench.service_clock import Clock
from deferd.bench.steps import Outcome, Site, Step
from deferd.contract.errors import DeferdError

_START_S = 60.0
_REPORT_EVERY_S = 0.1
_OVERDUE_S = 5.0
"""How long after the bound of a step a process may say that it has kept to it."""
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class _Order:
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


class Processes:
    """So many load-generating processes; a context that starts and ends them."""

    def __init__(self, count: int, url: str, clock: Clock) -> None:
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
        with _interrupts_ignored():  # and the processes keep it so: Ctrl-C is the parent's to act on
            for number in range(self._count):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_serve_orders, args=(*self._arguments, theirs), name=f"load-{number}", daemon=True
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
        """End them at once, whatever they do."""
        for connection, process in self._started.items():
            process.terminate()
            connection.close()
        for process in self._started.values():
            process.join(_END_S)
            if process.exitcode is None:
                process.kill()
                process.join(_END_S)
        self._started.clear()

    def run(self, steps: Sequence[Step], *, within_s: float, on_progress: Callable[[int], None]) -> list[Outcome]:
        """Let each process run its step, all at the same time, and return what they did.

        `on_progress` is told again and again how much all have done so far. Raises BenchFailed when one fails, or has
        not ended within so many seconds.
        """
        done = dict.fromkeys(self._started, 0)
        outcomes: dict[Connection, Outcome] = {}
        for connection, step in zip(self._started, steps, strict=True):
            connection.send(_Order(step, within_s))
        deadline_s = time.monotonic() + within_s + _OVERDUE_S
        while len(outcomes) < len(self._started):
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"a load-generating process hangs: it did not end within {within_s:.0f} s")
            pending = [connection for connection in self._started if connection not in outcomes]
            heard = wait(pending, timeout=_REPORT_EVERY_S)
            for connection in (one for one in pending if one in heard):
                message = _received(connection)
                if isinstance(message, _Failed):
                    raise BenchFailed(message.reason)
                if isinstance(message, _Progress):
                    done[connection] = message.done
                elif isinstance(message, Outcome):
                    outcomes[connection] = message
            on_progress(sum(done.values()))
        return [outcomes[connection] for connection in self._started]


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


def _serve_orders(url: str, clock: Clock, connection: Connection) -> None:
    """What such a process does: a step for each order, until its parent ends it or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # what is loaded stays: looking at it again and again would pause the load
    site = Site(url, clock)
    with contextlib.suppress(EOFError, OSError), asyncio.Runner() as runner:
        connection.send(_Ready())
        try:
            while True:
                order = connection.recv()
                connection.send(runner.run(_carry_out(order, site, connection)))
        finally:
            runner.run(site.close())


async def _carry_out(order: _Order, site: Site, connection: Connection) -> Outcome | _Failed:
    """Run the step, and say now and then how far it is. A parent that is gone ends it with an OSError."""
    site.done = 0
    work = asyncio.ensure_future(order.step.run(site))
    deadline_s = time.monotonic() + order.within_s
    try:
        while not work.done() and time.monotonic() < deadline_s:
            await asyncio.wait({work}, timeout=_REPORT_EVERY_S)
            connection.send(_Progress(site.done))
        if not work.done():
            return _Failed(f"not done within {order.within_s:.0f} s, {site.done} so far")
        return work.result()
    except BenchFailed as failure:
        return _Failed(str(failure))
    except DeferdError as failure:
        return _Failed(str(explained(failure, site.url)))
    finally:
        work.cancel()
