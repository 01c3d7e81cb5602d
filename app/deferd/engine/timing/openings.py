"""Opening hours on the clock: when windows are open, and where a due time moves.

Windows are local wall-clock times. A time that a change of the zone's offset skips is taken as the instant of the
change; of a time that occurs twice, an opening takes the first and a closing the last. So a window is open without a
gap from its opening to its closing, and a window whose opening and closing are both skipped does not open on that day.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from zoneinfo import ZoneInfo

from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.windows import Window
from deferd.engine.timing.zones import instant_ms, zone_named

_DAY_MS = 86_400_000
_BLOCK_DAYS = 32
_BLOCK_MS = _BLOCK_DAYS * _DAY_MS
_BLOCKS_KEPT = 256
_LOOK_AHEAD_BLOCKS = limits.DELAY_MAX_S * 1000 // _BLOCK_MS + 2
_EPOCH = date(1970, 1, 1)
_DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_Content = tuple[str, tuple[str, ...], str, str, tuple[date, ...]]
_Intervals = tuple[list[int], list[int]]
"""Starts and ends in ms since the epoch, both ascending; the ends are not open any more."""


class Openings:
    """When at least one of some windows is open. Made by `of`."""

    def __init__(self, hours: Sequence[_Hours]) -> None:
        self._hours = hours
        self._blocks: dict[int, _Intervals] = {}

    @staticmethod
    def of(windows: Sequence[Window]) -> Openings:
        """The openings of windows together; equal windows share one object.

        Raises:
            InvalidInput: a zone is unknown, or a window never opens. Paths begin with the window's index.
        """
        return _openings(tuple(map(_content, windows)))

    def next_open(self, at_ms: int) -> int:
        """`at_ms` when open, else the beginning of the next opening, in ms since the epoch.

        Raises:
            ValueError: there is none within ten years, because of excepted dates.
        """
        first = at_ms // _BLOCK_MS
        for number in range(first, first + _LOOK_AHEAD_BLOCKS):
            starts, ends = self._blocks.get(number) or self._computed(number)
            after = bisect_right(starts, at_ms)
            if after and at_ms < ends[after - 1]:
                return at_ms
            if after < len(starts):
                return starts[after]
        raise ValueError("does not open within 10 years")

    def place(self, asked_ms: int, offset_ms: int) -> int:
        """The next opening from `asked_ms` on, moved by `offset_ms`, and if that is after its closing, to the next one.

        Raises as `next_open`.
        """
        number = asked_ms // _BLOCK_MS
        starts, ends = self._blocks.get(number) or self._computed(number)
        after = bisect_right(starts, asked_ms)
        if after and asked_ms < ends[after - 1]:
            moved_ms = asked_ms + offset_ms
            if moved_ms < ends[after - 1]:
                return moved_ms
        elif after < len(starts):
            moved_ms = starts[after] + offset_ms
            if moved_ms < ends[after]:
                return moved_ms
        else:
            moved_ms = self.next_open(asked_ms) + offset_ms
        return self.next_open(moved_ms)

    def _computed(self, number: int) -> _Intervals:
        """What is open at some time in the block with this number."""
        begin_ms = number * _BLOCK_MS
        end_ms = begin_ms + _BLOCK_MS
        # Local dates differ from those of UTC by one at most, and an overnight window closes on the next.
        first = _EPOCH + timedelta(days=number * _BLOCK_DAYS - 3)
        dates = [first + timedelta(days=days) for days in range(_BLOCK_DAYS + 6)]
        intervals = sorted(
            (start, end)
            for hours in self._hours
            for start, end in hours.on(dates)
            if start < end and end > begin_ms and start < end_ms
        )
        starts: list[int] = []
        ends: list[int] = []
        for start, end in intervals:
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        if len(self._blocks) >= _BLOCKS_KEPT:
            self._blocks.clear()
        self._blocks[number] = starts, ends
        return starts, ends


class _Hours:
    """One window, ready to compute with."""

    def __init__(self, index: int, content: _Content) -> None:
        zone, days, opening, closing, excepted = content
        try:
            self._zone = zone_named(zone)
        except ValueError as error:
            raise InvalidInput([FieldError((index, "zone"), str(error), zone)]) from None
        self._opening, self._closing = _minutes(opening), _minutes(closing)
        if self._opening == self._closing:
            never = "must differ from `from`: the window never opens"
            raise InvalidInput([FieldError((index, "to"), never, closing)])
        if self._closing < self._opening:
            self._closing += _minutes("24:00")
        self._days = frozenset(map(_DAY_NAMES.index, days))
        self._excepted = frozenset(excepted)

    def on(self, dates: Sequence[date]) -> Iterator[tuple[int, int]]:
        """From when to when it is open on each of these local dates; start and end are the same if it is not."""
        for day in dates:
            if day.weekday() in self._days and day not in self._excepted:
                yield (
                    _instant_ms(self._zone, day, self._opening, take_last=False),
                    _instant_ms(self._zone, day, self._closing, take_last=True),
                )


def _instant_ms(zone: ZoneInfo, day: date, minutes: int, *, take_last: bool) -> int:
    """The instant of a local time; `minutes` after the midnight that begins the day, by the clock on the wall."""
    local = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)  # noqa: DTZ001 (a local time)
    return instant_ms(zone, local, take_last=take_last)


def _minutes(time_of_day: str) -> int:
    hours, minutes = time_of_day.split(":")
    return 60 * int(hours) + int(minutes)


def _content(window: Window) -> _Content:
    return window.zone, tuple(window.days or _DAY_NAMES), window.from_, window.to, tuple(window.except_)


@lru_cache(maxsize=1024)
def _openings(contents: tuple[_Content, ...]) -> Openings:
    return Openings([_Hours(index, content) for index, content in enumerate(contents)])


def spread_of(name: str, spread_ms: int) -> int:
    """A part of `spread_ms`, from 0 to all of it, that depends on the name: the same in every process and release."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % (spread_ms + 1)


def place(asked_ms: int, offset_ms: int, openings: Openings | None) -> int:
    """The due time, in ms since the epoch, of a job that was asked for at `asked_ms`.

    It moves to the next opening, then by the offset, and if that is after the closing, to the opening after it.
    """
    return asked_ms + offset_ms if openings is None else openings.place(asked_ms, offset_ms)
