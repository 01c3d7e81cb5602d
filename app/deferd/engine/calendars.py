"""Calendars: opening hours under a name. A job, a topic or a schedule refers to one by its name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import ValidationError

from deferd.contract import limits
from deferd.contract.errors import CalendarNotFound, FieldError, InvalidInput
from deferd.contract.operations.schedules_and_calendars import PutCalendar
from deferd.contract.windows import Window
from deferd.engine.caches import BoundedCache
from deferd.engine.openings import Openings, memory_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_REMEMBERED_S = 1.0
_REMEMBERED_BYTES = 4 * 1024 * 1024
Spec = Window | list[Window] | str
"""A `WindowSpec`."""
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Calendar:
    """A stored calendar."""

    name: str
    windows: tuple[Window, ...]


class _Found(NamedTuple):
    """A calendar as it was read, and until when it is cached.

    `openings` is None also for a calendar that cannot be read.
    """

    until_s: float
    exists: bool
    openings: Openings | None


class Calendars:
    """Stores calendars, and finds the windows that a field `window` means.

    Calendars are cached for a second, so other processes see a change within that time.
    """

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._key = keys.of_shard(0, "calendars")
        self._remembered: BoundedCache[str, _Found] = BoundedCache(_REMEMBERED_BYTES)

    async def check(self, spec: Spec, path: Path = ("body", "window")) -> None:
        """Check a field at `path`.

        Raises:
            InvalidInput: there is no such calendar, a zone is unknown, or a window never opens.
        """
        if isinstance(spec, str):
            if not (await self._find(spec)).exists:
                raise InvalidInput([FieldError(path, "is not the name of a calendar: put the calendar first", spec)])
            return
        try:
            Openings.of((spec,) if isinstance(spec, Window) else spec)
        except InvalidInput as error:
            raise InvalidInput([_located(found, spec, path) for found in error.field_errors]) from None

    async def openings_of(self, name: str) -> Openings | None:
        """The openings of a calendar; None, which is always open, if it was deleted or cannot be read."""
        return (await self._find(name)).openings

    def is_remembered(self, name: str) -> bool:
        """Whether a calendar is known to exist, without asking the store."""
        found = self._remembered.get(name)
        return found is not None and found.exists and time.monotonic() < found.until_s

    async def put(self, name: str, calendar: PutCalendar) -> tuple[Calendar, bool]:
        """Store a calendar, in place of one with its name; returns it, and whether there was none.

        Jobs whose due time is already placed keep it.

        Raises:
            InvalidInput: a zone is unknown, a window never opens, or there are as many calendars as there may be.
        """
        await self.check(calendar.windows, ("body", "windows"))
        if (
            await self._scripts.command("HLEN", self._key) >= limits.CALENDARS_MAX
            and not (await self._find(name)).exists
        ):
            message = f"would be one calendar more than there may be, {limits.CALENDARS_MAX}"
            raise InvalidInput([FieldError(("path", "name"), message, name)])
        text = calendar.model_dump_json(by_alias=True, exclude_defaults=True)
        is_new = await self._scripts.write("HSET", self._key, name, text)
        self._remembered.remove(name)
        return Calendar(name, tuple(calendar.windows)), is_new == 1

    async def get(self, name: str) -> Calendar:
        """Return a calendar. Raises CalendarNotFound."""
        windows = _read(await self._scripts.command("HGET", self._key, name))
        if windows is None:
            raise CalendarNotFound(name)
        return Calendar(name, windows)

    async def delete(self, name: str) -> None:
        """Delete a calendar. Everything that refers to it is always open from then on. Raises CalendarNotFound."""
        deleted = await self._scripts.write("HDEL", self._key, name)
        self._remembered.remove(name)
        if not deleted:
            raise CalendarNotFound(name)

    async def all(self) -> list[Calendar]:
        """All calendars, by name."""
        stored = await self._scripts.command("HGETALL", self._key)
        read = ((name.decode(), _read(text)) for name, text in zip(stored[::2], stored[1::2], strict=True))
        return sorted((Calendar(name, windows) for name, windows in read if windows), key=lambda one: one.name)

    async def _find(self, name: str) -> _Found:
        found = self._remembered.get(name)
        if found is not None and time.monotonic() < found.until_s:
            return found
        text = await self._scripts.command("HGET", self._key, name)
        windows = _read(text)
        try:
            openings = None if windows is None else Openings.of(windows)
        except InvalidInput:  # a zone of a later release
            openings = None
        found = _Found(time.monotonic() + _REMEMBERED_S, windows is not None, openings)
        self._remembered.put(name, found, memory_of(text or b""))
        return found


def _read(text: bytes | None) -> tuple[Window, ...] | None:
    """The windows of a stored calendar; None if it is missing or unreadable."""
    if text is None:
        return None
    try:
        return tuple(PutCalendar.model_validate_json(text).windows)
    except ValidationError:
        return None


def _located(error: FieldError, spec: Spec, path: Path) -> FieldError:
    """An error of `Openings.of`, whose path begins with the index of the window, as one of the field."""
    within = error.path if isinstance(spec, list) else () if isinstance(spec, str) else error.path[1:]
    return FieldError((*path, *within), error.message, error.value)
