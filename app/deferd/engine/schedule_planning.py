"""When the runs of a schedule are due, and which missed runs are made up for. Pure functions.

An occurrence is an instant that the schedule names. Its run is due then, or later because of a `window` and a `spread`.
Occurrences that a window moves to the same instant become one run, the run of the last one. The schedule's spread moves
all runs alike; the spread of its job differs by run, but never moves a run past the one of the next occurrence, so runs
are due in the order of their occurrences.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import NamedTuple

from deferd.contract import limits
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.contract.windows import window_text
from deferd.engine.openings import Openings, place, spread_of
from deferd.engine.placement import NO_DEFAULTS, DueTimePlacer, read_due_defaults
from deferd.engine.record import to_ms
from deferd.engine.recurrence import Recurrence, run_id

LATE_MS = 60_000
"""With `catch_up` `none`, a run that is later than this is missed; as in lua/lib/runs.lua."""
_NEVER = 0


class Run(NamedTuple):
    """An occurrence, and when its run is due."""

    occurrence_ms: int
    due_ms: int


class PlannedRun(NamedTuple):
    """A run to put, `moved_ms` later than its occurrence. `following_ms` is when the next one is due, 0 for none."""

    id: str
    due_ms: int
    following_ms: int
    moved_ms: int


class Plan(NamedTuple):
    """How to advance a schedule: the runs to put, the last occurrence that this deals with, and the missed runs.

    `next_run` is the last of `runs`, if that is not due yet; `dealt_with_ms` is before that. `advance_at_ms` is when to
    advance it again, None when it has ended.
    """

    runs: list[PlannedRun]
    dealt_with_ms: int | None
    missed: int
    next_run: PlannedRun | None
    advance_at_ms: int | None

    @property
    def occurrence_ms(self) -> int | None:
        """The occurrence of the next run, else the last one that is dealt with."""
        return self.dealt_with_ms if self.next_run is None else self.next_run.due_ms - self.next_run.moved_ms


NO_RUNS = Plan([], None, 0, None, None)


class RunTimes:
    """The runs of one schedule. Made for each use; expensive parts are cached elsewhere.

    Raises:
        InvalidInput: the definition is invalid, see `Recurrence.of`.
    """

    def __init__(self, name: str, definition: PutSchedule, created_ms: int, run_window: RunWindow) -> None:
        self._name = name
        self._catch_up = definition.catch_up
        self.recurrence = Recurrence.of(definition, created_ms)
        self._openings = run_window.openings
        self._spread_ms = spread_of(name, to_ms(definition.spread)) if definition.spread else 0
        self._spread_of_job_ms = run_window.spread_ms

    def runs_after(self, occurrence_ms: int) -> Iterator[Run]:
        """The runs after an occurrence, in order. Each takes some milliseconds at most."""
        upcoming = self.recurrence.upcoming(occurrence_ms)
        at_ms = next(upcoming, None)
        placed_ms = self._placed(at_ms)
        while at_ms is not None:
            following_ms = next(upcoming, None)
            following_placed_ms = self._placed(following_ms)
            if placed_ms == following_placed_ms:
                at_ms = next(self.recurrence.earlier(at_ms, self._last_placed_by(placed_ms, at_ms)))
                upcoming = self.recurrence.upcoming(at_ms)
                following_ms = next(upcoming, None)
                following_placed_ms = self._placed(following_ms)
            yield Run(at_ms, self._due_ms(at_ms, placed_ms, following_ms))
            at_ms, placed_ms = following_ms, following_placed_ms

    def plan(
        self, now_ms: int, after_ms: int, remaining: int | None = None, most: int = limits.CATCH_UP_MAX
    ) -> Generator[None, None, Plan]:
        """How to continue after the occurrence `after_ms`. It yields after each short step.

        `remaining` is how many runs may follow, 1 or more, None for any number. At most `most` runs are put at once;
        when more are to be made up for, `advance_at_ms` is now.
        """
        runs = self.runs_after(after_ms)
        first = next(runs, None)
        if first is None:
            return Plan([], after_ms, 0, None, None)
        if first.due_ms > now_ms:
            following = next(runs, None)
            planned = self._planned(first, following)
            return Plan([planned], after_ms, 0, planned, first.due_ms)
        latest, older = yield from self._latest(after_ms, now_ms)
        overdue = [run for run in latest if run.due_ms <= now_ms]
        chosen = self._made_up_for(overdue, now_ms)
        missed = older + len(overdue) - len(chosen)
        if remaining is not None:
            chosen = chosen[:remaining]
            remaining -= len(chosen)
        if len(chosen) > most - 1:
            put = chosen[: max(most - 1, 1)]
            following = None if len(put) == len(chosen) else chosen[len(put)]
            planned_runs = yield from self._planned_all(put, following)
            return Plan(planned_runs, put[-1].occurrence_ms, missed, None, now_ms)
        # Because of the job's spread the last may not be due yet.
        last_ms = overdue[-1].occurrence_ms if overdue else latest[-1].occurrence_ms - 1
        runs = self.runs_after(last_ms)
        upcoming = next(runs, None) if remaining != 0 else None
        planned_runs = yield from self._planned_all(chosen, upcoming)
        if upcoming is None:
            # With max_runs reached, this is found out when what was put has run.
            return Plan(planned_runs, last_ms, missed, None, None if remaining is None else now_ms + 1)
        planned = self._planned(upcoming, next(runs, None))
        return Plan([*planned_runs, planned], last_ms, missed, planned, upcoming.due_ms)

    def _latest(self, after_ms: int, now_ms: int) -> Generator[None, None, tuple[list[Run], int]]:
        """The runs of the latest CATCH_UP_MAX occurrences after `after_ms` that are due but for their job's spread.

        It is at least one. The number says how many occurrences come before these.
        """
        occurrences, count = yield from self.recurrence.missed(
            after_ms, self._last_placed_by(now_ms, after_ms), limits.CATCH_UP_MAX
        )
        runs = []
        placed_ms = self._placed(occurrences[0])
        for at_ms, following_ms in zip(
            occurrences, [*occurrences[1:], self.recurrence.after(occurrences[-1])], strict=True
        ):
            following_placed_ms = self._placed(following_ms)
            if placed_ms != following_placed_ms:
                runs.append(Run(at_ms, self._due_ms(at_ms, placed_ms, following_ms)))
            placed_ms = following_placed_ms
            yield
        return runs, count - len(occurrences)

    def _made_up_for(self, overdue: list[Run], now_ms: int) -> list[Run]:
        if self._catch_up == "all":
            return overdue
        is_missed = self._catch_up == "none" and overdue and now_ms - overdue[-1].due_ms > LATE_MS
        return [] if is_missed else overdue[-1:]

    def _placed(self, at_ms: int | None) -> int:
        """When the run of an occurrence is due, but for its job's spread: never earlier than the run of an earlier one.

        The runs of occurrences that a window moves to the same instant are joined. -1 for None.
        """
        return -1 if at_ms is None else place(at_ms, self._spread_ms, self._openings)

    def _last_placed_by(self, until_ms: int, after_ms: int) -> int:
        """The last instant not before `after_ms` at which the run of an occurrence is due by `until_ms`."""
        if self._openings is None:
            return until_ms - self._spread_ms
        last_ms = self._openings.last_open(until_ms)
        if last_ms is not None and self._spread_ms:
            last_ms = self._openings.last_open(last_ms - self._spread_ms)
        return after_ms if last_ms is None else max(last_ms, after_ms)

    def _due_ms(self, at_ms: int, placed_ms: int, following_ms: int | None) -> int:
        if not self._spread_of_job_ms:
            return placed_ms
        gap_ms = self._spread_of_job_ms
        if following_ms is not None:
            gap_ms = self._opening_of(following_ms) - self._opening_of(at_ms)
        offset_ms = self._spread_ms + spread_of(run_id(self._name, at_ms), min(self._spread_of_job_ms, gap_ms))
        return place(at_ms, offset_ms, self._openings)

    def _opening_of(self, at_ms: int) -> int:
        return at_ms if self._openings is None else self._openings.next_open(at_ms)

    def _planned_all(self, runs: list[Run], upcoming: Run | None) -> Generator[None, None, list[PlannedRun]]:
        planned = []
        for run, following in pairwise([*runs, upcoming]):
            if run is not None:
                planned.append(self._planned(run, following))
                yield
        return planned

    def _planned(self, run: Run, following: Run | None) -> PlannedRun:
        following_ms = _NEVER
        if following is not None:
            # A run that is due only just before the next one, because of its job's spread, is not missed at once.
            gap_ms = self._placed(following.occurrence_ms) - self._placed(run.occurrence_ms)
            following_ms = max(following.due_ms, run.due_ms + gap_ms)
        return PlannedRun(
            run_id(self._name, run.occurrence_ms), run.due_ms, following_ms, run.due_ms - run.occurrence_ms
        )


class RunWindow(NamedTuple):
    """What moves the due times of a schedule's runs: the window of the schedule, else of its job, else of its topic.

    `openings` are the opening hours, None for always, `window` is the same as JSON, '' for none, and `spread_ms` the
    spread of the jobs. `topic_defaults` is what the topic had as its defaults.
    """

    openings: Openings | None = None
    window: str = ""
    spread_ms: int = 0
    topic_defaults: str = NO_DEFAULTS


NOT_MOVED = RunWindow()


class RunWindows:
    """Finds what moves the due times of runs."""

    def __init__(self, placer: DueTimePlacer) -> None:
        self.placer = placer

    async def check(self, definition: PutSchedule) -> None:
        """Check the windows that a definition names.

        Raises:
            InvalidInput: a zone or calendar is unknown, or a window never opens.
        """
        if definition.window is not None:
            await self.placer.calendars.check(definition.window, ("body", "window"))
        if definition.job.window is not None:
            await self.placer.calendars.check(definition.job.window, ("body", "job", "window"))

    async def window_of(self, definition: PutSchedule) -> RunWindow:
        """The openings and the spread for the runs of a definition. A calendar that was deleted is always open."""
        job, topic_defaults = definition.job, self.placer.defaults_of(definition.topic)
        window, spread_ms = read_due_defaults(topic_defaults)
        spec = definition.window or job.window
        if spec is not None:
            window = window_text(spec)
        elif "window" in job.model_fields_set:
            window = ""
        if "spread" in job.model_fields_set:
            spread_ms = to_ms(job.spread or 0)
        openings = await self.placer.openings_of(window) if window else None
        return RunWindow(openings, window or "", spread_ms or 0, topic_defaults)
