"""A key has one long computation at a time."""

from __future__ import annotations

import asyncio

import pytest

from deferd.api.context import Computations
from deferd.contract import limits
from deferd.contract.errors import RateLimited


async def test_computations_of_a_key_follow_each_other_and_those_of_another_do_not_wait() -> None:
    computations, under_way, most = Computations(), dict.fromkeys("ab", 0), dict.fromkeys("ab", 0)
    both = asyncio.Event()

    async def compute(key: str) -> None:
        async with computations.share_of(key):
            under_way[key] += 1
            most[key] = max(most[key], under_way[key])
            if all(under_way.values()):
                both.set()
            await both.wait()
            under_way[key] -= 1

    await asyncio.gather(*(compute(key) for key in "aaab"))
    assert most == {"a": 1, "b": 1}
    assert not computations._of_key


async def test_a_key_has_a_bounded_number_of_waiting_computations() -> None:
    computations, done = Computations(), asyncio.Event()

    async def compute() -> None:
        async with computations.share_of("k"):
            await done.wait()

    tasks = [asyncio.create_task(compute()) for _ in range(limits.WAITING_COMPUTATIONS_MAX + 1)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimited, match="with key 'k'"):
        async with computations.share_of("k"):
            pass
    async with computations.share_of("another"):
        pass
    tasks.pop().cancel()
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(compute()))
    done.set()
    await asyncio.gather(*tasks)
