"""How many runs all schedules have until an instant."""

from __future__ import annotations

from typing import NamedTuple

from deferd.engine.schedules.schedules import ScheduleFilter, Schedules
from deferd.engine.timing.recurrence import Recurrence

_PAGE = 100


class RunCount(NamedTuple):
    """How many runs all schedules have in some time, and the schedule with most of them, if any has one."""

    runs: int
    busiest: str
    runs_of_busiest: int


async def count_runs(schedules: Schedules, until_ms: int) -> RunCount:
    """Count the runs of all schedules from their next ones until `until_ms`; those of a window may count as several."""
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
