"""Takes the function libraries out of the files of a backup, in place.

A store keeps the library of deferd's scripts with its data. A restore refuses code (see `backup_check`), as it cannot
know whose it is, and needs none: a service loads its library at its start. So a library in a file is overwritten by
something of the same length that has no effect.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from deferd.store.append_only import MANIFEST
from deferd.store.backup_check import (
    AUX,
    FUNCTION,
    Foreign,
    after_strings,
    commands,
    end_of_snapshot,
    start_of_snapshot,
)
from deferd.store.data_dir import APPEND_ONLY_DIR
from deferd.store.pipeline import pack

_NAME = b"FUNCTION"
_NOTHING = b"deferd:"
"""The key of a command without effect; no key of deferd consists of it and spaces."""
_NO_CHECKSUM = bytes(8)
"""A server does not verify a snapshot that ends with it."""
_LONG_STRING = 0x80
_LONG_STRING_HEAD = 6
"""Bytes before a string of any length in a note of a snapshot: those of the note's empty name, and of the length."""


def take_out_functions(parent: Path) -> None:
    """Overwrite the libraries in the append-only directory of `parent`.

    What `check_backup_files` refuses is left to it.
    """
    for path in sorted((parent / APPEND_ONLY_DIR).iterdir()):
        if path.name == MANIFEST or path.stat().st_size == 0:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            start = start_of_snapshot(data)
            try:
                end = 0 if start is None else _clear_snapshot(data, start)
                if data.find(_NAME, end) >= 0:
                    _clear_commands(data, end)
            except Foreign:
                continue


def _clear_snapshot(data: mmap.mmap, at: int) -> int:
    """Clear the libraries of a snapshot, which precede its keys. Returns where it ends."""
    first = at
    has_functions = False
    while data[at] in {AUX, FUNCTION}:
        end = after_strings(data, at + 1, 2 if data[at] == AUX else 1)
        if data[at] == FUNCTION:
            has_functions = True
            length = end - at - 1 - _LONG_STRING_HEAD
            data[at:end] = bytes((AUX, 0, _LONG_STRING)) + length.to_bytes(4) + bytes(length)
        at = end
    end = end_of_snapshot(data, first)
    if has_functions:
        data[end - len(_NO_CHECKSUM) : end] = _NO_CHECKSUM
    return end


def _clear_commands(data: mmap.mmap, at: int) -> None:
    """Clear the commands from `at` that load or delete a library."""
    for command in commands(data, at):
        if type(command) is not list or not all(type(part) is bytes for part in command):
            return
        size = len(pack(tuple(command)))
        if command[0] == _NAME:
            data[at : at + size] = _without_effect(size)
        at += size


def _without_effect(size: int) -> bytes:
    """A command of `size` bytes that removes a key which does not exist."""
    for name in (b"UNLINK", b"DEL"):  # no key gives one of them the size where its length gets another digit
        shortest = len(pack((name, _NOTHING)))
        for digits in range(len(str(size))):
            command = pack((name, _NOTHING.ljust(len(_NOTHING) + size - shortest - digits)))
            if len(command) == size:
                return command
    raise AssertionError("unreachable")
