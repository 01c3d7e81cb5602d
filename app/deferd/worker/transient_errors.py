"""Calls that fail for a reason that passes: how long to wait before the next try, and what to log of it."""

from __future__ import annotations

import logging
import random
import time

from deferd.contract.errors import DeferdError, Forbidden, TryLater, Unauthorized

LOG = logging.getLogger("deferd.worker")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class Pauses:
    """The pauses between the tries of one call: growing, spread, and at least what the service asks for."""

    def __init__(self) -> None:
        self._tries = 0

    def next_s(self, error: DeferdError | None = None) -> float:
        """How long to wait after a try that ended so."""
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self._tries, 10), _LONGEST_PAUSE_S)
        self._tries += 1
        asked_s = error.retry_after_s if isinstance(error, TryLater) else 0
        return max(spread(pause_s), asked_s * random.uniform(1, 1.25))  # noqa: S311 (no secret)


def spread(pause_s: float) -> float:
    """Half of it to all of it, so that workers do not come back in step."""
    return pause_s * random.uniform(0.5, 1)  # noqa: S311 (no secret)


class Trouble:
    """One kind of call that does not come through. It is logged when it begins and when it is over, not in between."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._since_s: float | None = None

    def met(self, error: Exception) -> None:
        """A call failed."""
        if self._since_s is not None:
            return
        self._since_s = time.monotonic()
        # A wrong key does not mend itself, but the one who can mend it may do so at the service.
        level = logging.ERROR if isinstance(error, Unauthorized | Forbidden) else logging.WARNING
        facts = {"doing": self._doing, "error": f"{type(error).__name__}: {error}"}
        reason = str(error) or "no answer in time"
        LOG.log(level, "%s failed and is tried again until it succeeds: %s", self._doing, reason, extra=facts)

    def over(self) -> None:
        """A call was answered."""
        if self._since_s is None:
            return
        away_s = time.monotonic() - self._since_s
        self._since_s = None
        facts = {"doing": self._doing, "seconds": round(away_s, 3)}
        LOG.info("%s succeeds again after %.1f s", self._doing, away_s, extra=facts)
