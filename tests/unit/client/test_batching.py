"""How calls are joined into batches, with a kind of call that needs no service."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deferd.client.batching import (
    AT_ONCE,
    HOLD_S,
    MOST_BYTES,
    MOST_BYTES_OF_ONE,
    MOST_JOBS,
    AsyncBatching,
    BlockingBatching,
    Call,
    CallGroup,
    _ThreadGroup,
    _Waiter,
)
from deferd.client.blocking_transport import run_blocking
from tests.waiting import until, wait_until


class Echo(Call[int]):
    """A call whose result is its number."""

    def __init__(self, number: int, kind: EchoKind, size: int = 10) -> None:
        super().__init__()
        self.number = number
        self.kind = kind
        self.size = size

    def json(self) -> bytes:
        return b"x" * self.size

    async def send_alone(self) -> int:
        self.kind.alone.append((self.number, self.doubtful))
        await self.kind.pause()
        return self.number


class EchoKind:
    def __init__(self, pause: Callable[[], object] | None = None) -> None:
        self.most_jobs, self.most_bytes = MOST_JOBS, MOST_BYTES
        self.alone: list[tuple[int, bool]] = []
        self.batches: list[list[int]] = []
        self.fails: Callable[[], None] = lambda: None
        self._pause = pause

    async def pause(self) -> None:
        if self._pause is None:
            await asyncio.sleep(0.001)
        else:
            self._pause()

    async def send_batch(self, calls: list[Echo]) -> None:
        self.batches.append([call.number for call in calls])
        await self.pause()
        self.fails()
        for call in calls:
            call.succeed(call.number)


class Gate:
    """Holds up the requests of an event loop until it is opened."""

    def __init__(self, kind: EchoKind) -> None:
        self.opened = asyncio.Event()
        kind.pause = self._wait  # type: ignore[method-assign]

    async def _wait(self) -> None:
        await self.opened.wait()


async def test_a_call_alone_is_sent_in_its_own_task_at_once() -> None:
    kind, batching = EchoKind(), AsyncBatching()
    tasks = asyncio.all_tasks()
    for number in range(5):
        assert await batching.run(kind, "t", Echo(number, kind)) == number
    assert [(number, False) for number in range(5)] == kind.alone
    assert kind.batches == []
    assert asyncio.all_tasks() == tasks


async def test_tasks_that_call_again_and_again_share_two_equal_batches() -> None:
    kind, batching = EchoKind(), AsyncBatching()

    async def call(number: int) -> None:
        for _ in range(20):
            assert await batching.run(kind, "t", Echo(number, kind)) == number

    await asyncio.gather(*(call(number) for number in range(64)))
    sizes = [len(batch) for batch in kind.batches]
    assert len(kind.alone) <= 3
    assert sum(sizes) + len(kind.alone) == 64 * 20
    assert sum(sizes) / len(sizes) > 28
    assert max(sizes) <= 33


async def test_batches_keep_to_their_bounds() -> None:
    kind, batching = EchoKind(), AsyncBatching()
    sizes = [20_000] * 200 + [10] * 2500
    random.Random(1).shuffle(sizes)
    calls = [Echo(number, kind, size) for number, size in enumerate(sizes)]
    assert [*range(len(sizes))] == await asyncio.gather(*(batching.run(kind, "t", call) for call in calls))
    assert max(len(batch) for batch in kind.batches) <= MOST_JOBS
    assert max(sum(sizes[number] + 1 for number in batch) for batch in kind.batches) <= MOST_BYTES
    assert [*range(1, len(sizes))] == [number for batch in kind.batches for number in batch]


async def test_a_large_call_and_one_of_another_key_or_kind_do_not_wait() -> None:
    kind, other_kind, batching = EchoKind(), EchoKind(), AsyncBatching()
    gate = Gate(kind)
    waiting = [asyncio.create_task(batching.run(kind, "t", Echo(number, kind))) for number in range(8)]
    await until(lambda: len(kind.batches) == 1, "a batch is under way")
    large = asyncio.create_task(batching.run(kind, "t", Echo(100, kind, MOST_BYTES_OF_ONE + 1)))
    other_key = asyncio.create_task(batching.run(kind, "u", Echo(101, kind)))
    assert await batching.run(other_kind, "t", Echo(102, other_kind)) == 102
    await until(lambda: {100, 101} <= {number for number, _ in kind.alone}, "both are sent")
    gate.opened.set()
    assert [*range(8)] == await asyncio.gather(*waiting)
    assert (await large, await other_key) == (100, 101)


async def test_requests_that_take_too_long_stop_holding_up_others() -> None:
    kind, batching = EchoKind(), AsyncBatching()
    gate = Gate(kind)
    hanging = [asyncio.create_task(batching.run(kind, "t", Echo(number, kind))) for number in range(20)]
    began_s = time.monotonic()
    await until(lambda: len(kind.batches) > 1, "the last calls are sent", within_s=5)
    assert HOLD_S * 0.9 < time.monotonic() - began_s < 4 * HOLD_S
    gate.opened.set()
    assert [*range(20)] == await asyncio.gather(*hanging)


@pytest.mark.parametrize("wake_first", [False, True])
async def test_a_call_cancelled_when_its_turn_has_come_passes_it_on(*, wake_first: bool) -> None:
    kind, batching = EchoKind(), AsyncBatching()
    gate = Gate(kind)
    first = asyncio.create_task(batching.run(kind, "t", Echo(0, kind)))
    await asyncio.sleep(0)
    second = asyncio.create_task(batching.run(kind, "t", Echo(1, kind)))
    await asyncio.sleep(0)  # it waits; its turn comes with the next callback of the loop
    if wake_first:
        [group] = batching._groups.values()
        await until(lambda: len(group.slots) == AT_ONCE, "its turn has come", within_s=5)
    second.cancel()
    await asyncio.wait([second])
    third = asyncio.create_task(batching.run(kind, "t", Echo(2, kind)))
    await until(lambda: (2, False) in kind.alone, "the next call is sent", within_s=HOLD_S / 2)
    gate.opened.set()
    assert (await first, await third) == (0, 2)


async def test_a_batch_whose_task_is_cancelled_is_sent_again_call_by_call() -> None:
    kind, batching = EchoKind(), AsyncBatching()
    gate = Gate(kind)
    calls = [asyncio.create_task(batching.run(kind, "t", Echo(number, kind))) for number in range(3)]
    await until(lambda: kind.batches == [[1, 2]], "the batch is under way")
    [group] = batching._groups.values()
    [task] = group._tasks
    task.cancel()
    gate.opened.set()
    assert [0, 1, 2] == await asyncio.gather(*calls)
    assert kind.alone == [(0, False), (1, True), (2, True)]


def test_calls_of_a_second_loop_are_not_mixed_with_those_of_the_first() -> None:
    kind, batching = EchoKind(), AsyncBatching()

    async def main() -> None:
        gate = Gate(kind)
        calls = [asyncio.create_task(batching.run(kind, "t", Echo(number, kind))) for number in range(9)]
        await until(lambda: bool(kind.batches), "a batch is under way")
        if threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as other:
                other.submit(asyncio.run, main()).result(timeout=10)
        gate.opened.set()
        assert [*range(9)] == await asyncio.gather(*calls)

    asyncio.run(main())


def call_in_thread(batching: BlockingBatching, kind: EchoKind, number: int) -> int:
    return run_blocking(batching.run(kind, "t", Echo(number, kind)))


def test_threads_share_batches_and_each_has_its_result() -> None:
    kind, batching = EchoKind(lambda: time.sleep(0.002)), BlockingBatching()
    with ThreadPoolExecutor(24) as threads:
        results = [*threads.map(lambda number: call_in_thread(batching, kind, number), range(1000))]
    assert results == [*range(1000)]
    sent = [number for batch in kind.batches for number in batch] + [number for number, _ in kind.alone]
    assert sorted(sent) == [*range(1000)]
    assert len(kind.batches) + len(kind.alone) < 700


def test_an_exception_in_the_thread_that_sends_a_batch_leaves_the_others_going() -> None:
    """Such as one that a task queue raises in a thread whose time is up."""
    opened = threading.Event()
    kind, batching = EchoKind(lambda: opened.wait(10)), BlockingBatching()

    def fail() -> None:
        kind.fails = lambda: None
        raise SystemExit

    kind.fails = fail
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(call_in_thread, batching, kind, number) for number in range(8)]
        wait_until(lambda: bool(kind.batches), 5, "a batch is under way")
        opened.set()
        wait_until(lambda: all(call.done() for call in calls), 5, "all calls have ended")
    ended = [call for call in calls if isinstance(call.exception(), SystemExit)]
    assert len(ended) == 1
    assert sorted([*(call.result() for call in calls if call not in ended), calls.index(ended[0])]) == [*range(8)]
    assert any(is_doubtful for _, is_doubtful in kind.alone)


def test_the_main_thread_sends_no_batch() -> None:
    opened = threading.Event()
    senders: list[threading.Thread] = []
    kind, batching = EchoKind(lambda: opened.wait(10)), BlockingBatching()
    kind.fails = lambda: senders.append(threading.current_thread())
    with ThreadPoolExecutor(6) as threads:
        calls = [threads.submit(call_in_thread, batching, kind, number) for number in range(2)]
        wait_until(lambda: len(kind.alone) == 2, 5, "two requests are under way")
        calls += [threads.submit(call_in_thread, batching, kind, number) for number in range(2, 5)]
        threading.Timer(0.1, opened.set).start()
        assert call_in_thread(batching, kind, 5) == 5
        assert [*range(5)] == [call.result() for call in calls]
    assert threading.main_thread() not in senders


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_calls_of_its_parent() -> None:
    opened = threading.Event()
    kind, batching = EchoKind(lambda: opened.wait(10)), BlockingBatching()
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(call_in_thread, batching, kind, number) for number in range(4)]
        wait_until(lambda: bool(kind.batches or len(kind.alone) == AT_ONCE), 5, "requests are under way")
        child = os.fork()
        if not child:
            kind._pause = lambda: None
            os._exit(0 if call_in_thread(batching, kind, 7) == 7 else 1)
        _, status = os.waitpid(child, 0)
        opened.set()
        assert [*range(4)] == [call.result() for call in calls]
    assert os.waitstatus_to_exitcode(status) == 0


class Fault:
    """Raises KeyboardInterrupt once, before or after a method of the threads' groups."""

    def __init__(self, owner: type, name: str, patch: pytest.MonkeyPatch, *, after: bool) -> None:
        method: Callable[..., Any] = getattr(owner, name)
        self.is_planned = False

        def faulty(*args: Any, **named: Any) -> Any:
            strikes = self.is_planned and self.strikes(*args)
            if strikes:
                self.is_planned = False
            if strikes and not after:
                raise KeyboardInterrupt
            result = method(*args, **named)
            if strikes:
                raise KeyboardInterrupt
            return result

        self.strikes: Callable[..., bool] = lambda *_: True
        patch.setattr(owner, name, faulty)


