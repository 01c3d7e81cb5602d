"""Logs why calls of the store fail: what the responses say is what the operator needs, and nothing else logs it."""

from __future__ import annotations

import logging
import time

_LOG = logging.getLogger("deferd.store.calls")
_LOG.addHandler(logging.NullHandler())  # a command, which configures no log, reports the error itself
REPEATED_S = 60.0
_REASONS_KEPT = 20


class FailureLog:
    """Logs a reason at once, and again when it holds for longer than REPEATED_S; a bounded number in that time."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def note(self, call: str, reason: str) -> None:
        """A call failed for this reason."""
        now_s = time.monotonic()
        if now_s - self._logged_s.get(reason, -REPEATED_S) < REPEATED_S:
            return
        if len(self._logged_s) >= _REASONS_KEPT:
            self._logged_s = {text: at_s for text, at_s in self._logged_s.items() if now_s - at_s < REPEATED_S}
        if len(self._logged_s) < _REASONS_KEPT:
            self._logged_s[reason] = now_s
            _LOG.warning("calls fail: %s", reason, extra={"call": call})
