"""The sessions of the console, in the store so that all processes know them."""

from __future__ import annotations

import time
from typing import NamedTuple

from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

SESSION_S = 12 * 3600
"""How long a session lasts after its last use."""
SESSION_MAX_S = 7 * 24 * 3600
"""How long it lasts after the log-in, however much it is used."""
SESSIONS_MAX = 1000
SESSIONS_PER_KEY = 50
_RENEW_AFTER_S = 600


class ConsoleSessions:
    """Maps the digest of a cookie to the digest of the key it was opened with.

    At most SESSIONS_PER_KEY of a key last, and SESSIONS_MAX in all: a further one ends the one that would end first.
    Nothing of a token or a cookie itself is stored. All methods raise StoreUnavailable.
    """

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._key = keys.of_shard(0, "console/sessions")

    async def open(self, cookie: bytes, key: bytes) -> None:
        """Begin a session. Both are SHA-256 digests."""
        now_s = int(time.time())
        session = _Session(now_s + SESSION_S, key, now_s + SESSION_MAX_S)
        args = (cookie.hex(), _written(session), SESSION_S * 1000)
        sessions = await self._scripts.run("open_session", (self._key,), args)
        # Afterwards: so that log-ins at the same time keep the bounds too.
        if sessions > SESSIONS_PER_KEY:
            await self._end_those_above_the_bounds(cookie, key)

    async def key_of(self, cookie: bytes) -> bytes | None:
        """The digest of the session's key; None without such a session. Its 12 h begin again, exact to ten minutes."""
        value = await self._scripts.command("HGET", self._key, cookie.hex())
        if value is None:
            return None
        session = _read(value)
        now_s = time.time()
        if session.ends_s <= now_s:
            await self.close(cookie)
            return None
        renewed = session._replace(ends_s=min(int(now_s) + SESSION_S, session.last_s))
        if renewed.ends_s - session.ends_s > _RENEW_AFTER_S:
            args = (cookie.hex(), value, _written(renewed), SESSION_S * 1000)
            if not await self._scripts.run("renew_session", (self._key,), args):
                return None
        return session.key

    async def close(self, cookie: bytes) -> None:
        """End a session."""
        await self._scripts.write("HDEL", self._key, cookie.hex())

    async def _end_those_above_the_bounds(self, new: bytes, key: bytes) -> None:
        flat: list[bytes] = await self._scripts.command("HGETALL", self._key)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        now_s = time.time()
        sessions = sorted((*_read(value), cookie) for cookie, value in pairs if cookie != new.hex().encode())
        ended = [cookie for ends_s, *_, cookie in sessions if ends_s <= now_s]
        lasting = [(cookie, found) for ends_s, found, _, cookie in sessions if ends_s > now_s]
        of_key = [cookie for cookie, found in lasting if found == key]
        above = of_key[: max(len(of_key) + 1 - SESSIONS_PER_KEY, 0)]
        others = [cookie for cookie, _ in lasting if cookie not in above]
        above += others[: max(len(others) + 1 - SESSIONS_MAX, 0)]
        if ended or above:
            await self._scripts.write("HDEL", self._key, *ended, *above)


class _Session(NamedTuple):
    ends_s: int
    key: bytes
    last_s: int
    """It ends by then in any case."""


def _written(session: _Session) -> str:
    return f"{session.ends_s} {session.key.hex()} {session.last_s}"


def _read(value: bytes | str) -> _Session:
    ends_s, key, *rest = (value.decode() if isinstance(value, bytes) else value).split(" ")
    return _Session(int(ends_s), bytes.fromhex(key), int(rest[0]) if rest else int(ends_s))
