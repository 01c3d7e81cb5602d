"""The group commit: what goes together in a call, and what becomes of each that asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from deferd.engine.group_commit import GroupCommit


class SlowStore:
    """Answers each call when it is let go; remembers what was in it."""

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
async def store() -> SlowStore:
    return SlowStore()


def asking(joiner: GroupCommit[str, str], *items: str, topic: str = "t") -> list[asyncio.Task[str]]:
    return [asyncio.create_task(joiner.ask(topic, item)) for item in items]


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_call_that_comes_alone_goes_at_once(store: SlowStore) -> None:
    store.gate.set()
    assert await GroupCommit(store.send, size=len).ask("t", "a") == "A"
    assert store.calls == [("t", ["a"])]


async def test_those_that_come_while_a_call_is_under_way_go_together_in_the_next(store: SlowStore) -> None:
    joiner = GroupCommit(store.send, size=len)
    first = asking(joiner, "a")
    await turns()
    later = asking(joiner, "b", "c", "d")
    await turns()
    assert store.calls == [("t", ["a"])]
    store.gate.set()
    assert await asyncio.gather(*first, *later) == ["A", "B", "C", "D"]
    assert store.calls == [("t", ["a"]), ("t", ["b", "c", "d"])]


async def test_topics_do_not_wait_for_each_other(store: SlowStore) -> None:
    joiner = GroupCommit(store.send, size=len)
    tasks = asking(joiner, "a", topic="t") + asking(joiner, "b", topic="u")
    await turns()
    assert store.calls == [("t", ["a"]), ("u", ["b"])]
    store.gate.set()
    await asyncio.gather(*tasks)


async def test_a_call_is_bounded_in_items_and_in_bytes(store: SlowStore) -> None:
    joiner = GroupCommit(store.send, size=len, most_items=3, most_bytes=10)
    tasks = asking(joiner, "0", "a", "b", "c", "d", "eeeeeeeee", "ff", "g" * 99, "h")
    await turns()
    store.gate.set()
    await asyncio.gather(*tasks)
    bounded = [["a", "b", "c"], ["d", "eeeeeeeee"], ["ff"], ["g" * 99], ["h"]]
    assert [items for _, items in store.calls] == [["0"], *bounded]


async def test_an_error_goes_to_all_that_were_in_the_call_and_to_nobody_else(store: SlowStore) -> None:
    joiner = GroupCommit(store.send, size=len, most_items=2)
    store.fails_at = 2
    tasks = asking(joiner, "0", "a", "b", "c")
    await turns()
    store.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["0", "away", "away", "C"]
    assert store.calls == [("t", ["0"]), ("t", ["a", "b"]), ("t", ["c"])]


@pytest.mark.parametrize("gives_up", [0, 1])
async def test_one_that_gives_up_does_not_disturb_the_others(store: SlowStore, gives_up: int) -> None:
    joiner = GroupCommit(store.send, size=len)
    tasks = asking(joiner, "a", "b", "c")
    await turns()
    tasks[gives_up].cancel()
    await turns()
    store.gate.set()
    assert await tasks[2] == "C"
    assert tasks[gives_up].cancelled()


async def test_nothing_is_kept_of_a_topic_that_is_served(store: SlowStore) -> None:
    store.gate.set()
    joiner = GroupCommit(store.send, size=len)
    await joiner.ask("t", "a")
    await turns()
    assert joiner._waiting == {}
    assert joiner._tasks == set()


async def test_an_answer_that_is_too_short_fails_those_it_leaves_out_and_nobody_after_them(store: SlowStore) -> None:
    async def send(topic: str, items: list[str]) -> Sequence[str]:
        answers = await store.send(topic, items)
        return answers if len(store.calls) != 2 else answers[:-1]

    joiner = GroupCommit(send, size=len)
    first = asking(joiner, "a")
    await turns()
    later = asking(joiner, "b", "c")
    await turns()
    store.gate.set()
    assert await asyncio.gather(*first) == ["A"]
    answers = await asyncio.gather(*later, return_exceptions=True)
    assert "B" == answers[0]
    assert isinstance(answers[1], ValueError)
    assert await joiner.ask("t", "d") == "D"
