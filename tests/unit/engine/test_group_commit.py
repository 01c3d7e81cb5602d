"""Group commit: which items share a call, and what each caller gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

import pytest

from deferd.contract.errors import StoreUnavailable, TooLate
from deferd.engine.group_commit import GroupCommit
from deferd.engine.scripts import request_ending_at, request_ends_at_s
from deferd.store.pipeline import CallTooLate


class GatedStore:
    """Holds each call until its gate opens; records the items."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.gate = asyncio.Event()
        self.fails_at: int | None = None

    async def send(self, topic: str, items: list[str]) -> Sequence[str]:
        self.calls.append((topic, list(items)))
        await self.gate.wait()
        if self.fails_at == len(self.calls):
            raise ValueError("away")
        return [item.upper() for item in items]


@pytest.fixture
async def store() -> GatedStore:
    return GatedStore()


def submitting(commit: GroupCommit[str, str], *items: str, topic: str = "t") -> list[asyncio.Task[str]]:
    return [asyncio.create_task(commit.submit(topic, item)) for item in items]


async def run_loop(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_single_call_is_sent_at_once(store: GatedStore) -> None:
    store.gate.set()
    assert await GroupCommit(store.send, size=len).submit("t", "a") == "A"
    assert store.calls == [("t", ["a"])]


async def test_items_that_arrive_during_a_call_share_the_next_one(store: GatedStore) -> None:
    commit = GroupCommit(store.send, size=len)
    first = submitting(commit, "a")
    await run_loop()
    later = submitting(commit, "b", "c", "d")
    await run_loop()
    assert store.calls == [("t", ["a"])]
    store.gate.set()
    assert await asyncio.gather(*first, *later) == ["A", "B", "C", "D"]
    assert store.calls == [("t", ["a"]), ("t", ["b", "c", "d"])]


async def test_topics_do_not_wait_for_each_other(store: GatedStore) -> None:
    commit = GroupCommit(store.send, size=len)
    tasks = submitting(commit, "a", topic="t") + submitting(commit, "b", topic="u")
    await run_loop()
    assert store.calls == [("t", ["a"]), ("u", ["b"])]
    store.gate.set()
    await asyncio.gather(*tasks)


async def test_a_call_is_bounded_in_items_and_in_bytes(store: GatedStore) -> None:
    commit = GroupCommit(store.send, size=len, most_items=3, most_bytes=10)
    tasks = submitting(commit, "0", "a", "b", "c", "d", "eeeeeeeee", "ff", "g" * 99, "h")
    await run_loop()
    store.gate.set()
    await asyncio.gather(*tasks)
    bounded = [["a", "b", "c"], ["d", "eeeeeeeee"], ["ff"], ["g" * 99], ["h"]]
    assert [items for _, items in store.calls] == [["0"], *bounded]


async def test_an_error_is_raised_to_all_in_the_call_and_to_no_others(store: GatedStore) -> None:
    commit = GroupCommit(store.send, size=len, most_items=2)
    store.fails_at = 2
    tasks = submitting(commit, "0", "a", "b", "c")
    await run_loop()
    store.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["0", "away", "away", "C"]
    assert store.calls == [("t", ["0"]), ("t", ["a", "b"]), ("t", ["c"])]


@pytest.mark.parametrize("gives_up", [0, 1])
async def test_a_cancelled_caller_does_not_affect_the_others(store: GatedStore, gives_up: int) -> None:
    commit = GroupCommit(store.send, size=len)
    tasks = submitting(commit, "a", "b", "c")
    await run_loop()
    tasks[gives_up].cancel()
    await run_loop()
    store.gate.set()
    assert await tasks[2] == "C"
    assert tasks[gives_up].cancelled()


async def test_nothing_is_kept_after_a_topic_is_served(store: GatedStore) -> None:
    store.gate.set()
    commit = GroupCommit(store.send, size=len)
    await commit.submit("t", "a")
    await run_loop()
    assert commit._waiting == {}
    assert commit._tasks == set()


async def test_a_result_that_is_too_short_fails_the_items_it_leaves_out_and_no_later_ones(store: GatedStore) -> None:
    async def send(topic: str, items: list[str]) -> Sequence[str]:
        results = await store.send(topic, items)
        return results if len(store.calls) != 2 else results[:-1]

    commit = GroupCommit(send, size=len)
    first = submitting(commit, "a")
    await run_loop()
    later = submitting(commit, "b", "c")
    await run_loop()
    store.gate.set()
    assert await asyncio.gather(*first) == ["A"]
    results = await asyncio.gather(*later, return_exceptions=True)
    assert "B" == results[0]
    assert isinstance(results[1], ValueError)
    assert await commit.submit("t", "d") == "D"


async def test_items_that_are_added_in_one_turn_share_a_call(store: GatedStore) -> None:
    results: list[tuple[str | None, Exception | None]] = []
    commit = GroupCommit(store.send, size=len)
    commit.add("t", "a", lambda *result: results.append(result))
    commit.add("t", "b", lambda *result: results.append(result))
    store.gate.set()
    await run_loop()
    assert store.calls == [("t", ["a", "b"])]
    assert results == [("A", None), ("B", None)]
    assert commit._waiting == {}


async def test_a_callback_that_fails_does_not_affect_the_others(
    store: GatedStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_result: str | None, _error: Exception | None) -> None:
        raise ValueError("a bug")

    store.gate.set()
    commit = GroupCommit(store.send, size=len)
    commit.add("t", "a", fail)
    assert await commit.submit("t", "b") == "B"
    assert "the result of a store call could not be handled" in caplog.text


async def test_a_request_that_ends_soon_does_not_end_the_call_of_others(store: GatedStore) -> None:
    """It is not sent with them; and if a call came too late for one of them, the others are sent again."""
    too_late = StoreUnavailable("too late")
    too_late.__cause__ = CallTooLate("TOOLATE 1")
    ends_s: list[float] = []

    async def send(topic: str, items: list[str]) -> Sequence[str]:
        ends_s.append(request_ends_at_s())
        results = await store.send(topic, items)
        if "soon" in items:
            while loop.time() < soon_s:
                await asyncio.sleep(0)
            raise too_late
        return results

    loop = asyncio.get_running_loop()
    commit = GroupCommit(send, size=len)
    first = submitting(commit, "first")
    await run_loop()
    soon_s = loop.time() + 0.1
    later: list[asyncio.Task[str]] = []
    for item, ends_at_s in ("ended", loop.time()), ("soon", soon_s), ("later", soon_s + 60), ("never", inf):
        with request_ending_at(ends_at_s):
            later += submitting(commit, item)
            await run_loop()
    store.gate.set()

    async with asyncio.timeout(10):
        results = await asyncio.gather(*first, *later, return_exceptions=True)
    assert [str(result) for result in results] == ["FIRST", str(TooLate()), "too late", "LATER", "NEVER"]
    assert [items for _, items in store.calls] == [["first"], ["soon", "later", "never"], ["later", "never"]]
    assert ends_s == [inf, soon_s, soon_s + 60]
