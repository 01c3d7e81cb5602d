"""Threads whose calls share requests, when an exception from outside ends one of them at the worst moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deferd.client.batching import CallGroup
from deferd.client.blocking_batching import BlockingBatching, _ThreadGroup, _Waiter
from deferd.client.blocking_transport import run_blocking
from tests.unit.client.test_batching import Echo, EchoKind
from tests.waiting import wait_until


def call_in_thread(batching: BlockingBatching, kind: EchoKind, number: int) -> int:
    return run_blocking(batching.run(kind, "t", Echo(number, kind)))


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
