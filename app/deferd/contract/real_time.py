"""The clocks of the client. They also run in tests that have frozen the time of their program.

`freezegun` replaces the functions of `time`, wherever a module has a name for one. With those, a time-out would never
end, and a request would name an instant of the frozen time to the service.
"""

from __future__ import annotations

import time

_CLOCKS = (time.monotonic, time.time)


def monotonic_s() -> float:
    """As `time.monotonic`."""
    return _CLOCKS[0]()


def epoch_s() -> float:
    """As `time.time`."""
    return _CLOCKS[1]()
