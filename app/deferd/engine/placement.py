"""Places jobs: moves their due times into opening hours, and spreads them.

A put has its `window` and `spread` in its record as it was encoded, and this module gives it the due time, just before
it is sent. The defaults of its topic are known only to the put script, so it is sent with those that placed it; if the
topic has others, nothing is stored, the script returns them, and the put is placed again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from deferd.contract.errors import StoreUnavailable
from deferd.contract.windows import read_window
from deferd.engine.calendars import Calendars, Path, Spec
from deferd.engine.record import json_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import DELAY, INSTANT, PUT_HEAD, EncodedPut
from deferd.engine.store_clock import StoreClock
from deferd.engine.timing.openings import Openings, place, spread_of

_REMEMBERED_MAX = 10_000
NO_DEFAULTS = ""
_TO_PLACE = 8
"""The first value of a script that leaves it to the caller to place the job."""
_MOST_CALLS = 4


class Placed(NamedTuple):
    """A due time, and how much later it is than asked for."""

    due_ms: int
    moved_ms: int


class Placer:
    """Places the jobs of a store."""

    def __init__(self, clock: StoreClock, calendars: Calendars, keys: Keys) -> None:
        self._clock = clock
        self._calendars = calendars
        self._shard_of = keys.shard_of
        self.defaults: dict[str, str] = {}
        """By topic: its defaults as they were last seen, as the settings have them; only of topics that have some."""

    def note_defaults(self, topic: str, defaults: str) -> None:
        """Remember the defaults of a topic."""
        if defaults == NO_DEFAULTS:
            self.defaults.pop(topic, None)
            return
        if len(self.defaults) >= _REMEMBERED_MAX:
            self.defaults.clear()
        self.defaults[topic] = defaults

    def is_checked(self, put: EncodedPut) -> bool:
        """Whether `check` of the put certainly succeeds, without asking the store: it names no other calendar.

        Windows that are not in a calendar are checked when they are read.
        """
        if not put.window:
            return True
        spec = read_window(put.window)
        return self._calendars.is_remembered(spec) if isinstance(spec, str) else True

    async def check_window(self, window: Spec) -> None:
        """Check the `window` in the body of a request. Raises as `check`."""
        await self._calendars.check(window)

    async def check(self, put: EncodedPut, path: Path = ("body",)) -> None:
        """Check the window of a put, whose fields are at `path`.

        Raises:
            InvalidInput: a zone or calendar is unknown, or a window never opens.
        """
        if put.window:
            await self._calendars.check(read_window(put.window), (*path, "window"))

    async def place_puts(self, topic: str, args: Sequence[Any], defaults: str) -> list[Any]:
        """The arguments of puts, id and job of each, with their due times placed."""
        default_window, default_spread_ms = read_defaults(defaults)
        now_ms = await self._clock.now_ms(self._shard_of(topic))
        openings = await self._all_openings([default_window, *_windows_in(args[1::2])])
        placed: list[Any] = []
        for job_id, job in zip(args[::2], args[1::2], strict=True):
            placed += (job_id, _place_put(job_id, job, default_window, default_spread_ms, now_ms, openings))
        return placed

    async def place(self, job_id: str, asked_ms: int, window: str, spread_ms: int) -> Placed:
        """Place a job that was asked for at `asked_ms`."""
        openings = await self._calendars.openings_of(read_window(window)) if window else None
        due_ms = place(asked_ms, spread_of(job_id, spread_ms), openings)
        return Placed(due_ms, due_ms - asked_ms)

    async def place_retry(self, job_id: str, asked_ms: int, window: str, spread_ms: int) -> Placed:
        """Place a retry: in opening hours it stays where it is, without a spread."""
        openings = await self._calendars.openings_of(read_window(window))
        if openings is None or openings.next_open(asked_ms) == asked_ms:
            return Placed(asked_ms, 0)
        return await self.place(job_id, asked_ms, window, spread_ms)

    async def _all_openings(self, windows: Iterable[str]) -> dict[str, Openings | None]:
        """The openings of windows by their JSON."""
        openings: dict[str, Openings | None] = {"": None}
        for window in windows:
            if window not in openings:
                openings[window] = await self._calendars.openings_of(read_window(window))
        return openings


async def until_placed(
    run: Callable[..., Awaitable[list[Any]]], place: Callable[[int, str, int], Awaitable[Placed]]
) -> list[Any]:
    """The reply of a script that gives one job another due time, change.lua or release.lua.

    If the job has a window, the script does nothing and returns it, and `place` places the job for the next call.

    Raises:
        StoreUnavailable: also when the window was changed each time in between. Nothing was done.
    """
    reply = await run("", 0, 0)
    for _ in range(_MOST_CALLS):
        if reply[0] != _TO_PLACE:
            return reply
        _, asked_ms, window, spread_ms = reply
        reply = await run(b"%d %b" % (spread_ms, window), *await place(asked_ms, window.decode(), spread_ms))
    raise StoreUnavailable("the window of the job kept changing; nothing was done")


def _windows_in(jobs: Sequence[bytes]) -> Iterator[str]:
    for job in jobs:
        length = PUT_HEAD.unpack_from(job)[-1]
        if length:
            yield orjson.loads(job[PUT_HEAD.size : PUT_HEAD.size + length]).get("wi", "")


def _place_put(  # noqa: PLR0917 (by position: see the module's budget in docs/benchmarks.md)
    job_id: str,
    job: bytes,
    default_window: str,
    default_spread_ms: int,
    now_ms: int,
    openings: dict[str, Openings | None],
) -> bytes:
    options, kind, ms, nonce, bound, length = PUT_HEAD.unpack_from(job)
    body_at = PUT_HEAD.size + length
    extra: dict[str, Any] = orjson.loads(job[PUT_HEAD.size : body_at]) if length else {}
    window, spread_ms = extra.get("wi", default_window), extra.get("sp", default_spread_ms)
    asked_ms = now_ms + ms if kind == DELAY else max(ms, now_ms)
    due_ms = place(asked_ms, spread_of(job_id, spread_ms) if spread_ms else 0, openings[window])
    _set(extra, "wi", window)
    _set(extra, "sp", spread_ms)
    _set(extra, "sh", due_ms - asked_ms)
    if due_ms != asked_ms:
        kind, ms = INSTANT, due_ms
    encoded = json_bytes(extra) if extra else b""
    return PUT_HEAD.pack(options, kind, ms, nonce, bound, len(encoded)) + encoded + job[body_at:]


def _set(extra: dict[str, Any], key: str, value: str | int) -> None:
    if value:
        extra[key] = value
    else:
        extra.pop(key, None)


@lru_cache(maxsize=1024)
def read_defaults(stored: str) -> tuple[str, int]:
    """The window (its JSON, '' for none) and spread in ms of a topic's stored defaults."""
    window, spread_ms = orjson.loads(stored) if stored else ("", 0)
    return str(window), int(spread_ms)
