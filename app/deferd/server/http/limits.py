"""What a connection may do: how much it sends ahead of a request's body, how long it may take, how many there are.

One `Connections` serves all connections of a process. With each it notes by when the client must have done what is
expected of it: send the rest of a request, take an answer, or, when nothing is under way, send the next request. One
look a second finds those that are overdue; a timer for each request would cost more than all of this.

Connections are counted from when they are accepted, those whose TLS handshake is under way too. When there are as many
as may be, a new one takes the place of the one that has been silent longest since it was opened, else of those that
have been idle longest, at least IDLE_S. So sockets that do nothing keep nobody out. Where all are busy, the new one is
turned away.
"""

from __future__ import annotations

import heapq
import itertools
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

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than the minute for which proxies keep theirs."""
IDLE_S = 5.0
"""How long a connection must have been idle to be closed for a new one. Clients that are at work ask again sooner."""
_IDLE_CLOSED_AT_ONCE = 32
_IDLE_LOOK_EVERY_S = 0.1

_log = logging.getLogger("deferd.connections")


class Overdue(Protocol):
    """A connection that must have done something by a certain time."""

    def overdue(self) -> None:
        """It has not."""

    def is_idle(self) -> bool:
        """Whether it waits for the client's next request, and no part of that has come."""

    def cut_off(self) -> None:
        """Close it at once."""


class Counted(Protocol):
    """An open connection."""

    def is_idle(self) -> bool:
        """See Overdue."""

    def cut_off(self) -> None:
        """See Overdue."""


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
        self._open: set[Counted] = set()
        self._silent: dict[Counted, None] = {}  # those that have sent no whole head yet, in the order they came
        self._look_for_idle_at_s = -math.inf

    def enter(self, connection: Counted) -> bool:
        """Count a connection that was accepted; False when it is one too many."""
        if len(self._open) >= self.max_open and not self._make_room():
            return False
        self._open.add(connection)
        self._silent[connection] = None
        return True

    def replace(self, before: Counted, connection: Counted) -> None:
        """The same connection, whose handshake has ended, is `connection` from now on."""
        self.leave(before)
        self._open.add(connection)
        self._silent[connection] = None

    def spoke(self, connection: Counted) -> None:
        """The head of its first request has come."""
        self._silent.pop(connection, None)

    def leave(self, connection: Counted) -> None:
        """It is closed, or does not count."""
        self._open.discard(connection)
        self._silent.pop(connection, None)

    def _make_room(self) -> bool:
        """Close a connection that nobody uses, or several."""
        chosen: list[Counted] = list(itertools.islice(self._silent, 1)) or self._longest_idle()
        for connection in chosen:
            self.leave(connection)
            connection.cut_off()
        return bool(chosen)

    def _longest_idle(self) -> list[Counted]:
        """Some of those that have been idle for IDLE_S. All are looked at, so at most every tenth of a second."""
        now_s = self._clock()
        if now_s < self._look_for_idle_at_s:
            return []
        due_by_s = now_s + KEEP_ALIVE_S - IDLE_S
        idle = [
            connection
            for connection, due_s in self._due_s.items()
            if due_s <= due_by_s and connection in self._open and connection.is_idle()
        ]
        longest = heapq.nsmallest(_IDLE_CLOSED_AT_ONCE, idle, key=self._due_s.__getitem__)
        if not longest:
            self._look_for_idle_at_s = now_s + _IDLE_LOOK_EVERY_S
        return list(longest)

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
