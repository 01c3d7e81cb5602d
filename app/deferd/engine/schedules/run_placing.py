"""What moves the due times of a schedule's runs: the window of the schedule, else of its job, else of its topic."""

from __future__ import annotations

from typing import NamedTuple

from deferd.contract.schedules import PutSchedule
from deferd.contract.windows import window_text
from deferd.engine.placement import NO_DEFAULTS, Placer, read_defaults
from deferd.engine.stored_fields import to_ms
from deferd.engine.timing.openings import Openings


class RunPlacing(NamedTuple):
    """The opening hours of runs, None for always, and the same as JSON, '' for none; the spread of their jobs.

    `placed_by` is what the topic had as its defaults.
    """

    openings: Openings | None = None
    window: str = ""
    spread_ms: int = 0
    placed_by: str = NO_DEFAULTS


NOT_MOVED = RunPlacing()


class RunPlacer:
    """Finds what moves the due times of runs."""

    def __init__(self, placer: Placer) -> None:
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

    async def placing_of(self, definition: PutSchedule) -> RunPlacing:
        """The openings and the spread for the runs of a definition. A calendar that was deleted is always open."""
        job, placed_by = definition.job, self.placer.defaults_of(definition.topic)
        window, spread_ms = read_defaults(placed_by)
        spec = definition.window or job.window
        if spec is not None:
            window = window_text(spec)
        elif "window" in job.model_fields_set:
            window = ""
        if "spread" in job.model_fields_set:
            spread_ms = to_ms(job.spread or 0)
        openings = await self.placer.openings_of(window) if window else None
        return RunPlacing(openings, window or "", spread_ms or 0, placed_by)
