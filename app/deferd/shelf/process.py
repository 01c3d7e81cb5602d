"""The process that owns the shelf: it opens the files, moves jobs, and serves the calls of the server processes.

It serves from its start to its end. While the files cannot be opened, or the store has not told which moves it has
seen, each call fails with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import Raw

from deferd.contract.errors import StoreUnavailable
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import KEPT_S, OPENING, STILL_S, Status
from deferd.shelf.calls import (
    CHECKPOINT,
    END,
    RELEASE,
    STATUS,
    STILL,
    VERBS,
    BadFrame,
    Frames,
    ShelfConfiguration,
    Verb,
    frame,
)
from deferd.shelf.moving import CHECKPOINT_S, FilesClosed, Mover, files_fault
from deferd.shelf.rows import IN, OUT, Rows
from deferd.shelf.shelving import Shelving
from deferd.store.connection import connect
from deferd.store.disk import write_fault
from deferd.store.task_cancellation import cancel_and_wait

_log = logging.getLogger("deferd.shelf")

OPEN_S = 2.0
"""How long calls wait while the files are being opened."""
RETRY_S = 1.0
"""The pause before the files are opened again, or the store is asked again."""


class ShelfProcess:
    """Serves until `end` is called, or asked for by a call; or until all connections have ended after `orphan`."""

    def __init__(self, configuration: ShelfConfiguration) -> None:
        self.configuration = configuration
        self.connections: set[_Connection] = set()
        self.is_orphan = False
        self._reason = OPENING
        """Why jobs cannot be moved."""
        self._mover: Mover | None = None
        self._shelving: Shelving | None = None
        """Exists when jobs can be moved."""
        self._jobs_at_start: int | None = None
        self._rows: Rows | None = None
        self._opened = asyncio.Event()
        """Set when it is known whether jobs can be moved."""
        self._end = asyncio.Event()

    def end(self) -> None:
        """End."""
        self._end.set()

    def orphan(self) -> None:
        """The service has ended: serve the connections that there are, for some time."""
        self.is_orphan = True
        if not self.connections:
            self.end()
        asyncio.get_running_loop().call_later(self.configuration.linger_s, self.end)

    async def run(self) -> None:
        """Serve. Raises OSError if the socket cannot be made."""
        store = await connect(self.configuration.store_url, timeout_s=self.configuration.store_timeout_s)
        scripts = Scripts(store, movable_clock=self.configuration.movable_clock)
        try:
            async with self._serving():
                moving = asyncio.create_task(self._move(scripts), name="shelf")
                ending = asyncio.create_task(self._end.wait(), name="end")
                await asyncio.wait({moving, ending}, return_when=asyncio.FIRST_COMPLETED)
                ended_alone = moving.done()
                await cancel_and_wait({moving, ending})
                await self._close()
                if ended_alone:
                    moving.result()
        finally:
            await store.close()

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Serve calls during the block. Connections end with the process: then the files are closed."""
        self._remove_socket()
        make = partial(_Connection, self)
        server = await asyncio.get_running_loop().create_unix_server(make, self.configuration.socket)
        try:
            yield
        finally:
            self._remove_socket()
            server.close()
            for connection in list(self.connections):
                connection.close()

    def _remove_socket(self) -> None:
        Path(self.configuration.socket).unlink(missing_ok=True)

    async def _move(self, scripts: Scripts) -> None:
        """Move jobs until cancelled."""
        while True:
            await self._move_until_broken(scripts)
            await self._close()

    async def _close(self) -> None:
        mover, self._mover, self._shelving = self._mover, None, None
        self._reason = OPENING
        self._opened.clear()
        if mover is not None:
            await mover.close()
        rows, self._rows = self._rows, None
        if rows is not None:
            await asyncio.to_thread(rows.close)

    async def _move_until_broken(self, scripts: Scripts) -> None:
        """Open the files, and move jobs until they must be opened again."""
        keys = Keys(self.configuration.shards)
        self._rows, mover = await self._open(scripts, keys)
        self._mover = mover
        moving = asyncio.create_task(self._settle_and_move(mover, scripts, keys), name="shelving")
        watching = asyncio.create_task(self._broken(mover), name="shelf-files")
        try:
            await asyncio.wait({moving, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait({moving, watching})
        for task in (moving, watching):
            if not task.cancelled():
                task.result()

    async def _settle_and_move(self, mover: Mover, scripts: Scripts, keys: Keys) -> None:
        await self._settle(mover)
        with contextlib.suppress(StoreUnavailable):  # it is logged where jobs are moved
            self._jobs_at_start = await mover.count()
        self._shelving = Shelving(
            mover,
            scripts,
            keys,
            after_ms=self.configuration.after_ms,
            # An earlier process may have promised that jobs stay in the store.
            wait_s=0.0 if mover.starts == 1 else KEPT_S,
        )
        self._opened.set()
        await self._shelving.run()

    async def _broken(self, mover: Mover) -> None:
        """Return when writing fails, and opening the files again may help. Until then the jobs can be read."""
        while True:
            await mover.files_failed.wait()
            mover.files_failed.clear()
            try:
                await mover.check_writing()
            except StoreUnavailable as exc:
                while await asyncio.to_thread(write_fault, Path(self.configuration.folder)):  # noqa: ASYNC110 (the disk tells nobody)
                    await asyncio.sleep(RETRY_S)
                _log.warning("opening the shelf's files again, after: %s", exc)
                return
            await asyncio.sleep(RETRY_S)

    async def _settle(self, mover: Mover) -> None:
        while True:
            try:
                return await mover.settle_all()
            except StoreUnavailable as exc:
                self._fail(f"the shelf cannot be used yet: {exc}")
                await asyncio.sleep(RETRY_S)

    async def _open(self, scripts: Scripts, keys: Keys) -> tuple[Rows, Mover]:
        while True:
            try:
                return await asyncio.to_thread(_opened, Path(self.configuration.folder), scripts, keys)
            except Exception as exc:
                fault = files_fault(exc)
                if fault is None:
                    raise
                self._fail(fault)
                await asyncio.sleep(RETRY_S)

    def _fail(self, reason: str) -> None:
        if self._reason != reason:
            self._reason = reason
            self._opened.set()
            _log.error("%s; trying again", reason)

    async def status(self) -> Status:
        """See ShelfCalls."""
        if self._mover is None or self._shelving is None:
            return Status(os.getpid(), self._reason)
        moved = self._mover.moved
        out_per_s, in_per_s = self._shelving.rates()
        try:
            jobs_behind, behind_s = await self._shelving.behind()
            bytes_on_disk = await self._mover.bytes_on_disk()
        except StoreUnavailable as exc:
            return Status(os.getpid(), str(exc))
        return Status(
            os.getpid(),
            None,
            None if self._jobs_at_start is None else self._jobs_at_start + moved[OUT] - moved[IN],
            bytes_on_disk,
            moved[OUT],
            moved[IN],
            round(out_per_s, 1),
            round(in_per_s, 1),
            jobs_behind,
            round(behind_s, 3),
            self._shelving.ahead_s,
            self._mover.count_unreadable(),
        )

    async def mover(self) -> Mover:
        """What moves jobs; a start takes a moment. Raises StoreUnavailable if they cannot be moved."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_S):
                await self._opened.wait()
        if self._mover is None or self._shelving is None:
            raise StoreUnavailable(self._reason)
        return self._mover


def _opened(folder: Path, scripts: Scripts, keys: Keys) -> tuple[Rows, Mover]:
    rows = Rows(folder)
    try:
        return rows, Mover(rows, scripts, keys)
    except BaseException:
        rows.close()
        raise


class _Connection(asyncio.Protocol):
    """The calls of a server process. What they have begun goes on when it ends, but for `still` and `checkpoint`."""

    def __init__(self, process: ShelfProcess) -> None:
        self._process = process
        self._frames = Frames()
        self._tasks: set[asyncio.Task[None]] = set()
        self._holds: dict[int, asyncio.Event] = {}
        """By the number of a call of `still` or `checkpoint`: what ends it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none
        self._process.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._process.connections.discard(self)
        for released in self._holds.values():
            released.set()
        if self._process.is_orphan and not self._process.connections:
            self._process.end()

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            for number, verb, arguments in self._frames.feed(data):
                if verb in {STILL, CHECKPOINT}:
                    self._holds[number] = asyncio.Event()  # at once: its release may be the next frame
                task = asyncio.create_task(self._reply(number, str(verb), arguments), name=f"shelf-{verb}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except BadFrame as exc:
            _log.error("a connection is closed: %s", exc)
            self._transport.abort()

    async def _reply(self, number: int, verb: str, arguments: Raw) -> None:
        try:
            if verb in {STILL, CHECKPOINT}:
                await self._hold(number, verb, *VERBS[verb].read_arguments(arguments))
            else:
                self._send(number, True, await self._call(verb, VERBS[verb], arguments))
        except StoreUnavailable as exc:
            self._send(number, False, str(exc))
        except FilesClosed:  # of `still`
            self._send(number, False, OPENING)
        except Exception as exc:  # noqa: BLE001 (the caller must get a reply)
            _log.exception("a call of the shelf failed: %s", verb)
            self._send(number, False, f"the shelf failed: {exc}")

    async def _call(self, verb: str, types: Verb, arguments: Raw) -> Any:
        if verb == STATUS:
            return await self._process.status()
        if verb == RELEASE:
            (number,) = types.read_arguments(arguments)
            return await self._release(number)
        if verb == END:
            _log.info("another service takes the shelf over")
            asyncio.get_running_loop().call_soon(self._process.end)
            return os.getpid()
        while True:
            called: Awaitable[Any] = types.call(getattr(await self._process.mover(), verb), arguments)
            with contextlib.suppress(FilesClosed):  # they are opened again
                return await called

    async def _hold(self, number: int, verb: str, *arguments: str) -> None:
        released = self._holds[number]
        try:
            mover = await self._process.mover()
            held: AbstractAsyncContextManager[Path | None] = (
                mover.checkpoint() if verb == CHECKPOINT else mover.still(*arguments)
            )
            async with held as copy:
                if not released.is_set():
                    self._send(number, True, None if copy is None else str(copy))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CHECKPOINT_S if verb == CHECKPOINT else STILL_S):
                            await released.wait()
        finally:
            del self._holds[number]

    async def _release(self, number: int) -> None:
        released = self._holds.get(number)
        if released is None:
            raise StoreUnavailable("the shelf was read too slowly")
        released.set()

    def _send(self, number: int, is_value: bool, value: object) -> None:
        try:
            sent = frame(number, is_value, value)
        except BadFrame as exc:
            sent = frame(number, False, f"the shelf cannot reply: {exc}")
        if not self._transport.is_closing():
            self._transport.write(sent)
