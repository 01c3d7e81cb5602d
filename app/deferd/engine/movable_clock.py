"""The store's clock in a service started for tests: it can be moved forward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import NamedTuple

from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.limits import TEN_YEARS_S
from deferd.engine.recurrence import Recurrence
from deferd.engine.redis_keys import Keys
from deferd.engine.scheduler import ScheduleFilter, Schedules
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Shelf
from deferd.engine.timer import Timer

MOVED_MAX_S = 100 * TEN_YEARS_S
"""The most by which the clock may be moved in all: years in timestamps have four digits."""
RUNS_MAX = 10_000
"""Most runs of schedules that one move may pass: each takes some milliseconds."""
_PAGE = 100
_PASSES_MS = 2000
"""The most real time that passes while jobs are loaded for a move."""


class Reading(NamedTuple):
    """The clock's time, which includes the `moved_ms` by which it has been moved so far.

    Of a move that has not arrived: `left_ms` are left, with these `runs`.
    """

    now_ms: int
    moved_ms: int
    left_ms: int = 0
    runs: RunCount | None = None


class RunCount(NamedTuple):
    """How many runs all schedules have in some time, and the schedule with most of them, if any has one."""

    runs: int
    busiest: str
    runs_of_busiest: int


class MovableClock:
    """Moves the clock of all shards, for all processes on the store, and does what is due by then.

    `first_schedule_ms` returns when the first schedule must be advanced, None when there is none. `before_move` is
    called before the clock moves, for what belongs to the time before.
    """

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        timers: Sequence[Timer],
        schedules: Schedules,
        *,
        first_schedule_ms: Callable[[], Awaitable[int | None]],
        before_move: Callable[[], Awaitable[None]],
        shelf: Shelf,
    ) -> None:
        self._shelf = shelf
        self._scripts = scripts
        self._before_move = before_move
        self._first_schedule_ms = first_schedule_ms
        self._schedules = schedules
        self._timers = timers
        self._keys = [clock_key(keys, shard) for shard in range(keys.shards)]

    async def read(self) -> Reading:
        """Read the clock."""
        return await self.advance(0)

    async def advance(self, by_ms: int, within_s: float = inf) -> Reading:
        """Move the clock forward by `by_ms`, 0 or more. Afterwards due jobs are ready, and expired ones are gone.

        If that takes more than a few seconds, the rest is left to the timers. Real time does not pass: consumers that
        wait keep waiting, for jobs that are due now.

        The clock stops on its way wherever a schedule must be advanced, so that each run is due in its turn. After
        `within_s` it stays at one of these, and the caller moves it by what is left.

        Raises:
            InvalidInput: the clock would be moved by more than 1000 years in all, or past more than 10,000 runs of
                schedules. It is not moved.
        """
        left_ms, end_s = by_ms, time.monotonic() + within_s
        if by_ms > 0:
            reading = await self._move(0)
            if reading.moved_ms + by_ms > MOVED_MAX_S * 1000:
                raise _too_far(by_ms)
            _check_runs(await count_runs(self._schedules, reading.now_ms + by_ms), by_ms)
            await self._before_move()
        while left_ms > 0:
            first_ms = await self._first_schedule_ms()
            if first_ms is None:
                break
            step_ms = max(first_ms - (await self._move(0)).now_ms, 1)
            if step_ms >= left_ms:
                break
            reading = await self._move(step_ms)
            left_ms -= step_ms
            if time.monotonic() >= end_s:
                runs = await count_runs(self._schedules, reading.now_ms + left_ms)
                return reading._replace(left_ms=left_ms, runs=runs)
        return await self._move(left_ms)

    async def _move(self, by_ms: int) -> Reading:
        if by_ms > 0 and self._shelf.calls is not None:
            await self._shelf.calls.load_due((await self._move(0)).now_ms + by_ms + _PASSES_MS)
        reply = await self._scripts.run("advance", self._keys, (by_ms, MOVED_MAX_S * 1000))
        if reply is None:
            raise _too_far(by_ms)
        reading = Reading(*reply)
        if by_ms > 0:
            await asyncio.gather(*(timer.catch_up(reading.now_ms) for timer in self._timers))
        return reading


async def count_runs(schedules: Schedules, until_ms: int) -> RunCount:
    """Count the runs of all schedules from their next ones until `until_ms`; a window may join some that count here."""
    runs, busiest, most = 0, "", 0
    cursor = None
    while True:
        page, cursor = await schedules.page(ScheduleFilter(paused=False), cursor, _PAGE, with_jobs=False)
        for schedule in page:
            definition, state = schedule.definition, schedule.state
            if not state.is_active:
                continue
            recurrence = Recurrence.of(definition, state.created_ms)
            count = recurrence.count(state.occurrence_ms or state.created_ms, until_ms)
            if definition.max_runs is not None:
                count = min(count, definition.max_runs - schedule.runs)
            runs += count
            if count > most:
                busiest, most = schedule.name, count
        if cursor is None:
            return RunCount(runs, busiest, most)


def _check_runs(count: RunCount, by_ms: int) -> None:
    if count.runs > RUNS_MAX:
        message = (
            f"must not pass more than {RUNS_MAX} runs of schedules, but until then there are {count.runs}, "
            f"{count.runs_of_busiest} of them of {count.busiest!r}: pause schedules, or move the clock by less at once"
        )
        raise InvalidInput([FieldError(("body", "advance"), message, by_ms / 1000)])


def _too_far(by_ms: int) -> InvalidInput:
    message = f"must not move the clock by more than {MOVED_MAX_S} seconds (1000 years) in all"
    return InvalidInput([FieldError(("body", "advance"), message, by_ms / 1000)])


def clock_key(keys: Keys, shard: int) -> str:
    """The key that holds by how many ms a shard's clock has been moved."""
    return keys.of_shard(shard, "clock")
