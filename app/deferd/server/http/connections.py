"""The HTTP connections of a process: how many may be open, and by when each must act.

One `Connections` serves all connections of a process. It keeps a deadline for each connection that must do something:
send the rest of a request, read a response, or, when idle, send the next request. A check once a second finds the
overdue ones; a timer for each request would cost more than all of this.

A connection counts from when it is accepted, also during its TLS handshake. At the limit a new connection replaces the
one that has sent nothing for longest since it was opened, otherwise those idle longest, for at least IDLE_S, so idle
sockets cannot keep clients out. When all are busy, the new connection is rejected.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from deferd.server.http.trusted_proxies import TrustedProxies
from deferd.settings import Settings

LINGER_S = 2.0
"""How long a client may still send after it was refused. Closing at once could destroy the response in transit."""
REJECTED_MAX = 200
"""Most surplus connections that get a 503 at one time; further ones are closed without a response."""
LAST_RESPONSES_S = 75.0
"""How long pending responses may take once a later request on the connection is refused: a pop waits up to 60 s."""

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than the 60 s that proxies use."""
IDLE_S = 5.0
"""How long a connection must be idle before a new one may replace it. Active clients send sooner."""
_IDLE_CLOSED_AT_ONCE = 32
_IDLE_CHECK_INTERVAL_S = 0.1
LIMIT_LOGGED_EVERY_S = 60.0

_log = logging.getLogger("deferd.connections")


class OpenConnection(Protocol):
    """A connection that counts against the limit."""

    def is_idle(self) -> bool:
        """Whether it waits for the client's next request and has received nothing of it."""

    def cut_off(self) -> None:
        """Close it at once."""


class TimedConnection(OpenConnection, Protocol):
    """A connection that may have a deadline."""

    def deadline_passed(self) -> None:
        """The client did not act in time."""


class ServedConnection(OpenConnection, Protocol):
    """A connection that the server notifies when it stops."""

    def shutdown(self) -> None:
        """Close once what was received has its response."""


class Work(Protocol):
    """The work on a request: a task, or what stands for one."""

    def cancel(self, msg: str | None = None) -> object:
        """End it: the server stops without waiting longer."""


