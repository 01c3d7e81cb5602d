"""The rate limit of a key: a token bucket in the memory of one server process, so the limit multiplies with them."""

from __future__ import annotations

import math

from deferd.api.auth.api_keys import Limit


class Bucket:
    """Holds up to `burst` tokens and gains `requests_per_second` of them; each request takes one."""

    __slots__ = ("_at_s", "_tokens", "header_lines", "limit")

    def __init__(self, limit: Limit, now_s: float) -> None:
        self.limit = limit
        self._tokens = float(limit.burst)
        self._at_s = now_s
        window_s = max(1, math.ceil(limit.burst / limit.requests_per_second))
        policy = b'ratelimit-policy: "requests";q=%d;w=%d\r\n' % (limit.burst, window_s)
        self.header_lines = policy + b'ratelimit: "requests";r=%d;t=%d\r\n'
        """The headers of draft-ietf-httpapi-ratelimit-headers (IETF), each ended by CRLF, with gaps for the `state`.

        `q` requests in `w` seconds are allowed; `r` are left, and all of them again in `t` seconds.
        """

    def take(self, now_s: float) -> float:
        """Take a token: 0 when there was one, else the seconds until there is one. `now_s` is a monotonic clock."""
        tokens = self._refill(now_s)
        if tokens >= 1:
            self._tokens = tokens - 1
            return 0.0
        return (1 - tokens) / self.limit.requests_per_second

    def give_back(self, tokens: int) -> None:
        """Return what `take` has taken for requests that do not count."""
        self._tokens = min(self.limit.burst, self._tokens + tokens)

    def _refill(self, now_s: float) -> float:
        limit = self.limit
        tokens = self._tokens + (now_s - self._at_s) * limit.requests_per_second
        if tokens > limit.burst:  # noqa: PLR1730 (`min` takes as long as the rest; this is done twice a request)
            tokens = limit.burst
        self._tokens, self._at_s = tokens, now_s
        return tokens

    def state(self, now_s: float) -> tuple[float, int]:
        """How many tokens are left, and in how many seconds there will be all of them.

        After a long poll the last `take` may be a minute ago, so the bucket is refilled first.
        """
        tokens, limit = self._refill(now_s), self.limit
        return tokens, math.ceil((limit.burst - tokens) / limit.requests_per_second)
