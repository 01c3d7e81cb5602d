"""Long work in the event loop gives others a turn, and does so seldom."""

from __future__ import annotations

import asyncio
import time

import pytest

from deferd.api.resp.time_slice import SLICE_S, TimeSlice


async def test_others_get_a_turn_when_a_slice_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(other())
    slice_ = TimeSlice()
    await slice_.end_if_over()
    assert turns == 0
    now_s += 2 * SLICE_S
    await slice_.end_if_over()
    assert turns == 1
    now_s += SLICE_S / 2
    await slice_.end_if_over()
    assert turns == 1
    await slice_.end()
    assert turns == 2
    waiting.cancel()
