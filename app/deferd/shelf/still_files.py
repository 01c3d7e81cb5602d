"""The files of the shelf while no job moves, for a backup. The service may run or not."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import msgpack

from deferd.engine.shelf import OPENING
from deferd.shelf.calls import CHECKPOINT, RELEASE, VERBS, BadFrame, Frames, frame
from deferd.store.backup import FilesChanged
from deferd.store.data_dir import DataDirectory
from deferd.store.preflight import StoreRefused

ASKED_S = 60.0
"""How long the process may take to copy its files: on a slow disk it first writes what it has in memory."""
START_S = 15.0
"""How long to wait for a process that has just started, or is ending."""
_PAUSE_S = 0.05
_RECEIVED_BYTES = 65536
_READ_TEXT = msgpack.Decoder(str)
_OPENED_LATER = ""


@contextlib.contextmanager
def still_files(data_dir: DataDirectory) -> Iterator[Path | None]:
    """The folder that has the files of the shelf during the block, in which no job begins to move; None without one.

    If the process of the shelf runs, it makes a copy for the block, and gives the block some seconds.

    Raises:
        StoreRefused: the process does not respond, cannot read its files, or the block took too long.
        FilesChanged: a shelf was made during the block, or its process has ended.
    """
    if not data_dir.shelf_dir.exists():
        yield None
        if data_dir.shelf_dir.exists():
            raise FilesChanged
        return
    end_s = time.monotonic() + START_S
    while True:
        with contextlib.ExitStack() as held:
            process = held.enter_context(socket.socket(socket.AF_UNIX))
            process.settimeout(ASKED_S)
            try:
                process.connect(os.fsencode(data_dir.shelf_socket))
            except OSError:
                files = data_dir.shelf_dir if held.enter_context(_without_process(data_dir)) else None
            else:
                files = held.enter_context(_copy_by(process, data_dir))
            if files is not None:
                yield files
                return
        if time.monotonic() > end_s:
            raise StoreRefused(
                f"the process of the shelf in {data_dir.path} (process {data_dir.shelf_pid()}) does not respond: if it "
                "has just started, try again"
            )
        time.sleep(_PAUSE_S)


@contextlib.contextmanager
def _without_process(data_dir: DataDirectory) -> Iterator[bool]:
    """Keep a process from using the files during the block. False if one does."""
    try:
        lock = data_dir.try_shelf_lock()
    except StoreRefused:  # where nothing can be written, as in the snapshot of a file system, no process can run
        yield True
        return
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def _copy_by(process: socket.socket, data_dir: DataDirectory) -> Iterator[Path | None]:
    """The copy that the process makes; None while it opens the files, or if it ends. Raises FilesChanged, see above."""
    frames = Frames()
    made = _OPENED_LATER
    with contextlib.suppress(ConnectionError):
        made = _call(process, frames, data_dir, 1, CHECKPOINT)
    if made == _OPENED_LATER:
        yield None
        return
    yield Path(made)
    try:
        _call(process, frames, data_dir, 2, RELEASE, 1)
    except ConnectionError as exc:  # another one may have moved jobs before the end of the block
        raise FilesChanged from exc


def _call(
    process: socket.socket, frames: Frames, data_dir: DataDirectory, number: int, verb: str, *arguments: int
) -> Any:
    """What a call of the process returns, _OPENED_LATER while it opens the files.

    Raises:
        StoreRefused: it fails, or is not understood.
        ConnectionError: the process has ended.
    """
    try:
        process.sendall(frame(number, verb, arguments))
        while received := process.recv(_RECEIVED_BYTES):
            for replied, is_value, value in frames.feed(received):
                if replied != number:
                    continue
                if is_value is True:
                    return VERBS[verb].read_value(value)
                reason = _READ_TEXT.decode(value)
                if reason == OPENING:
                    return _OPENED_LATER
                raise _refused(data_dir, reason)
    except ConnectionError:
        raise
    except (OSError, BadFrame, ValueError) as exc:
        raise _refused(data_dir, exc) from exc
    raise ConnectionResetError


def _refused(data_dir: DataDirectory, reason: object) -> StoreRefused:
    return StoreRefused(
        f"the process of the shelf in {data_dir.path} could not let jobs rest for a copy: {reason}; try again"
    )
