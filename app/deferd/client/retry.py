"""When to send a failed request again, and after how long a pause: one policy for the client and the worker. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass

from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.contract.errors import DeferdError, RateLimited, StoreUnavailable, TooLate, TopicFull, TryLater

_TOO_MANY_REQUESTS = 429
_TRANSIENT_STATUSES = (_TOO_MANY_REQUESTS, 408, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which errors are worth a retry, and the pause before it.

    Pauses double from `first_pause_s` up to `max_pause_s`, with jitter. A pause is never shorter than the Retry-After
    of the response. One that a proxy sent may be hours: without `heeds_proxies` only the service's own counts.
    """

    first_pause_s: float = 0.1
    max_pause_s: float = 5.0
    heeds_proxies: bool = True

    def pause_s(self, failures: int, error: DeferdError | None = None) -> float:
        """Seconds to wait after `error`, when `failures` attempts failed before this one."""
        grown_s = min(self.first_pause_s * 2.0 ** min(failures, 10), self.max_pause_s)
        return max(jittered(grown_s), self._requested_s(error) * random.uniform(1, 1.25))  # noqa: S311 (spreads load)

    def _requested_s(self, error: DeferdError | None) -> float:
        if isinstance(error, TryLater) or (self.heeds_proxies and isinstance(error, UnexpectedAnswer)):
            return error.retry_after_s or 0
        return 0

    @staticmethod
    def is_transient(error: DeferdError) -> bool:
        """Whether the same request may succeed later without anybody changing anything."""
        if isinstance(error, UnexpectedAnswer):
            return error.status in _TRANSIENT_STATUSES
        if isinstance(error, ClientClosed):
            return False
        return isinstance(error, NoAnswer | StoreUnavailable | TopicFull | RateLimited | TooLate)

    @staticmethod
    def is_refusal(error: DeferdError) -> bool:
        """Whether the request was turned away before it was executed, by a service that is up or by a busy client."""
        if isinstance(error, UnexpectedAnswer):
            return error.status == _TOO_MANY_REQUESTS
        return isinstance(error, TopicFull | RateLimited | TooLate | ClientBusy)

    @classmethod
    def may_have_been_executed(cls, error: DeferdError) -> bool:
        """Whether a transient error leaves open if the service executed the request."""
        return not cls.is_refusal(error) and not isinstance(error, Unreachable)


def jittered(pause_s: float) -> float:
    """Between half of `pause_s` and all of it, so that those who failed together do not return together."""
    return pause_s * random.uniform(0.5, 1)  # noqa: S311 (spreads load)
