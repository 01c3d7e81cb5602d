"""Large replies of the store are spaced out; small ones never wait."""

from __future__ import annotations

import asyncio

import pytest

from deferd.engine.reply_pacing import BYTES_PER_S, LARGE_BYTES, ReplyPacing


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each turn waits, rounded; the waits themselves are left out."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds, 2))

    monkeypatch.setattr("deferd.engine.reply_pacing.asyncio.sleep", sleep)
    return waits


async def test_a_topic_with_small_replies_never_waits(waits: list[float]) -> None:
    pacing = ReplyPacing()
    pacing.note("large", BYTES_PER_S)
    pacing.note("small", LARGE_BYTES - 1)
    assert not pacing.expects_large("small")
    assert pacing.expects_large("large")


async def test_large_replies_of_all_topics_share_one_rate(waits: list[float]) -> None:
    pacing = ReplyPacing()
    for topic in ("a", "b"):
        pacing.note(topic, BYTES_PER_S)
    for topic in ("a", "b", "a"):
        await pacing.turn(topic)
    assert waits == [2, 3, 4]


async def test_a_topic_whose_replies_become_small_waits_no_more(waits: list[float]) -> None:
    pacing = ReplyPacing()
    pacing.note("a", BYTES_PER_S)
    await pacing.turn("a")
    pacing.note("a", 100)
    assert not pacing.expects_large("a")


async def test_time_that_nobody_used_is_not_saved_up() -> None:
    pacing = ReplyPacing()
    pacing.note("a", LARGE_BYTES)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(2 * LARGE_BYTES / BYTES_PER_S)
    for _ in range(3):
        began_s = loop.time()
        await pacing.turn("a")
    assert loop.time() - began_s > 0.9 * LARGE_BYTES / BYTES_PER_S
