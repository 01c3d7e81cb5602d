"""Places jobs: moves their due times into opening hours, and spreads them.

A put asks for a `WindowAndSpread`. It is placed just before it is sent, and the record keeps the result as its
`Placement`. The defaults of its topic are known only to the put script, so those that placed it are among the `Terms`
that it is sent by. The runs of a schedule have a `RunWindow` instead (`schedule_planning.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import orjson

from deferd.contract.errors import InvalidInput, StoreUnavailable
from deferd.contract.windows import read_window
from deferd.engine.caches import BoundedCache
from deferd.engine.calendars import Calendars, Path
from deferd.engine.openings import Openings, place, read_openings, spread_of
from deferd.engine.record import json_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import DELAY, INSTANT, PUT_HEAD, EncodedPut, WindowAndSpread
from deferd.engine.shelf import NO_SHELF
from deferd.engine.store_clock import StoreClock
from deferd.engine.time_slice import TimeSlice

_REMEMBERED_BYTES = 4 * 1024 * 1024
_PLACED_AT_ONCE = 4
_SHORT_WINDOW = 200
"""Jobs between two looks at the clock, and up to which length of their windows: one with 20 lists of excepted dates
takes some milliseconds."""
NO_DEFAULTS = ""
_TO_PLACE = 8
"""The first value of a script that leaves it to the caller to place the job."""


class DueTimePlacer:
    """Places the jobs of a store."""

    def __init__(self, clock: StoreClock, calendars: Calendars, keys: Keys) -> None:
        self._clock = clock
        self.calendars = calendars
        self._shard_of = keys.shard_of
        self.defaults: BoundedCache[str, str] = BoundedCache(_REMEMBERED_BYTES)
        """By topic: its defaults as last seen in the settings; only for topics with defaults."""

    def defaults_of(self, topic: str) -> str:
        """The defaults of a topic as last seen; NO_DEFAULTS also if they are not remembered."""
        return self.defaults.get(topic) or NO_DEFAULTS if self.defaults.used_bytes else NO_DEFAULTS

    def note_defaults(self, topic: str, defaults: str) -> None:
        """Remember the defaults of a topic."""
        if defaults == NO_DEFAULTS:
            self.defaults.remove(topic)
        else:
            self.defaults.put(topic, defaults, len(topic) + len(defaults))

    def is_checked(self, wanted: WindowAndSpread) -> bool:
        """Whether `check` certainly succeeds, without asking the store."""
        if not wanted.window:
            return True
        openings = _openings_or_name(wanted.window)
        return self.calendars.is_remembered(openings) if isinstance(openings, str) else openings is not None

    async def check(self, wanted: WindowAndSpread, path: Path = ("body",)) -> None:
        """Check the window of a put, whose fields are at `path`.

        Raises:
            InvalidInput: a zone or calendar is unknown, or a window never opens.
        """
        if wanted.window and not self.is_checked(wanted):
            await self.calendars.check(read_window(wanted.window), (*path, "window"))

    async def place_puts(self, topic: str, puts: Sequence[EncodedPut], defaults: str) -> list[Any]:
        """The arguments of puts, id and job of each, with their due times placed."""
        default = read_due_defaults(defaults)
        shard = self._shard_of(topic)
        now_ms = self._clock.trusted_ms(shard) or await self._clock.now_ms(shard)
        openings: dict[str, Openings | None] = {"": None}
        args: list[Any] = []
        slice_ = TimeSlice()
        for at, put in enumerate(puts, 1):
            window, spread_ms = put.to_place or default
            if window is None:
                window = default[0]
            if spread_ms is None:
                spread_ms = default[1]
            if window not in openings:
                openings[window] = await self.openings_of(window)
            args += (put.id, _place_put(put, window, spread_ms, now_ms, openings[window]))
            if (at % _PLACED_AT_ONCE == 0 or len(window) > _SHORT_WINDOW) and slice_.is_over():
                await slice_.end()
        return args

    async def place(self, job_id: str, asked_ms: int, window: str, spread_ms: int) -> tuple[int, int]:
        """The due time of a job that was asked for at `asked_ms`, and how much later it is."""
        openings = await self.openings_of(window) if window else None
        due_ms = place(asked_ms, spread_of(job_id, spread_ms), openings)
        return due_ms, due_ms - asked_ms

    async def place_retry(self, job_id: str, asked_ms: int, window: str, spread_ms: int) -> tuple[int, int]:
        """As `place`, for a retry: a due time within opening hours stays as it is, without a spread."""
        openings = await self.openings_of(window)
        if openings is None or openings.next_open(asked_ms) == asked_ms:
            return asked_ms, 0
        return await self.place(job_id, asked_ms, window, spread_ms)

    async def openings_of(self, window: str) -> Openings | None:
        """The openings of a stored window; None, which is always open, if its calendar is not there any more."""
        openings = _openings_or_name(window)
        return await self.calendars.openings_of(openings) if isinstance(openings, str) else openings


def _openings_or_name(window: str) -> Openings | str | None:
    """The openings of a window, or the name of its calendar. None: they cannot be computed; its zone is a later one."""
    if window[0] == '"':
        return str(orjson.loads(window))
    try:
        return read_openings(window)
    except InvalidInput:
        return None


def is_to_place(reply: list[Any]) -> bool:
    """Whether a script that gives a job another due time did nothing, and left it to the caller to place the job."""
    return bool(reply[0] == _TO_PLACE)


async def until_placed(
    reply: list[Any],
    run: Callable[..., Awaitable[list[Any]]],
    place: Callable[[int, str, int], Awaitable[tuple[int, int]]],
) -> list[Any]:
    """The last reply of a script that gives a job another due time, change.lua or release.lua; `reply` is the first.

    If the job has a window, the script does nothing and returns it, and `place` places the job for the next call.

    Raises:
        StoreUnavailable: also when the window was changed each time in between. Nothing was done.
    """

    async def attempt() -> list[Any] | None:
        nonlocal reply
        if is_to_place(reply):
            _, asked_ms, window, spread_ms = reply
            placed = await place(asked_ms, window.decode(), spread_ms)
            reply = await run(b"%d %b" % (spread_ms, window), *placed)
        return None if is_to_place(reply) else reply

    return await until_done(attempt, "the window of the job kept changing; nothing was done")


def _place_put(put: EncodedPut, window: str, spread_ms: int, now_ms: int, openings: Openings | None) -> bytes:
    """The argument of a put with its due time placed."""
    job = put.job
    if not window and not spread_ms:
        return job
    options, kind, ms, nonce, bound, length = PUT_HEAD.unpack_from(job)
    offset_ms = spread_of(put.id, spread_ms) if spread_ms else 0
    if openings is None:  # exact by the clock of the script, and the same for an instant in the past
        moved_ms = offset_ms if kind == DELAY or ms + offset_ms > now_ms else 0
        ms += offset_ms
    else:
        asked_ms = now_ms + ms if kind == DELAY else max(ms, now_ms)
        due_ms = openings.place(asked_ms, offset_ms)
        moved_ms = due_ms - asked_ms
        if moved_ms:
            kind, ms = INSTANT, due_ms
    members = members_of(window, spread_ms, moved_ms)
    body_at = PUT_HEAD.size + length
    extra = b"{%b}" % members if length == 0 else b"%b,%b}" % (job[PUT_HEAD.size : body_at - 1], members)
    return PUT_HEAD.pack(options, kind, ms, nonce, bound, len(extra)) + extra + job[body_at:]


def members_of(window: str, spread_ms: int, moved_ms: int) -> bytes:
    """The members of a record's `extra` for a window, a spread, and how far they moved its due time, without the
    braces.
    """
    members = b'"wi":%b,' % json_bytes(window) if window else b""
    if spread_ms:
        members += b'"sp":%d,' % spread_ms
    if moved_ms:
        members += b'"sh":%d,' % moved_ms
    return members[:-1]


def read_due_defaults(stored: str) -> tuple[str, int]:
    """The window (its JSON, '' for none) and spread in ms of a topic's stored defaults."""
    window, spread_ms = orjson.loads(stored) if stored else ("", 0)
    return str(window), int(spread_ms)


