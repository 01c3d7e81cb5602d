"""Reads of the store that several callers share."""

from __future__ import annotations

import asyncio

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.engine.caches import SharedReads


class Source:
    """Reads that are released by the test."""

    def __init__(self) -> None:
        self.reads = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return number


async def test_callers_share_a_read_and_its_value() -> None:
    reads: SharedReads[int] = SharedReads(60, 2)
    source = Source()
    callers = [asyncio.create_task(reads.get("a", source.read)) for _ in range(3)]
    await asyncio.sleep(0)
    source.may_end.set()
    assert await asyncio.gather(*callers) == [1, 1, 1]
    assert await reads.get("a", source.read) == 1
    assert await reads.get("b", source.read) == 2


async def test_a_value_is_kept_for_its_time_and_the_oldest_gives_way() -> None:
    source = Source()
    source.may_end.set()
    short: SharedReads[int] = SharedReads(0, 2)
    assert [await short.get("a", source.read) for _ in range(2)] == [1, 2]
    few: SharedReads[int] = SharedReads(60, 2)
    assert [await few.get(key, source.read) for key in "abcca"] == [3, 4, 5, 5, 6]


async def test_a_read_under_way_when_its_value_is_forgotten_is_not_kept() -> None:
    reads: SharedReads[int] = SharedReads(60, 2)
    source = Source()
    before = asyncio.create_task(reads.get("a", source.read))
    await asyncio.sleep(0)
    reads.forget("a")
    after = asyncio.create_task(reads.get("a", source.read))
    await asyncio.sleep(0)
    source.may_end.set()
    assert [await before, await after] == [1, 2]
    assert await reads.get("a", source.read) == 2


async def test_callers_share_an_error_which_is_not_kept() -> None:
    """While the store hangs, each of many callers waits for one time-out, not one after the other for its own."""
    reads: SharedReads[int] = SharedReads(60, 2)
    source = Source()
    source.error = StoreUnavailable("away")
    callers = [asyncio.create_task(reads.get("a", source.read)) for _ in range(3)]
    await asyncio.sleep(0)
    source.may_end.set()
    assert await asyncio.gather(*callers, return_exceptions=True) == [source.error] * 3
    assert source.reads == 1
    source.error = None
    assert await reads.get("a", source.read) == 2


async def test_a_cancelled_caller_does_not_end_the_read_of_others() -> None:
    reads: SharedReads[int] = SharedReads(60, 2)
    source = Source()
    first, second = (asyncio.create_task(reads.get("a", source.read)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    source.may_end.set()
    assert await second == 1


async def test_a_quick_read_is_kept_for_less() -> None:
    source = Source()
    source.may_end.set()
    reads: SharedReads[int] = SharedReads(60, 2, least_s=0)
    assert await reads.get("a", source.read) == 1
    await asyncio.sleep(0.5)
    assert await reads.get("a", source.read) == 2
    source.may_end.clear()
    slow = asyncio.create_task(reads.get("b", source.read))
    await asyncio.sleep(0.1)
    source.may_end.set()
    assert await slow == 3
    await asyncio.sleep(0.5)
    assert await reads.get("b", source.read) == 3


async def test_values_past_their_end_are_dropped_with_the_next_one() -> None:
    reads: SharedReads[bytes] = SharedReads(0.01, 100)
    for key in range(5):
        await reads.get(key, lambda: _value(b"x"))
    await asyncio.sleep(0.02)
    await reads.get("next", lambda: _value(b"x"))
    assert list(reads._values) == ["next"]


async def test_large_values_are_shared_but_not_kept() -> None:
    reads: SharedReads[bytes] = SharedReads(60, 100, size=len, largest=10)
    large, _ = await asyncio.gather(*(reads.get("large", lambda: _value(b"x" * 11)) for _ in range(2)))
    await reads.get("small", lambda: _value(b"x" * 10))
    assert len(large) == 11
    assert list(reads._values) == ["small"]


async def _value(value: bytes) -> bytes:
    return value