@pytest.mark.parametrize(
    ("owner", "name", "after"), [(CallGroup, "take", True), (CallGroup, "begin", False), (_ThreadGroup, "_end", True)]
)
def test_threads_whose_calls_an_interrupted_thread_took_go_on(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, after: bool
) -> None:
    fault = Fault(owner, name, monkeypatch, after=after)
    if name == "begin":
        fault.strikes = lambda _, count: count > 1
    if name == "_end":
        fault.strikes = lambda _, slot: slot.count > 1
    opened = threading.Event()
    kind, batching = EchoKind(lambda: opened.wait(10)), BlockingBatching()
    with ThreadPoolExecutor(12) as threads:
        calls = [threads.submit(call_in_thread, batching, kind, number) for number in range(2)]
        wait_until(lambda: len(kind.alone) == 2, 5, "two requests are under way")
        calls += [threads.submit(call_in_thread, batching, kind, number) for number in range(2, 10)]
        [group] = batching._groups.values()
        wait_until(lambda: len(group.waiting) == 8, 5, "the others wait")
        fault.is_planned = True
        opened.set()
        wait_until(lambda: all(call.done() for call in calls), 5, "all calls have ended")
    assert not fault.is_planned
    ended = [call for call in calls if isinstance(call.exception(), KeyboardInterrupt)]
    assert len(ended) == 1
    assert [number for number, call in enumerate(calls) if call not in ended and call.result() != number] == []


def test_threads_do_not_wait_for_a_thread_that_is_gone() -> None:
    """Its exception came before the first statement of its own."""
    opened = threading.Event()
    kind, batching = EchoKind(lambda: opened.wait(10)), BlockingBatching()
    with ThreadPoolExecutor(12) as threads:
        calls = [threads.submit(call_in_thread, batching, kind, number) for number in range(2)]
        wait_until(lambda: len(kind.alone) == 2, 5, "two requests are under way")
        [group] = batching._groups.values()
        gone = Echo(99, kind)

        def wait_and_go() -> None:
            gone.wait(_Waiter())
            with group._lock:
                group.waiting.append(gone)

        thread = threading.Thread(target=wait_and_go)
        thread.start()
        thread.join()
        calls += [threads.submit(call_in_thread, batching, kind, number) for number in range(2, 10)]
        wait_until(lambda: len(group.waiting) == 9 or bool(kind.batches), 5, "the others wait")
        opened.set()
        wait_until(lambda: all(call.done() for call in calls), 5, "all calls have ended")
    assert [call.result() for call in calls] == [*range(10)]
