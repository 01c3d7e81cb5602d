"""What a connection may do: how much it sends ahead of a request's body, how long it may take, how many there are.

One `Connections` serves all connections of a process. With each it notes by when the client must have done what is
expected of it: send the rest of a request, take an answer, or, when nothing is under way, send the next request. One
look a second finds those that are overdue; a timer for each request would cost more than all of this.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from deferd.settings import Settings

LINGER_S = 2.0
"""How long a client may still send after it was refused. Closing at once would destroy the answer on its way."""
TURNED_AWAY_MAX = 200
"""Connections too many that are told so at one time; those beyond are closed without a word."""
LAST_ANSWERS_S = 75.0
"""The most that answers take which are under way on a connection whose later requests are refused: a pop waits 60 s."""

_log = logging.getLogger("deferd.connections")


class Overdue(Protocol):
    """A connection that must have done something by a certain time."""

    def overdue(self) -> None:
        """It has not."""


class Connections:
    """The limits of a process's connections, and those connections that must do something in time.

    `clock` gives seconds and never jumps. `max_open` may be lowered, where the system allows fewer open files.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_open = settings.max_connections
        self.max_head_bytes = settings.max_head_bytes
        self.head_timeout_s = settings.head_timeout
        self.body_timeout_s = settings.body_timeout
        self.answer_timeout_s = settings.answer_timeout
        self.turned_away = 0
        self._clock = clock
        self._due_s: dict[Overdue, float] = {}
        self._earliest_s = math.inf  # nothing that is noted is due before

    def expect(self, connection: Overdue, within_s: float) -> None:
        """Call `overdue` of the connection about then, at most a second later; this replaces what was noted before."""
        self._due_s[connection] = due_s = self._clock() + within_s
        if due_s < self._earliest_s:  # noqa: PLR1730 (min() takes longer, and this runs for each request)
            self._earliest_s = due_s

    def settle(self, connection: Overdue) -> None:
        """It has done what was expected, or is closed."""
        self._due_s.pop(connection, None)

    def is_expecting(self, connection: Overdue) -> bool:
        """Whether something is noted with it."""
        return connection in self._due_s

    def look(self) -> None:
        """Deal with those that are overdue. To be called once a second."""
        now_s = self._clock()
        if now_s < self._earliest_s:
            return
        late = [connection for connection, due_s in self._due_s.items() if due_s <= now_s]
        for connection in late:
            del self._due_s[connection]
            try:
                connection.overdue()
            except Exception:  # noqa: BLE001 (one connection must not keep the others from being looked at)
                _log.exception("a connection that was overdue could not be closed")
        self._earliest_s = min(self._due_s.values(), default=math.inf)
