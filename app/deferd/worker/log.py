"""The worker's logger, and its log lines about requests that keep failing."""

from __future__ import annotations

import logging

from deferd.contract.clocks import monotonic_s
from deferd.contract.errors import Forbidden, Unauthorized

LOG = logging.getLogger("deferd.worker")


class FailureLog:
    """One kind of request that is retried until it succeeds. Logs the first failure and the recovery, nothing between.

    `doing` is what the requests are for, such as ``fetching jobs``.
    """

    def __init__(self, doing: str, log: logging.Logger = LOG) -> None:
        self._doing = doing
        self._log = log
        self._since_s: float | None = None

    def failed(self, error: Exception) -> None:
        """A request failed."""
        if self._since_s is not None:
            return
        self._since_s = monotonic_s()
        # A refused key is retried too, because it may be added at the service; the level asks an operator to do so.
        level = logging.ERROR if isinstance(error, Unauthorized | Forbidden) else logging.WARNING
        facts = {"doing": self._doing, "error": f"{type(error).__name__}: {error}"}
        reason = str(error) or "no response in time"
        self._log.log(level, "%s failed and is retried until it succeeds: %s", self._doing, reason, extra=facts)

    def succeeded(self) -> None:
        """A request got a response."""
        if self._since_s is None:
            return
        failed_for_s = monotonic_s() - self._since_s
        self._since_s = None
        facts = {"doing": self._doing, "seconds": round(failed_for_s, 3)}
        self._log.info("%s succeeds again after %.1f s", self._doing, failed_for_s, extra=facts)
