"""What the files of a backup hold: checked before a server loads them, and cleared of function libraries.

A server carries out every command of an append-only file when it loads it, `REPLICAOF` and `EVAL` too, and runs the
function libraries of a snapshot. A backup may have been in other hands since it was made, and has no libraries: `deferd
backup` takes them out (`take_out_functions`). So each file must consist of:

* first, if it begins like one, a snapshot (RDB) whose entries are strings, lists, hashes and sorted sets,
* then commands of those that the scripts of deferd leave in the file.

All keys must begin with `deferd:`. What a server would read otherwise than this module is refused, never skipped.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis

from deferd.store.backup import MANIFEST
from deferd.store.data_dir import APPEND_ONLY_DIR
from deferd.store.pipeline import pack
from deferd.store.preflight import StoreRefused

_KEY_PREFIX = b"deferd:"
ONE_KEY_COMMANDS = frozenset(
    b"HDEL HINCRBY HSET HSETNX INCRBY LPOP LSET LTRIM PEXPIREAT RPUSH SET ZADD ZPOPMIN ZREM ZREMRANGEBYRANK".split()
)
"""Their first argument is the key, and the others are data."""
KEYS_COMMANDS = frozenset((b"DEL", b"RENAME", b"UNLINK"))
"""All their arguments are keys."""
_KEYLESS = ([b"MULTI"], [b"EXEC"], [b"SELECT", b"0"])
_INCOMPLETE = object()
_SHOWN_BYTES = 40
_CHUNK_BYTES = 1024 * 1024

_MAGIC = re.compile(rb"REDIS(?!000[0-4])\d{4}|VALKEY\d{3}")
"""Of the versions that end with a checksum."""
_EOF, _SELECT_DB, _RESIZE_DB, _EXPIRE_MS = 0xFF, 0xFE, 0xFB, 0xFC
_AUX, _FUNCTION = 0xFA, 0xF5
"""A note of two strings about the file, and a library of functions; both before all keys."""
_ENTRIES = {
    0: "one",  # a string
    4: "pairs",  # a hash: fields and values
    5: "scored",  # a sorted set: members, each with eight bytes of score
    16: "one",  # a small hash
    17: "one",  # a small sorted set
    18: "nodes",  # a list: nodes, each with a kind
}
_SCORE_BYTES = 8
_CHECKSUM_BYTES = 8
_LZF = 0xC3


def check_backup_files(parent: Path) -> None:
    """Check the files in the append-only directory of `parent`.

    Raises:
        StoreRefused: a file holds something else; the text names the file, what it is, and the byte where it begins.
        OSError: a file cannot be read.
    """
    for path in sorted((parent / APPEND_ONLY_DIR).iterdir()):
        if path.name == MANIFEST or path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = _start_of_snapshot(data)
            try:
                _check_commands(data, 0 if start is None else _end_of_snapshot(data, start))
            except _Foreign as exc:
                raise StoreRefused(
                    f"{path.name} of the backup holds {exc}, which deferd never writes: another program has written to "
                    "the store, or somebody has changed the backup; it cannot be restored, use another one"
                ) from exc


class _Foreign(Exception):
    """Something that deferd does not write; the text begins with what it is."""


def _start_of_snapshot(data: mmap.mmap) -> int | None:
    """Where the parts of the snapshot begin, None if the file does not begin with one."""
    magic = _MAGIC.match(data)
    return None if magic is None else magic.end()


def _check_commands(data: mmap.mmap, start: int) -> None:
    """Check the commands from `start` to the end. The last one may be incomplete: loading truncates it."""
    for number, command in enumerate(_commands(data, start)):
        if command in _KEYLESS:
            continue
        if type(command) is not list or len(command) < 2 or {*map(type, command)} != {bytes}:
            foreign = True
        elif command[0] in ONE_KEY_COMMANDS:
            foreign = not command[1].startswith(_KEY_PREFIX)
        else:
            foreign = command[0] not in KEYS_COMMANDS or not all(key.startswith(_KEY_PREFIX) for key in command[1:])
        if foreign:
            shown = command if isinstance(command, list) else [command]
            text = " ".join(_shown(part) for part in shown[:3]) + (" ..." if len(shown) > 3 else "")
            raise _Foreign(f"the command {text} at byte {_offset(data, start, number)}")


def _commands(data: mmap.mmap, start: int) -> Iterator[Any]:
    """The commands from `start` on. Raises _Foreign for something else."""
    reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
    for at in range(start, len(data), _CHUNK_BYTES):
        reader.feed(data[at : at + _CHUNK_BYTES])
        try:
            while (command := reader.gets()) is not _INCOMPLETE:
                yield command
        except (hiredis.ProtocolError, MemoryError) as exc:
            raise _Foreign(f"something other than a command near byte {at}") from exc


def _offset(data: mmap.mmap, start: int, number: int) -> int:
    """Where a command begins. Everything before it is a list of byte strings, each in its only form."""
    lengths = (len(pack(tuple(command))) for command in _commands(data, start))
    return start + sum(length for _, length in zip(range(number), lengths, strict=False))


def _end_of_snapshot(data: mmap.mmap, at: int) -> int:
    """Check the snapshot whose parts begin at `at`, and return where it ends."""
    try:
        while (kind := data[at]) != _EOF:
            at = _after_part(data, at, kind)
    except IndexError:
        raise _Foreign("a snapshot without an end") from None
    return at + 1 + _CHECKSUM_BYTES


def _after_part(data: mmap.mmap, at: int, kind: int) -> int:
    """The end of the part of a snapshot at `at`, after checking it: a key with its value, or a fact about the file."""
    if kind == _AUX:
        return _after_strings(data, at + 1, 2)
    if kind == _RESIZE_DB:
        return _length(data, _length(data, at + 1)[1])[1]
    if kind == _SELECT_DB and data[at + 1] == 0:
        return at + 2
    if kind == _EXPIRE_MS:
        return at + 1 + 8
    form = _ENTRIES.get(kind)
    if form is None:
        raise _Foreign(f"an entry of type {kind} at byte {at}")
    if not _is_key_of_deferd(data, at + 1):
        raise _Foreign(f"a key that begins with {_shown(data[at + 1 : at + 1 + _SHOWN_BYTES])} at byte {at + 1}")
    at = _after_strings(data, at + 1, 1)
    if form == "one":
        return _after_strings(data, at, 1)
    count, at = _length(data, at)
    if form == "pairs":
        return _after_strings(data, at, 2 * count)
    for _ in range(count):
        if form == "nodes":
            _, at = _length(data, at)
        at = _after_strings(data, at, 1) + (_SCORE_BYTES if form == "scored" else 0)
    return at


def _after_strings(data: mmap.mmap, at: int, count: int) -> int:
    """The end of `count` strings at `at`."""
    for _ in range(count):  # short forms first: a snapshot has some for each job
        first = data[at]
        if first < 0x40:
            at += 1 + first
        elif first < 0xC0:
            length, at = _length(data, at)
            at += length
        elif first < _LZF:  # a number of one, two or four bytes
            at += 1 + (1 << (first & 3))
        elif first == _LZF:
            packed, at = _length(data, at + 1)
            at = _length(data, at)[1] + packed
        else:
            raise _Foreign(f"a string in an unknown form at byte {at}")
    return at


def _length(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The length at `at`, and where it ends. Two bits say how many bytes it has."""
    first = data[at]
    if first < 0x40:  # six bits
        return first, at + 1
    if first < 0x80:  # fourteen bits
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    if first in {0x80, 0x81}:
        end = at + (5 if first == 0x80 else 9)  # four or eight bytes
        return int.from_bytes(data[at + 1 : end]), end
    raise _Foreign(f"an unknown length at byte {at}")


