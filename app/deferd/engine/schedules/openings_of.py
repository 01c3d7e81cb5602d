"""The opening hours of a schedule: its own, else those of its job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.schedules import PutSchedule
from deferd.contract.windows import Window, WindowSpec
from deferd.engine.timing.openings import Openings

WindowsOf = Callable[[WindowSpec], Awaitable[tuple[Window, ...]]]
"""Resolves the name of a calendar. Raises InvalidInput for an unknown one."""


class OpeningsOf:
    """Finds opening hours; `windows_of` resolves names of calendars."""

    def __init__(self, windows_of: WindowsOf) -> None:
        self._windows_of = windows_of

    async def __call__(self, definition: PutSchedule) -> Openings | None:
        """The opening hours of a schedule's runs, None when they may be due at any time.

        Raises:
            InvalidInput: they are invalid, or never open.
        """
        path: tuple[str | int, ...] = ("body", "window")
        spec = definition.window
        if spec is None:
            path, spec = ("body", "job", "window"), definition.job.window
        if spec is None:
            return None
        is_list = isinstance(spec, list)
        try:
            windows = await self._windows_of(spec)
            openings = Openings.of(windows)
        except InvalidInput as error:
            raise InvalidInput(
                [
                    FieldError((*path, *(one.path if is_list else one.path[1:])), one.message, one.value)
                    for one in error.field_errors
                ]
            ) from None
        return openings


async def inline_windows(spec: WindowSpec) -> tuple[Window, ...]:
    """The windows of a spec that names no calendar."""
    if isinstance(spec, str):
        raise InvalidInput([FieldError((0,), f"there is no calendar {spec!r}", spec)])
    return tuple(spec) if isinstance(spec, list) else (spec,)
