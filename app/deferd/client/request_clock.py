"""The clock by which a request says until when it may be executed: the service's.

A request that was given up may still come to the service, and it would take effect behind later ones. So each request
that changes something names the instant at which the client gives it up, and the service does nothing from then on. It
tells what its clock shows in each response to such a request, also in that to one which came too late.
"""

from __future__ import annotations

from deferd.contract.call_instants import NOT_AFTER_HEADER, TIME_HEADER, RemoteClock
from deferd.contract.real_time import epoch_s

TIME_HEADER_NAME = TIME_HEADER.encode()
_NOT_AFTER = f"{NOT_AFTER_HEADER}: "
_MAX_DIGITS = 15


class RequestClock(RemoteClock):
    """Until a response tells what the service's shows, it is that of this host."""

    def __init__(self) -> None:
        super().__init__()
        self._is_known = False

    def note(self, text: bytes) -> None:
        """Note a header of a response at its reception; anything but a number is ignored."""
        if text.isdigit() and len(text) <= _MAX_DIGITS:
            self.note_ms(int(text))
            self._is_known = True

    def line(self, until_s: float) -> str:
        """The header of a request that is given up at `until_s` on the monotonic clock."""
        if not self._is_known:
            self.note_ms(epoch_s() * 1000)
        return f"{_NOT_AFTER}{self.at(until_s)}\r\n"