def _is_key_of_deferd(data: mmap.mmap, at: int) -> bool:
    """Whether the string at `at` begins like a key. A compressed string begins with at least that many plain bytes."""
    if data[at] == _LZF:
        at = _length(data, _length(data, at + 1)[1])[1]
        is_plain = len(_KEY_PREFIX) <= data[at] + 1 <= 32  # the longest run of plain bytes
        return is_plain and data[at + 1 : at + 1 + len(_KEY_PREFIX)] == _KEY_PREFIX
    length, start = _length(data, at)
    return length >= len(_KEY_PREFIX) and data[start : start + len(_KEY_PREFIX)] == _KEY_PREFIX


def _shown(part: object) -> str:
    if not isinstance(part, bytes):
        return type(part).__name__
    return ascii(part[:_SHOWN_BYTES].decode(errors="backslashreplace"))[1:-1]


_NAME = b"FUNCTION"
_NOTHING = b"deferd:"
"""The key of a command without effect; no key of deferd consists of it and spaces."""
_NO_CHECKSUM = bytes(8)
"""A server does not verify a snapshot that ends with it."""
_LONG_STRING = 0x80
_LONG_STRING_HEAD = 6
"""Bytes before a string of any length in a note of a snapshot: the note's empty name, and the length."""


def take_out_functions(parent: Path) -> None:
    """Overwrite the function libraries in the append-only directory of `parent` by something without effect.

    A store keeps the library of deferd's scripts with its data. A restore refuses code, as it cannot know whose it is,
    and needs none: a service loads its library at its start.
    What `check_backup_files` refuses is left to it.
    """
    for path in sorted((parent / APPEND_ONLY_DIR).iterdir()):
        if path.name == MANIFEST or path.stat().st_size == 0:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            start = _start_of_snapshot(data)
            try:
                end = 0 if start is None else _clear_snapshot(data, start)
                if data.find(_NAME, end) >= 0:
                    _clear_commands(data, end)
            except _Foreign:
                continue


def _clear_snapshot(data: mmap.mmap, at: int) -> int:
    """Clear the libraries of a snapshot, which precede its keys. Returns where it ends."""
    first = at
    has_functions = False
    while data[at] in {_AUX, _FUNCTION}:
        end = _after_strings(data, at + 1, 2 if data[at] == _AUX else 1)
        if data[at] == _FUNCTION:
            has_functions = True
            length = end - at - 1 - _LONG_STRING_HEAD
            data[at:end] = bytes((_AUX, 0, _LONG_STRING)) + length.to_bytes(4) + bytes(length)
        at = end
    end = _end_of_snapshot(data, first)
    if has_functions:
        data[end - len(_NO_CHECKSUM) : end] = _NO_CHECKSUM
    return end


def _clear_commands(data: mmap.mmap, at: int) -> None:
    """Clear the commands from `at` that load or delete a library."""
    for command in _commands(data, at):
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
