"""The clock of a server as one connection knows it, and the instant after which a call may do nothing.

A call that is given up may still be on its way: in the kernel's queues, in the network, or at a server that hangs. So
each call of a script carries the instant at which its caller gives it up, by the clock of the server that runs it, and
the script does nothing from then on (`engine/lua/lib/calls.lua`). That holds however late the call arrives, because
the instant computed here is never later than the server's own clock shows when the caller gives up: what is known of
that clock is a reading and the time since its reply was received, which is less than the time since the clock was read.
"""

from __future__ import annotations

import asyncio
import sys
import time
from math import inf
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from deferd.contract.call_instants import RemoteClock

TOO_LATE = "TOOLATE"
"""First word of the error of a script that did nothing; the clock in ms follows."""
READ_AGAIN_S = 5.0
"""The clock is read again with the first call after so long."""


class NotAfter:
    """The last argument of a call of a script: the connection sends the instant at which the caller gives up.

    That is when the call would time out, or at `until_s` on the event loop's clock if that is earlier.
    """

    __slots__ = ("until_s",)

    def __init__(self, until_s: float = inf) -> None:
        self.until_s = until_s


NOT_AFTER = NotAfter()
"""For a caller that waits until the call times out."""


class CallTooLate(ResponseError):
    """A script did nothing: its caller had given it up, or the server's clock was set forward."""


class ServerClock(RemoteClock):
    """The clock of the server at the other end of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.read_again_at_s = -inf
        """When it is to be read again, on the monotonic clock."""
        self.is_reading = False
        """Whether a reading is under way."""
        self.error: Exception | None = None
        """Why it cannot be read: the store's user lacks the permission."""

    def note_reading(self, reading: asyncio.Future[Any]) -> None:
        """Note what became of a reading."""
        self.is_reading = False
        error = None if reading.cancelled() else reading.exception()
        if isinstance(error, NoPermissionError):
            self.error = error
        elif error is None and not reading.cancelled():
            self.error = None
            self.note_reply(reading.result())

    def note_reply(self, reply: Any) -> None:
        """Note a reply to TIME at its reception."""
        self.note_ms(int(reply[0]) * 1000 + int(reply[1]) / 1000)

    def note_ms(self, now_ms: float) -> None:
        """See RemoteClock."""
        self.read_again_at_s = time.monotonic() + READ_AGAIN_S
        super().note_ms(now_ms)

    def at(self, until_s: float) -> int:
        """The least that it will show, in ms, at `until_s` on the event loop's clock."""
        if sys.platform == "darwin":  # elsewhere both are one; here uvloop's also counts while the machine sleeps
            now_s = time.monotonic()
            until_s = min(until_s, now_s + until_s - asyncio.get_running_loop().time())
        return super().at(until_s)


def given_up_at(args: tuple[Any, ...], until_s: float) -> tuple[Any, ...]:
    """The arguments of a call that its caller gives up at `until_s` at the latest, on the event loop's clock."""
    last = args[-1]
    return (*args[:-1], NotAfter(min(until_s, last.until_s))) if isinstance(last, NotAfter) else args
