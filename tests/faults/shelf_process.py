"""The shelf of a fault run: a process of its own, to which all delayed jobs go, as soon as they are put."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import msgspec

from deferd.contract.errors import StoreUnavailable
from deferd.engine.shelf import Status
from deferd.shelf.calls import ShelfConfiguration
from deferd.shelf.client import ShelfClient
from tests.faults.orphans import SHELF_MODULE

SOCKET_VARIABLE = "SHELF_SOCKET"
"""Names the socket for the services: see shifted_clock/sitecustomize.py. Their own setting is for an embedded store."""
STOP_S = 20.0
BACK_S = 60.0


class FaultyShelf:
    """The process, its files in `folder`, on the store at `store_url`. `environment` is added to this process's."""

    def __init__(self, folder: Path, store_url: str, environment: dict[str, str]) -> None:
        self._folder = folder
        self._store_url = store_url
        self._sockets = tempfile.TemporaryDirectory(prefix="shelf-")  # the path of a socket must be short
        self.socket = Path(self._sockets.name) / "s"
        self._environment = {**os.environ, **environment, SOCKET_VARIABLE: str(self.socket)}
        self._log = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def __enter__(self) -> Self:
        self.start(after_ms=0)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._sockets.cleanup()

    def start(self, *, after_ms: int | None = 0) -> None:
        """Start it. Jobs due later than `after_ms` from now go to the shelf; None: all come back."""
        configuration = ShelfConfiguration(
            folder=str(self._folder),
            socket=str(self.socket),
            store_url=self._store_url,
            shards=1,
            movable_clock=False,
            store_timeout_s=1.5,
            after_ms=after_ms,
            linger_s=0,
            log_format="console",
            log_level="info",
        )
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SHELF_MODULE],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder.parent,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(configuration) + b"\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def serves(self) -> bool:
        """Whether it can be reached."""
        with socket.socket(socket.AF_UNIX) as tried:
            return tried.connect_ex(str(self.socket)) == 0

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.kill()
            self._process.wait(STOP_S)
            self._process.stdin.close()

    async def bring_back(self) -> None:
        """Have all jobs in the store again, and no more of them leave it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_S)
        assert code == 0, f"the shelf exited with {code}: {self.output()[-2000:]}"
        self.kill()  # closes its input
        self.start(after_ms=None)
        client = ShelfClient(self.socket)
        end_s = time.monotonic() + BACK_S
        while not await _is_empty(client):
            assert time.monotonic() < end_s, f"jobs stay on the shelf: {self.output()[-2000:]}"
            await asyncio.sleep(0.1)
        await client.close()

    def output(self) -> str:
        """What it has logged."""
        return self._log.read_text()


async def _is_empty(client: ShelfClient) -> bool:
    try:
        status: Status = await client.status()
    except StoreUnavailable:
        return False
    return status.fault is None and status.jobs == 0
