"""Whether the service responds, as a client's requests have shown: a circuit breaker.

While the circuit is open, only one request at a time asks whether the service is back: the probe, which is the first
call after a pause that grows from 0.1 s to 1 s. The others wait for its result, or fail.
"""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from typing import Any

from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.requests import ApiRequest
from deferd.client.retry import RetryPolicy, jittered
from deferd.contract.errors import DeferdError
from deferd.contract.real_time import epoch_s, monotonic_s

_PAUSES = RetryPolicy(first_pause_s=0.1, max_pause_s=1.0)
_PROBE_S = 5.0
"""A probe without a result for this long no longer keeps others from probing. No `Retry-After` does so for longer."""
_POLL_S = 0.1
_SURE_AFTER_S = 1.0
_FORGOTTEN_S = 300.0
"""A failure that comes this long after the last one begins a new outage: nobody knows what was between."""
_ENOUGH = 2
"""The weight of failures that show that a replica does not respond: one that is sure, or two others."""
_GATEWAY_STATUSES = (502, 503, 504)


class Circuit:
    """Opens when requests to all `replicas` of the service have failed in a row, and closes with the first response.

    One failure of each is enough when no connection could be made, or the response is more than a second late. A broken
    connection, or a gateway without a service, may concern one request only: it takes two of each. However many fail at
    one replica, those of the others decide as well.
    """

    def __init__(self, replicas: int) -> None:
        self._weights = [0] * replicas
        """Of the failures of each replica since the last response; see _ENOUGH."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._failed_at_s = 0.0
        self._responded_at_s = 0.0
        self._probe: object | None = None
        self._probes = 0
        self._next_probe_s = 0.0
        self._next_pause_s = 0.0
        self._last_error = ""
        self.is_open = False
        self.down_since_s = 0.0
        """When the first of the failed requests should have had its response at best, by the monotonic clock."""

    def responded(self) -> None:
        """Note a response of the service."""
        self._responded_at_s = monotonic_s()
        if any(self._weights):
            with self._own_lock():
                self._weights = [0] * len(self._weights)
                self._probes = 0
                self._probe = None
                self.is_open = False

    def failed(
        self, error: DeferdError, sent_at_s: float, probe: object | None, *, wait_s: float = 0.0, replica: int = 0
    ) -> None:
        """Note an error of a request that was sent to a replica at `sent_at_s`.

        `wait_s` is how long the service may take for it by design: a long poll that breaks off says nothing about the
        time before.
        """
        if not _is_failure(error):
            self.responded()
            return
        if isinstance(error, ClientBusy | ClientClosed) or sent_at_s < self._responded_at_s:
            return
        now_s = monotonic_s()
        due_s = min(sent_at_s + wait_s, now_s)
        is_sure = isinstance(error, Unreachable) or now_s - due_s > _SURE_AFTER_S
        with self._own_lock():
            if now_s - self._failed_at_s > _FORGOTTEN_S:
                self._weights = [0] * len(self._weights)
            if not any(self._weights) or due_s < self.down_since_s:
                self.down_since_s = due_s
            self._weights[replica] += _ENOUGH if is_sure else 1
            self._failed_at_s = now_s
            self._last_error = str(error)
            if probe is not None:
                self._next_pause_s = min(_PAUSES.pause_s(self._probes, error), _PROBE_S)
            elif not self.is_open:
                self.is_open = min(self._weights) >= _ENOUGH
                self._next_probe_s = now_s + min(_PAUSES.pause_s(0, error), _PROBE_S)

    def begin_probe(self) -> object | None:
        """A token if this call may ask now whether the service is back, otherwise None."""
        with self._own_lock():
            now_s = monotonic_s()
            if now_s < self._next_probe_s:
                return None
            self._probe = object()
            self._probes += 1
            self._next_probe_s = now_s + _PROBE_S
            self._next_pause_s = _PAUSES.pause_s(self._probes)
            return self._probe

    def end_probe(self, probe: object) -> None:
        """End a probe, also one that was cancelled before it had a result."""
        with self._own_lock():
            if self._probe is probe:
                self._probe = None
                self._next_probe_s = monotonic_s() + self._next_pause_s

    def _own_lock(self) -> threading.Lock:
        """The lock; after a fork a new one: another thread of the parent process may have held it."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
            self._probe = None  # its result comes in the parent process
        return self._lock

    def pause_s(self) -> float:
        """How long to wait before asking again for a probe, or for its result."""
        if self._probe is not None:
            return jittered(_POLL_S)
        return max(self._next_probe_s - monotonic_s(), jittered(_POLL_S) / 10)

    def error(self, request: ApiRequest[Any]) -> Unreachable:
        """The error of a request that is not sent because the circuit is open."""
        down_s = monotonic_s() - self.down_since_s
        since = datetime.fromtimestamp(epoch_s() - down_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        next_s = self._next_probe_s - monotonic_s()
        following = "an attempt is under way" if self._probe is not None else f"the next attempt is in {next_s:.1f} s"
        return Unreachable(
            f"{request.method} {request.path}: not sent, because the service has not responded since {since} "
            f"({down_s:.1f} s): {self._last_error}; {following}"
        )


def _is_failure(error: DeferdError) -> bool:
    """Whether an error is the lack of a response of the service."""
    if isinstance(error, UnexpectedAnswer):
        return error.status in _GATEWAY_STATUSES and not error.is_problem
    return isinstance(error, NoAnswer)
