"""The rate limit of a key: a token bucket in the memory of one server process, so the limit multiplies with them."""

from __future__ import annotations

import math

from deferd.api.auth.api_keys import Limit


class Bucket:
    """Holds up to `burst` tokens and gains `requests_per_second` of them; each request takes one."""

    __slots__ = ("_at_s", "_lines", "_tokens", "limit")

    def __init__(self, limit: Limit, now_s: float) -> None:
        self.limit = limit
        self._tokens = float(limit.burst)
        self._at_s = now_s
        window_s = max(1, math.ceil(limit.burst / limit.requests_per_second))
        policy = b'ratelimit-policy: "requests";q=%d;w=%d\r\n' % (limit.burst, window_s)
        self._lines = policy + b'ratelimit: "requests";r=%d;t=%d\r\n'

    def take(self, now_s: float) -> float:
        """Take a token: 0 when there was one, else the seconds until there is one. `now_s` is a monotonic clock."""
        self._refill(now_s)
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.limit.requests_per_second

    def give_back(self, tokens: int) -> None:
        """Return what `take` has taken for requests that do not count."""
        self._tokens = min(self.limit.burst, self._tokens + tokens)

    def _refill(self, now_s: float) -> None:
        gained = (now_s - self._at_s) * self.limit.requests_per_second
        self._tokens = min(self.limit.burst, self._tokens + gained)
        self._at_s = now_s

    def header_lines(self, now_s: float) -> bytes:
        """The current state in the headers of draft-ietf-httpapi-ratelimit-headers (IETF), each ended by CRLF.

        `q` requests in `w` seconds are allowed; `r` are left, and all of them again in `t` seconds. After a long poll
        the last `take` may be a minute ago, so the bucket is refilled first.
        """
        self._refill(now_s)
        full_in_s = math.ceil((self.limit.burst - self._tokens) / self.limit.requests_per_second)
        return self._lines % (self._tokens, full_in_s)
