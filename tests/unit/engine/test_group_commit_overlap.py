"""Group commit: the store works on the next call while the results of the last one are handed out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from deferd.engine.group_commit import GroupCommit


class ScriptedStore:
    """Ends each call on request; records what happens, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.calls: list[asyncio.Future[None]] = []

    async def send(self, _topic: str, items: list[str]) -> Sequence[str]:
        self.events.append(f"sent {''.join(items)}")
        self.calls.append(asyncio.get_running_loop().create_future())
        await self.calls[-1]
        return items

    def note(self, result: str | None, error: Exception | None) -> None:
        self.events.append(f"got {result or error}")


async def run_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_next_call_is_sent_before_results_are_handed_out(fails: bool) -> None:
    store = ScriptedStore()
    commit = GroupCommit(store.send, size=len)
    commit.add("t", "a", store.note)
    await run_loop()
    commit.add("t", "b", store.note)
    if fails:
        store.calls[0].set_exception(ValueError("away"))
    else:
        store.calls[0].set_result(None)
    await run_loop()
    assert store.events == ["sent a", "sent b", "got away" if fails else "got a"]
    store.calls[1].set_result(None)
    await run_loop()
    assert store.events[3:] == ["got b"]
    assert not commit._waiting


async def test_results_come_in_the_order_of_their_calls() -> None:
    store = ScriptedStore()
    commit = GroupCommit(store.send, size=len, most_items=2)
    for item in "abcde":
        commit.add("t", item, store.note)
    for number in range(3):
        await run_loop()
        store.calls[number].set_result(None)
    await run_loop()
    assert [event for event in store.events if event.startswith("got")] == [f"got {item}" for item in "abcde"]


async def test_an_error_that_comes_at_once_does_not_overtake_earlier_results() -> None:
    store = ScriptedStore()

    async def send(topic: str, items: list[str]) -> Sequence[str]:
        if items == ["b"]:
            raise ValueError("refused")
        return await store.send(topic, items)

    commit = GroupCommit(send, size=len)
    commit.add("t", "a", store.note)
    await run_loop()
    commit.add("t", "b", store.note)
    store.calls[0].set_result(None)
    await run_loop()
    assert store.events == ["sent a", "got a", "got refused"]
    assert not commit._waiting


async def test_what_is_added_while_results_are_handed_out_is_sent() -> None:
    store = ScriptedStore()
    commit = GroupCommit(store.send, size=len)
    commit.add("t", "a", lambda *_result: commit.add("t", "b", store.note))
    await run_loop()
    store.calls[0].set_result(None)
    await run_loop()
    store.calls[1].set_result(None)
    await run_loop()
    assert store.events == ["sent a", "sent b", "got b"]
    assert not commit._waiting
