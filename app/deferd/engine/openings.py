"""Opening hours on the clock: when windows are open, and where a due time moves.

Windows are local wall-clock times. A time that a change of the zone's offset skips is taken as the instant of the
change; of a time that occurs twice, an opening takes the first and a closing the last. So a window is open without a
gap from its opening to its closing, and a window whose opening and closing are both skipped does not open on that day.

A look-up takes some microseconds for each window, and half a millisecond where 400 excepted dates follow each other.
Nothing is kept of it but the last result: tables of intervals would need memory for each list of windows and each year.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b

from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.windows import Window, WindowFields, read_window_fields
from deferd.engine.caches import BoundedCache
from deferd.engine.zones import instant_ms, zone_named

_DAY_MINUTES = 24 * 60
_LONGEST_CHANGE_MINUTES = 3 * 60
"""No change of the clock is longer."""
_LOOK_AHEAD_DAYS = limits.DELAY_MAX_S // 86_400 + 1
_DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

Interval = tuple[int, int]
"""Start and end in ms since the epoch; at its end it is not open any more."""
_NEVER: tuple[int, int, int] = (0, 0, 0)


class Openings:
    """When at least one of some windows is open."""

    __slots__ = ("_hours", "_last")

    def __init__(self, hours: Sequence[_Hours]) -> None:
        self._hours = hours
        self._last = _NEVER
        """From the first to before the second instant the next opening is the third, or the instant itself if later."""

    @staticmethod
    def of(windows: Sequence[Window | WindowFields]) -> Openings:
        """The openings of windows together.

        Raises:
            InvalidInput: a zone is unknown, or a window never opens. Paths begin with the window's index.
        """
        return Openings([_Hours(index, window) for index, window in enumerate(windows)])

    def next_open(self, at_ms: int) -> int:
        """`at_ms` when open, else the beginning of the next opening, in ms since the epoch.

        Raises:
            ValueError: there is none within ten years, because of excepted dates.
        """
        since_ms, until_ms, start_ms = self._last
        if not since_ms <= at_ms < until_ms:
            found = [interval for hours in self._hours if (interval := hours.ending_after(at_ms)) is not None]
            if not found:
                raise ValueError("does not open within 10 years")
            start_ms, until_ms = min(found)
            self._last = min(at_ms, start_ms), until_ms, start_ms
        return max(at_ms, start_ms)

    def last_open(self, at_ms: int) -> int | None:
        """`at_ms` when open, else the last ms of the opening before; None if there was none in ten years."""
        ends = [interval[1] for hours in self._hours if (interval := hours.starting_by(at_ms)) is not None]
        return min(at_ms, max(ends) - 1) if ends else None

    def place(self, asked_ms: int, offset_ms: int) -> int:
        """The next opening from `asked_ms` on, moved by `offset_ms`, and if that is after its closing, to the next one.

        Raises as `next_open`.
        """
        opening_ms = self.next_open(asked_ms)
        return self.next_open(opening_ms + offset_ms) if offset_ms else opening_ms


class _Hours:
    """One window, ready to compute with. Days are ordinals of dates; ordinal 1 is a Monday."""

    __slots__ = ("_closing", "_excepted", "_opening", "_to_earlier", "_to_later", "_zone")

    def __init__(self, index: int, window: Window | WindowFields) -> None:
        try:
            self._zone = zone_named(window.zone)
        except ValueError as error:
            raise InvalidInput([FieldError((index, "zone"), str(error), window.zone)]) from None
        self._opening, self._closing = _minutes(window.from_), _minutes(window.to)
        if self._opening == self._closing:
            never = "must differ from `from`: the window never opens"
            raise InvalidInput([FieldError((index, "to"), never, window.to)])
        if self._closing < self._opening:
            self._closing += _DAY_MINUTES
        names = window.days or _DAY_NAMES
        self._to_later, self._to_earlier = _steps(sum(1 << _DAY_NAMES.index(name) for name in names))
        self._excepted = frozenset(map(date.toordinal, window.except_))

    def ending_after(self, at_ms: int) -> Interval | None:
        """The first interval that ends after `at_ms`; None if there is none in ten years."""
        local_day, minute = self._local(at_ms)
        # Two days earlier: an overnight window closes on the next day, and a clock that is put back shows one again.
        ended = local_day * _DAY_MINUTES + minute - self._closing - _LONGEST_CHANGE_MINUTES
        day = local_day - 2
        while (day := day + self._to_later[day % 7]) <= local_day + _LOOK_AHEAD_DAYS:
            if day not in self._excepted and day * _DAY_MINUTES >= ended:
                start_ms, end_ms = self._interval(day)
                if at_ms < end_ms and start_ms < end_ms:
                    return start_ms, end_ms
            day += 1
        return None

    def starting_by(self, at_ms: int) -> Interval | None:
        """The last interval that starts at `at_ms` or before; None if there is none in ten years."""
        local_day, _ = self._local(at_ms)
        day = local_day + 1
        while (day := day - self._to_earlier[day % 7]) >= local_day - _LOOK_AHEAD_DAYS:
            if day not in self._excepted:
                start_ms, end_ms = self._interval(day)
                if start_ms <= at_ms and start_ms < end_ms:
                    return start_ms, end_ms
            day -= 1
        return None

    def _local(self, at_ms: int) -> tuple[int, int]:
        """The day that clocks show, and the minute of it."""
        local = datetime.fromtimestamp(at_ms // 1000, self._zone)
        return local.toordinal(), local.hour * 60 + local.minute

    def _interval(self, day: int) -> Interval:
        """From when to when it is open on a day; start and end are the same if it is not."""
        midnight = datetime.fromordinal(day)
        return (
            instant_ms(self._zone, midnight + timedelta(minutes=self._opening), take_last=False),
            instant_ms(self._zone, midnight + timedelta(minutes=self._closing), take_last=True),
        )


@lru_cache(maxsize=127)
def _steps(weekdays: int) -> tuple[list[int], list[int]]:
    """For the remainder of a day by 7: how far it is to the next of some weekdays, and back to the last; 0: it is one.

    Bit 0 of `weekdays` stands for Mondays.
    """

    def is_one(day: int) -> bool:
        return bool(weekdays >> (day - 1) % 7 & 1)

    later = [next(step for step in range(7) if is_one(day + step)) for day in range(7)]
    earlier = [next(step for step in range(7) if is_one(day - step)) for day in range(7)]
    return later, earlier


def _minutes(time_of_day: str) -> int:
    hours, minutes = time_of_day.split(":")
    return 60 * int(hours) + int(minutes)


_CACHED_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 450
_DATE_BYTES = 120
"""An excepted date as a member of a set."""
_cached: BoundedCache[str, Openings] = BoundedCache(_CACHED_BYTES)


def read_openings(text: str) -> Openings:
    """The openings of the JSON of a window or of a list of them; equal texts share one object.

    Raises:
        InvalidInput: as `Openings.of`.
    """
    found = _cached.get(text)
    if found is None:
        fields = read_window_fields(text)
        found = Openings.of(fields if isinstance(fields, list) else (fields,))
        _cached.put(text, found, memory_of(text.encode()))
    return found


def memory_of(text: bytes) -> int:
    """The bytes that the openings of this JSON need at most, with the JSON."""
    return len(text) + _WINDOW_BYTES * (1 + text.count(b"{")) + _DATE_BYTES * text.count(b"-") // 2


def spread_of(name: str, spread_ms: int) -> int:
    """A part of `spread_ms`, from 0 to all of it, that depends on the name: the same in every process and release."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % (spread_ms + 1)


def place(asked_ms: int, offset_ms: int, openings: Openings | None) -> int:
    """The due time, in ms since the epoch, of a job that was asked for at `asked_ms`.

    It moves to the next opening, then by the offset, and if that is after the closing, to the opening after it.
    """
    return asked_ms + offset_ms if openings is None else openings.place(asked_ms, offset_ms)
