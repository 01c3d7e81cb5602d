"""The clocks of the client, and the clock of another machine, to which the instants of calls refer.

A call that was given up may still be on its way. So it carries the instant at which its caller gives it up, by the
clock of the process that executes it, which does nothing from then on.
"""

from __future__ import annotations

import time

# In a tuple, because `freezegun` replaces the functions of `time` wherever a module has a name for one. With those a
# time-out would never end, and a request would name an instant of the frozen time to the service.
_CLOCKS = (time.monotonic, time.time)


def monotonic_s() -> float:
    """As `time.monotonic`."""
    return _CLOCKS[0]()


def epoch_s() -> float:
    """As `time.time`."""
    return _CLOCKS[1]()


NOT_AFTER_HEADER = "deferd-not-after"
"""The header of a request with that instant, in ms since 1970-01-01 UTC, by the clock of the service's store."""
TIME_HEADER = "deferd-time"
"""The header of the response to such a request: what that clock shows, in ms, or a little less."""
INSTANT_DIGITS = 13
"""Of an instant in ms between the years 2001 and 2286."""
_MS_PER_S = 999
"""The clock is taken to be slower than the host's by a thousandth: clocks that are being adjusted differ by less."""


class RemoteClock:
    """A clock elsewhere, as known from the last reading of it and the time since. It is never ahead of that clock.

    The time since the reading was received is less than the time since the clock was read. If that clock is set back,
    this one is ahead by as much until the next reading.
    """

    def __init__(self) -> None:
        self._at_zero_ms = 0.0
        """What it showed when the monotonic clock showed 0, if it has always been as slow as assumed."""

    def note_ms(self, now_ms: float) -> None:
        """Record a reading when it is received."""
        # Not an event loop's clock: uvloop's stands still while a callback runs, and the reading may be younger.
        self._at_zero_ms = now_ms - monotonic_s() * _MS_PER_S

    def at(self, until_s: float) -> int:
        """The earliest time, in ms, that it can show at `until_s` on the monotonic clock."""
        return int(self._at_zero_ms + until_s * _MS_PER_S)
