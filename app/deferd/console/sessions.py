"""Log-in with a key, and the session that follows it."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial

from deferd.api.auth.admission import Admission
from deferd.api.auth.api_keys import Key, Limit, Permission
from deferd.api.auth.rate_limit import Bucket
from deferd.api.context import AppContext
from deferd.api.incoming_request import IncomingRequest
from deferd.contract.errors import Forbidden, RateLimited, Unauthorized
from deferd.contract.scopes import Scope
from deferd.engine.caches import SharedReads

_COOKIE_BYTES = 32
_COOKIE_LENGTH = 43
_COOKIES_TRIED = 20
"""Each one costs a read of the store."""
_FAILED_ATTEMPTS = Limit(requests_per_second=0.2, burst=10)
_ADDRESSES_MAX = 1000
_KEPT_S = 1.0
"""How long another process may still accept a session that has ended."""
_KEPT = 1000
_LOG_IN = Permission(None, operation="POST /console/login")


class Sessions:
    """The sessions of people who have logged in.

    Failed attempts are limited by client address, in the memory of this process. It remembers a session for a second.
    """

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._failures: dict[str | None, _Failures] = {}
        self._digests: SharedReads[bytes | None] = SharedReads(_KEPT_S, _KEPT)

    async def log_in(self, token: str, request: IncomingRequest) -> str:
        """The value of the cookie of a new session for the key with this token.

        Raises:
            RateLimited: there is no such key, and there were too many attempts from this address. The key that exists
                is admitted: else others at its address could keep it out, and nobody guesses a token.
            Unauthorized: there is no such key.
            Forbidden: the key lacks the scope `read`, without which it would see no page.
            StoreUnavailable.
        """
        gate = self._context.gate
        key = gate.find_key(token.strip().encode())
        if key is None:
            failures = self._failures_of(request.client_address())
            wait_s = failures.blocked_until_s - time.monotonic()
            if wait_s <= 0:
                wait_s = failures.note()
            if wait_s > 0:
                gate.audit_refusal(None, _LOG_IN, request, None, RateLimited.code)
                raise RateLimited("too many attempts to log in from this address", retry_after_s=math.ceil(wait_s))
            gate.audit_refusal(None, _LOG_IN, request, None, Unauthorized.code)
            raise Unauthorized("this key is not known to the service")
        if Scope.READ not in key.scopes:
            gate.audit_refusal(key.name, _LOG_IN, request, None, Forbidden.code)
            raise Forbidden(f"The key {key.name} lacks scope read, which all pages need: it has {_listed(key.scopes)}.")
        cookie = secrets.token_urlsafe(_COOKIE_BYTES)
        with gate.recording(_LOG_IN, request, Admission(key), {}):
            await self._context.engine.console_sessions.open(_digest(cookie), key.digest)
        return cookie

    async def key_of(self, cookies: Sequence[str]) -> Key | None:
        """The key, as it is now, of the first of these cookies that has a session with a key.

        None when the session or its key has ended. Raises StoreUnavailable.
        """
        for digest in _digests(cookies):
            found = await self._digests.get(digest, partial(self._context.engine.console_sessions.key_of, digest))
            key = None if found is None else self._context.gate.key_of_digest(found)
            if key is not None:
                return key
        return None

    async def log_out(self, cookies: Sequence[str]) -> None:
        """End the sessions of these cookies. Raises StoreUnavailable."""
        for digest in _digests(cookies):
            try:
                await self._context.engine.console_sessions.close(digest)
            finally:
                self._digests.forget(digest)

    def _failures_of(self, address: str | None) -> _Failures:
        failures = self._failures.pop(address, None)
        if failures is None:
            while len(self._failures) >= _ADDRESSES_MAX:
                del self._failures[next(iter(self._failures))]
            failures = _Failures()
        self._failures[address] = failures
        return failures


class _Failures:
    """The failed attempts of an address. After ten, further ones are refused for five seconds after each."""

    __slots__ = ("_bucket", "blocked_until_s")

    def __init__(self) -> None:
        self._bucket = Bucket(_FAILED_ATTEMPTS, time.monotonic())
        self.blocked_until_s = float("-inf")

    def note(self) -> float:
        """Count a failure; for how many seconds the address is refused from now on."""
        now_s = time.monotonic()
        wait_s = self._bucket.take(now_s)
        self.blocked_until_s = now_s + wait_s
        return wait_s


def _digests(cookies: Sequence[str]) -> list[bytes]:
    """How many cookies that may be sessions are checked. Another program on this host may have set further ones."""
    return [_digest(cookie) for cookie in cookies if len(cookie) == _COOKIE_LENGTH][:_COOKIES_TRIED]


def _listed(scopes: Iterable[Scope]) -> str:
    return ", ".join(scope for scope in Scope if scope in scopes)


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