ANY_DEFAULT = -1
"""In place of a default durability: all jobs name their own, so the default of the topic does not matter."""
ANY_NUMBER = 0
"""In place of the number of partitions: it does not matter."""
DONE, OUTDATED, REFUSED = b"done", b"terms", b"refused"
"""The first value of a script's reply: it did what it was called for; its terms were outdated; or it refused a job."""
_MOST_TRIES = 8
_HEAD = struct.Struct("<hHQ")
Done = TypeVar("Done")


class Terms(NamedTuple):
    """What the settings of a topic are: in a call, what they must be so that it stores anything.

    `durability` is the default level of the topic and `partitions` the number of them. `due_defaults` are its default
    window and spread as the settings have them: the due times of the jobs are placed by those. `asked` is the
    generation in which the shelf was asked for the ids; in a reply the first one that is not too early, 0 for a topic
    without jobs there.

    A sender calls by the terms that it knows. If the topic has others, the script does nothing and returns all of them.
    The sender corrects what it knows, and sends again by those.
    """

    durability: int
    partitions: int
    due_defaults: str
    asked: int = NO_SHELF

    def argument(self) -> bytes:
        """As lua/lib/terms.lua reads them."""
        return _HEAD.pack(self.durability, self.partitions, self.asked) + self.due_defaults.encode()


def read_terms(reply: Sequence[Any]) -> Terms:
    """The terms of a topic as scripts return them."""
    durability, partitions, due_defaults, asked = reply
    return Terms(durability, partitions, due_defaults.decode(), asked)


async def until_done(attempt: Callable[[], Awaitable[Done | None]], gave_up: str) -> Done:
    """What `attempt` returns. It returns None if its terms were outdated, once it has corrected what is known.

    Raises:
        StoreUnavailable: they were changed each time in between; `gave_up` is its text.
    """
    for _ in range(_MOST_TRIES):
        done = await attempt()
        if done is not None:
            return done
    raise StoreUnavailable(gave_up)
