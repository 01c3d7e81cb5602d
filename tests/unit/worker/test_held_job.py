"""A held job whose handler is stopped."""

from __future__ import annotations

import asyncio

from deferd.worker.handlers import Handler
from deferd.worker.held_job import HeldJob, Stop
from deferd.worker.outcomes import DONE, Finish, Release
from tests.deliveries import delivery_of

RELEASED = Release(0, "the worker stopped")


async def nothing() -> None: ...


def held() -> HeldJob:
    return HeldJob(delivery_of(), Handler("t", nothing), lambda _: nothing(), asyncio.get_running_loop())


async def test_a_task_that_has_not_begun_is_not_cancelled() -> None:
    one, begun = held(), []

    async def run() -> None:
        one.begin(None)
        begun.append(one.cancelled)

    task = asyncio.create_task(run())
    one.start()
    one.runs_in(task)
    one.stop(Stop.OVER, None)
    await task
    assert begun == [True]


async def test_a_task_that_has_begun_is_cancelled_once() -> None:
    one, cancels = held(), 0

    async def run() -> None:
        nonlocal cancels
        one.begin(None)
        for _ in range(3):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                cancels += 1

    task = asyncio.create_task(run())
    one.start()
    one.runs_in(task)
    await asyncio.sleep(0)
    one.stop(Stop.TIME_LIMIT, RELEASED)
    await asyncio.sleep(0)
    one.stop(Stop.SHUTDOWN, RELEASED)
    await task
    assert (cancels, one.stopped) == (1, Stop.TIME_LIMIT)


async def test_the_value_of_a_stopped_handler_counts_only_when_the_worker_stops() -> None:
    for why, counts in ((Stop.TIME_LIMIT, RELEASED), (Stop.SHUTDOWN, Finish("saved"))):
        one = held()
        one.stop(why, RELEASED)
        assert one.outcome(Finish("saved"), None) == counts
        assert one.outcome(DONE, asyncio.CancelledError()) == RELEASED
    assert held().outcome(DONE, None) == DONE
