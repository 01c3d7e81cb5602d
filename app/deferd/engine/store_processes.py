"""Which processes serve a store, of which release, and the format of the store that all of them know.

Each server process notes in the store that it is there. A release knows its newest format and the one before. It goes
on with the format that the store has until all processes have known a newer one for half a minute: a process that could
not reach the store for a while is not taken for gone. Then the format is raised, in the same step of the store
(`lua/announce.lua`). From then on a process that does not know it refuses all calls: `StoreWatch` looks once a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import Annotated

import msgspec
import orjson

from deferd.contract.errors import NotYetAvailable, StoreUnavailable
from deferd.engine.scripts import Scripts
from deferd.store import shard_guard
from deferd.store.shard_guard import PROCESSES_KEY, SHARDS_KEY, layout_in
from deferd.version import VERSION

ANNOUNCE_EVERY_S = 5.0
_ALONE_EVERY_S = 20.0
"""Where no other service can use the store: each announcement is a write, and a laptop's disk may rest."""
COUNTS_MS = 60_000
"""For how long a process counts that says nothing: it may be frozen, or cut off from the store."""
GRACE_MS = 30_000
"""For how long all processes must have known a format before the store has it."""
_AT_ONCE = -1
_NAMED = 3
"""How many processes an error names."""
_LATEST_MS = 253_402_300_799_999
"""The last instant that responses can have, at the end of year 9999."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreProcess:
    """A process that uses the store, as it last said. Times are in ms of the store's clock and of the process's."""

    id: str
    release: str
    host: str
    pid: int
    since_ms: int
    seen_ms: int
    newest_format: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, deferd {self.release}"


class _Shown(msgspec.Struct):
    """What a process says of itself. A later release may say more."""

    release: str
    host: str
    pid: int
    since: Annotated[int, msgspec.Meta(ge=0, le=_LATEST_MS)]


class StoreProcesses:
    """The processes of a store, this one among them. With `exclusive` no other service can use the store."""

    def __init__(self, scripts: Scripts, *, exclusive: bool) -> None:
        self._scripts = scripts
        self._is_exclusive = exclusive
        self._grace_ms = 0 if exclusive else GRACE_MS
        self._id = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._shown = orjson.dumps(
            {
                "release": VERSION,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "since": round(time.time() * 1000),
            }
        )
        self.format = shard_guard.OLDEST_FORMAT
        """The format of the store, as this process last read it: what is newer must not be written."""
        self._found: list[StoreProcess] = []

    def is_one_later(self) -> bool:
        """Whether a process knows a format that this one does not, as far as that is known."""
        return any(one.newest_format > shard_guard.FORMAT for one in self._found)

    async def run(self) -> None:
        """Announce this process until cancelled. Errors of the store are waited out."""
        while True:
            await asyncio.sleep(_ALONE_EVERY_S if self._is_exclusive else ANNOUNCE_EVERY_S)
            await self.read()

    async def begin(self) -> None:
        """Announce this process at its start. While the store takes no writes, or the part of it that has the format
        cannot be reached, the process serves what it can, and `run` announces it later.

        Raises:
            StoreUnavailable: the store has a format that this process does not know.
        """
        try:
            guard = await self._announce(self._shown, self._grace_ms)
        except StoreUnavailable as exc:
            _LOG.warning("this process is not yet in the store's list of processes: %s", exc)
        else:
            self._read_format(guard)

    async def announce(self) -> None:
        """Note that this process is there, and raise the store's format if all know a newer one.

        Raises:
            StoreUnavailable: the store cannot be reached, or has a format that this process does not know.
        """
        self._read_format(await self._announce(self._shown, self._grace_ms))

    async def read(self) -> list[StoreProcess]:
        """All processes, the oldest first; while that part of the store cannot be reached, as they were before."""
        try:
            await self.announce()
        except StoreUnavailable as exc:
            _LOG.debug("this process could not be announced: %s", exc)
        except Exception:  # noqa: BLE001 (jobs do not depend on this)
            _LOG.exception("this process could not be announced")
        return self._found

    async def upgrade(self) -> list[StoreProcess]:
        """As `announce`, but raise the format at once: processes that do not know it refuse all calls from then on.

        Returns all processes.

        Raises:
            NotYetAvailable: only processes of a later release know a newer format, and nothing was done.
            StoreUnavailable: as `announce`.
        """
        before = self.format
        self._read_format(await self._announce(self._shown, _AT_ONCE))
        later = [one for one in self._found if one.newest_format > shard_guard.FORMAT]
        if later and self.format == before:
            raise NotYetAvailable(
                f"this service is of deferd {VERSION}, which knows no format of the store above {shard_guard.FORMAT}; "
                f"let a service of a later release do it, such as {later[-1]}"
            )
        return self._found

    async def leave(self) -> None:
        """Note that this process ends, so that nobody waits for it. Errors of the store are ignored."""
        try:
            await self._announce(b"", self._grace_ms)
        except StoreUnavailable as exc:
            _LOG.debug("the end of this process could not be announced: %s", exc)

    def require(self, since_format: int, what: str) -> None:
        """Return if the store has this format, which `what` needs, a field or an operation.

        Raises:
            NotYetAvailable: a process of an earlier release may still use the store.
        """
        if self.format < since_format:
            behind = [one for one in self._found if one.newest_format < since_format]
            raise NotYetAvailable(
                f"{what} needs format {since_format} of the store, which has format {self.format}"
                + "".join(f"; {one} does not know it" for one in behind[:_NAMED])
                + (f"; {len(behind) - _NAMED} more do not" if len(behind) > _NAMED else "")
            )

    async def _announce(self, shown: bytes, grace_ms: int) -> bytes | None:
        """Run the script, and note the processes that it found. Returns the shard guard; None while it is missing."""
        args = (self._id, shown, shard_guard.FORMAT, VERSION, COUNTS_MS, grace_ms)
        guard, found = await self._scripts.run("announce", (SHARDS_KEY, PROCESSES_KEY), args)
        read = (_read(*found[at : at + 4]) for at in range(0, len(found), 4))
        self._found = sorted((one for one in read if one is not None), key=lambda one: (one.since_ms, one.id))
        stored: bytes | None = guard
        return stored

    def _read_format(self, guard: bytes | None) -> None:
        if guard is None:
            return
        try:
            found = layout_in(guard.decode(errors="replace")).format
        except ValueError as exc:
            raise StoreUnavailable(f"the store {exc}") from exc
        if found != self.format:
            _LOG.info("the store has format %d", found)
        self.format = found


def _read(process: bytes, seen: bytes, newest_format: bytes, shown: bytes) -> StoreProcess | None:
    """A process of the list; None for what another program has written there."""
    try:
        read = msgspec.json.decode(shown, type=_Shown)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    name = process.decode(errors="replace")
    return StoreProcess(name, read.release, read.host, read.pid, read.since, int(seen), int(newest_format))