class Connections:
    """The connections of a process, their limits and their deadlines, and what a stop of the server waits for.

    `clock` returns monotonic seconds. `max_open` may be lowered where the system allows fewer open files.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_open = settings.max_connections
        self.max_head_bytes = settings.max_head_bytes
        self.head_timeout_s = settings.head_timeout
        self.body_timeout_s = settings.body_timeout
        self.response_timeout_s = settings.answer_timeout
        self.last_request_s = settings.drain_idle_timeout
        self.trusted_proxies = TrustedProxies(settings.trusted_proxy)
        self.first_requests = FirstRequests()
        self.rejected = 0
        self.connected: set[ServedConnection] = set()
        """Those that are neither in their TLS handshake nor rejected."""
        self.tasks: set[Work] = set()
        """The requests in progress, also of clients that have disconnected."""
        self.date_line = b""
        """The Date header of responses; the server renews it once a second."""
        self.is_stopping = False
        """Whether each response is the last one of its connection."""
        self._clock = clock
        self._deadlines_s: dict[TimedConnection, float] = {}
        self._earliest_s = math.inf  # a lower bound of all deadlines
        self._open: set[OpenConnection] = set()
        self._silent: dict[OpenConnection, None] = {}  # without a complete request head so far, oldest first
        self._next_idle_check_s = self._next_limit_log_s = -math.inf

    def add(self, connection: OpenConnection) -> bool:
        """Count an accepted connection; False when it exceeds the limit."""
        if len(self._open) >= self.max_open and not self._make_room():
            self._log_limit()
            return False
        self._open.add(connection)
        self._silent[connection] = None
        return True

    def replace(self, old: OpenConnection, new: OpenConnection) -> None:
        """Count `new` in place of `old`: the same connection after its handshake."""
        self.remove(old)
        self._open.add(new)
        self._silent[new] = None

    def head_received(self, connection: OpenConnection) -> None:
        """Note that the head of its first request is complete."""
        self._silent.pop(connection, None)

    def remove(self, connection: OpenConnection) -> None:
        """Stop counting a connection: it is closed."""
        self._open.discard(connection)
        self._silent.pop(connection, None)

    def _log_limit(self) -> None:
        now_s = self._clock()
        if now_s >= self._next_limit_log_s:
            self._next_limit_log_s = now_s + LIMIT_LOGGED_EVERY_S
            _log.warning("connections are refused: %d are open, the most that this process allows", self.max_open)

    def _make_room(self) -> bool:
        """Close connections that nobody uses; False when there are none."""
        unused: list[OpenConnection] = list(itertools.islice(self._silent, 1)) or self._longest_idle()
        for connection in unused:
            self.remove(connection)
            connection.cut_off()
        return bool(unused)

    def _longest_idle(self) -> list[OpenConnection]:
        """Connections that have been idle for IDLE_S, longest first. It visits all, so it runs every 0.1 s at most."""
        now_s = self._clock()
        if now_s < self._next_idle_check_s:
            return []
        latest_s = now_s + KEEP_ALIVE_S - IDLE_S
        idle = [
            connection
            for connection, deadline_s in self._deadlines_s.items()
            if deadline_s <= latest_s and connection in self._open and connection.is_idle()
        ]
        longest = heapq.nsmallest(_IDLE_CLOSED_AT_ONCE, idle, key=self._deadlines_s.__getitem__)
        if not longest:
            self._next_idle_check_s = now_s + _IDLE_CHECK_INTERVAL_S
        return list(longest)

    def has_idle(self) -> bool:
        """Whether any connection waits for its client's next request."""
        return any(connection.is_idle() for connection in self.connected)

    def set_deadline(self, connection: TimedConnection, within_s: float) -> None:
        """Call its `deadline_passed` then, at most a second late. Replaces an earlier deadline."""
        self._deadlines_s[connection] = deadline_s = self._clock() + within_s
        if deadline_s < self._earliest_s:  # noqa: PLR1730 (min() takes longer, and this runs for each request)
            self._earliest_s = deadline_s

    def clear_deadline(self, connection: TimedConnection) -> None:
        """Remove the deadline: the client has acted, or the connection is closed."""
        self._deadlines_s.pop(connection, None)

    def close_overdue(self) -> None:
        """Call `deadline_passed` of all overdue connections. To be called once a second."""
        now_s = self._clock()
        if now_s < self._earliest_s:
            return
        overdue = [connection for connection, deadline_s in self._deadlines_s.items() if deadline_s <= now_s]
        for connection in overdue:
            del self._deadlines_s[connection]
            try:
                connection.deadline_passed()
            except Exception:  # noqa: BLE001 (the other connections must still be checked)
                _log.exception("an overdue connection could not be closed")
        self._earliest_s = min(self._deadlines_s.values(), default=math.inf)


FIRST_REQUESTS_AT_ONCE = 16
"""First requests that begin in one turn: they take about two milliseconds."""


class FirstRequests:
    """Begins the first requests of connections in slices, some in each turn of the event loop, as they came.

    When thousands of clients connect at the same time, as after a restart, their first requests arrive in one turn. To
    begin all of them at once would keep everybody else waiting for half a second and longer.
    """

    def __init__(self) -> None:
        self._began = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def may_begin(self, begin: Callable[[], None]) -> bool:
        """Whether a request may begin now; else `begin` is called in a later turn."""
        if self._began == 0:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        elif self._began >= FIRST_REQUESTS_AT_ONCE:
            self._waiting.append(begin)
            return False
        self._began += 1
        return True

    def _begin_turn(self) -> None:
        """Begin some of those that wait. As long as any does, those that come wait behind them."""
        self._began = 0
        if self._waiting:
            self._began = FIRST_REQUESTS_AT_ONCE
            asyncio.get_running_loop().call_soon(self._begin_turn)
        for _ in range(min(len(self._waiting), FIRST_REQUESTS_AT_ONCE)):
            self._waiting.popleft()()
