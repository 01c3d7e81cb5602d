"""Long work in the event loop gives others a turn, and does so seldom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator

import pytest

from deferd.engine.time_slice import SLICE_S, TimeSlice, WorkTooLongError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clocks that slices look at."""
    now_s = 100.0

    def move(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(time, "thread_time", lambda: now_s)
    return move


async def count_turns(counted: list[int]) -> None:
    while True:
        counted[0] += 1
        await asyncio.sleep(0)


async def test_others_get_a_turn_when_a_slice_is_over(clock: Callable[[float], None]) -> None:
    turns = [0]
    waiting = asyncio.create_task(count_turns(turns))
    slice_ = TimeSlice()
    await slice_.end_if_over()
    assert turns == [0]
    clock(2 * SLICE_S)
    await slice_.end_if_over()
    assert turns[0] >= 1
    so_far = turns[0]
    clock(SLICE_S / 2)
    await slice_.end_if_over()
    assert turns == [so_far]
    await slice_.end()
    assert turns == [so_far + 1]
    waiting.cancel()


async def test_a_turn_of_the_loop_has_one_slice_in_order_and_none_of_who_left(clock: Callable[[float], None]) -> None:
    turns, slices = [0], list[tuple[str, int]]()
    counting = asyncio.create_task(count_turns(turns))

    async def work(name: str) -> None:
        slice_ = TimeSlice()
        for _ in range(3):
            clock(2 * SLICE_S)
            await slice_.end_if_over()
            slices.append((name, turns[0]))

    working = [asyncio.create_task(work(name)) for name in "abcd"]
    await asyncio.sleep(0)
    working.pop(1).cancel()
    await asyncio.gather(*working)
    assert [name for name, _ in slices] == [*"acd"] * 3
    in_turns = [turn for _, turn in slices]
    assert len(set(in_turns)) == len(in_turns)
    counting.cancel()


async def test_work_ends_when_it_has_taken_as_long_as_it_may(clock: Callable[[float], None]) -> None:
    steps = 0

    def endless() -> Generator[None, None, None]:
        nonlocal steps
        while True:
            clock(2 * SLICE_S)
            steps += 1
            yield

    with pytest.raises(WorkTooLongError):
        await TimeSlice(10.5 * SLICE_S).run(endless())
    assert steps == 6
