"""What the console can undo: kept in the store for some seconds, so that any process can do it."""

from __future__ import annotations

import hashlib
import secrets

from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

UNDO_BYTES_MAX = 1024 * 1024


class ConsoleUndo:
    """Keeps bytes under a token that nobody can guess. All methods raise StoreUnavailable."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys

    async def keep(self, content: bytes, for_ms: int) -> str:
        """Keep at most UNDO_BYTES_MAX bytes for some time; the token to get them by."""
        if len(content) > UNDO_BYTES_MAX:
            raise ValueError(f"more than {UNDO_BYTES_MAX} bytes")
        token = secrets.token_urlsafe(24)
        await self._scripts.write("SET", self._key(token), content, "PX", for_ms)
        return token

    async def get(self, token: str) -> bytes | None:
        """What is kept under the token; None when its time is over or it was taken."""
        content: bytes | None = await self._scripts.command("GET", self._key(token))
        return content

    async def claim(self, token: str) -> bytes | None:
        """The same for who carries it out; None while another has it. A claim ends by `release` or `done`.

        Otherwise it lasts longer than the content: whether what has not ended yet was carried out is not known, and
        carried out again later it could put jobs that were finished meanwhile.
        """
        left_ms: int = await self._scripts.command("PTTL", self._key(token))
        if left_ms <= 0:
            return None
        claimed = await self._scripts.write("SET", self._claim(token), "", "NX", "PX", left_ms + 1)
        return await self.get(token) if claimed is not None else None

    async def release(self, token: str) -> None:
        """End a claim: what failed can be tried again."""
        await self._scripts.write("UNLINK", self._claim(token))

    async def done(self, token: str, rest: bytes | None = None) -> None:
        """Forget what is kept, or keep `rest` in its place for the time that is left."""
        left_ms: int = await self._scripts.command("PTTL", self._key(token)) if rest is not None else 0
        if rest is not None and left_ms > 0:
            await self._scripts.write("SET", self._key(token), rest, "PX", left_ms)
        else:
            await self._scripts.write("UNLINK", self._key(token))
        await self.release(token)

    def _claim(self, token: str) -> str:
        return f"{self._key(token)}/claim"

    def _key(self, token: str) -> str:
        return self._keys.of_shard(0, f"console/undo/{hashlib.sha256(token.encode()).hexdigest()[:32]}")
