"""Keys files as `deferd key list` and `deferd key revoke` read and edit them."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deferd.api.auth.api_keys import KeysRefused
from deferd.api.auth.key_source import KeySource

_HEADER = re.compile(r"\s*\[\[\s*key\s*\]\]\s*(?:#.*)?")


class NoSuchKey(Exception):
    """The file has no key of that name; the text says which it has."""


def read_keys(path: Path) -> list[dict[str, Any]]:
    """The keys in the file, each without its hash: its name, scopes and topics, and the bounds that it has.

    Raises:
        KeysRefused: a service would refuse the file.
    """
    _, tables = _read(path)
    return [{"topics": ["*"], **{name: value for name, value in table.items() if name != "hash"}} for table in tables]


def revoke_key(path: Path, name: str) -> None:
    """Take the key out of the file.

    The file is replaced as a whole, so that nobody reads a part of it, and everything outside the key stays as it is,
    also comments. (The standard library only reads TOML; instead of adding a library that writes it, lines are cut out,
    and the result is parsed and compared before it takes the file's place.)

    Raises:
        NoSuchKey: there is no key of this name.
        KeysRefused: a service would refuse the file, as it is or without the key.
        OSError: the file cannot be replaced.
    """
    path = path.resolve()  # of a symbolic link the target is replaced
    with _locked(path.parent):
        text, tables = _read(path)
        names = [table["name"] for table in tables]
        if name not in names:
            raise NoSuchKey(f"{path} has no key {name!r}; it has {', '.join(names)}")
        left = [table for table in tables if table["name"] != name]
        if not left:
            raise KeysRefused(
                f"{name!r} is the only key in {path}, and a service keeps its old keys rather than taking a file "
                "without any: make another key first"
            )
        edited = _without(text, names.index(name))
        if edited is None or _tables(edited) != left:
            raise KeysRefused(f"{path} is not written as [[key]] tables one after the other: remove {name!r} by hand")
        _replace(path, edited)


def _read(path: Path) -> tuple[str, list[dict[str, Any]]]:
    KeySource(path, None).read()
    text = path.read_bytes().decode()
    return text, tomllib.loads(text)["key"]


def _tables(text: str) -> list[dict[str, Any]] | None:
    try:
        tables: list[dict[str, Any]] = tomllib.loads(text).get("key", [])
    except tomllib.TOMLDecodeError:
        return None
    return tables


def _without(text: str, number: int) -> str | None:
    """The text without its key of this number: from its header to its last line that is neither empty nor a comment."""
    lines = text.splitlines(keepends=True)
    headers = [at for at, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\r\n"))]
    if number >= len(headers):
        return None
    begin, *after = headers[number:]
    end = after[0] if after else len(lines)
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    if end < len(lines) and not lines[end].strip():
        end += 1  # the empty line between two keys
    return "".join(lines[:begin] + lines[end:])


def _replace(path: Path, text: str) -> None:
    before = path.stat()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123 (a descriptor)
            os.fchmod(descriptor, before.st_mode & 0o777)
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, before.st_uid, before.st_gid)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
        _sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Bring a replaced file's name to the disk, so that a power failure does not bring the former file back."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for others that edit a file in the folder, so that none undoes what another did."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
