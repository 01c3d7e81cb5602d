"""`deferd serve` that notes how long its event loop was held: `python -m tests.acceptance.held_loop FILE [flags]`.

A timer of a millisecond notes the CPU time of the process since its last turn, and the most of it in FILE. CPU time, so
that other processes do not matter; that of all threads, because one that computes holds the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any

from deferd.cli.main import main
from deferd.server import http_server

_LONGEST_S = struct.Struct("d")
_EVERY_S = 0.001


class HeldLoop:
    """Reads what the service with this file has noted."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(_LONGEST_S.size))
        self._shared = _shared(file)

    def longest_ms(self) -> float:
        """The longest time since the last call."""
        [longest_s] = _LONGEST_S.unpack(self._shared)
        _LONGEST_S.pack_into(self._shared, 0, 0.0)
        return float(longest_s) * 1000


def _shared(file: Path) -> mmap.mmap:
    with file.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), _LONGEST_S.size)


def _note_longest(shared: mmap.mmap) -> None:
    loop = asyncio.get_running_loop()
    last_s = time.process_time()

    def turn() -> None:
        nonlocal last_s
        now_s = time.process_time()
        if now_s - last_s > _LONGEST_S.unpack(shared)[0]:
            _LONGEST_S.pack_into(shared, 0, now_s - last_s)
        last_s = now_s
        loop.call_later(_EVERY_S, turn)

    turn()


def _serve(file: Path, flags: list[str]) -> None:
    shared = _shared(file)
    start = http_server._HttpServer.startup

    async def startup(server: Any, *args: Any, **options: Any) -> None:
        await start(server, *args, **options)
        _note_longest(shared)

    http_server._HttpServer.startup = startup  # type: ignore[method-assign,assignment]  # there is no hook for it
    sys.argv = ["deferd", "serve", *flags]
    main()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2:])
