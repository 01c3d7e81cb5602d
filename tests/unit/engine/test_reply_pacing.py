"""Large replies of the store are spaced out; small ones never wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from deferd.engine import queue
from deferd.engine.queue import BYTES_PER_S, LARGE_BYTES, ReplyPacing


class Clock:
    """A clock that advances when somebody sleeps, by the length of the sleep."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    async def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        await asyncio.sleep(0)
        self.now_s = max(self.now_s, until_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that ReplyPacing reads."""
    clock = Clock()
    monkeypatch.setattr(queue, "_sleep", clock.sleep)
    monkeypatch.setattr(queue, "_now_s", lambda: clock.now_s)
    return clock


def began(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


async def test_a_topic_with_small_replies_never_waits(clock: Clock) -> None:
    pacing = ReplyPacing()
    pacing.note("large", BYTES_PER_S)
    pacing.note("small", LARGE_BYTES - 1)
    assert not pacing.expects_large("small")
    assert pacing.expects_large("large")


async def test_large_replies_of_all_topics_share_one_rate(clock: Clock) -> None:
    pacing = ReplyPacing()
    for topic in ("a", "b"):
        pacing.note(topic, BYTES_PER_S)
    for topic, begins_s in (("a", 1001), ("b", 1002), ("a", 1003)):
        await pacing.turn(topic)
        assert clock.now_s == begins_s


async def test_a_topic_whose_replies_become_small_waits_no_more(clock: Clock) -> None:
    pacing = ReplyPacing()
    pacing.note("a", BYTES_PER_S)
    turns = [began(pacing.turn("a")) for _ in range(3)]
    await turns[0]
    pacing.note("a", 100)
    assert not pacing.expects_large("a")
    await asyncio.gather(*turns)
    assert clock.now_s <= 1002


async def test_unused_time_is_not_saved_up(clock: Clock) -> None:
    pacing = ReplyPacing()
    pacing.note("a", BYTES_PER_S)
    clock.now_s = 1010
    for begins_s in (1010, 1011, 1012):
        await pacing.turn("a")
        assert clock.now_s == begins_s


async def test_callers_that_give_up_do_not_delay_the_others(clock: Clock) -> None:
    pacing = ReplyPacing()
    for topic in ("a", "b"):
        pacing.note(topic, BYTES_PER_S)
    waiting = [began(pacing.turn("a")) for _ in range(100)]
    await asyncio.sleep(0)
    for turn in waiting:
        turn.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await pacing.turn("b")
    assert clock.now_s <= 1001


async def test_a_topic_does_not_wait_behind_all_callers_of_another(clock: Clock) -> None:
    pacing = ReplyPacing()
    for topic in ("a", "b"):
        pacing.note(topic, BYTES_PER_S)
    waiting = [began(pacing.turn("a")) for _ in range(100)]
    await asyncio.sleep(0)
    await pacing.turn("b")
    assert clock.now_s <= 1003
    await asyncio.gather(*waiting)
    assert clock.now_s == 1101


async def test_replies_that_came_without_a_turn_do_not_add_up(clock: Clock) -> None:
    pacing = ReplyPacing()
    for topic in map(str, range(100)):
        pacing.note(topic, BYTES_PER_S)
    await pacing.turn("0")
    assert clock.now_s == 1001
