"""List and edit the keys in a file, for `deferd key list` and `deferd key revoke`."""

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
from deferd.store.disk_sync import sync_directory

_HEADER = re.compile(r"\s*\[\[\s*key\s*\]\]\s*(?:#.*)?")


class NoSuchKey(Exception):
    """The file has no key of that name; the text lists its keys."""


def read_keys(path: Path) -> list[dict[str, Any]]:
    """The keys in the file, each with its name, scopes, topics and limits, without its hash.

    Raises:
        KeysRefused: the file is invalid.
    """
    _, tables = _read(path)
    return [{"topics": ["*"], **{name: value for name, value in table.items() if name != "hash"}} for table in tables]


def revoke_key(path: Path, name: str) -> None:
    """Remove the key from the file.

    The file is replaced atomically, and everything else in it stays as it is, including comments: the standard library
    cannot write TOML, so the lines of the key are cut out, and the result is parsed and compared before it is used.

    Raises:
        NoSuchKey: the file has no key of this name.
        KeysRefused: the file is invalid, or would be without the key.
        OSError: the file cannot be replaced.
    """
    path = path.resolve()  # replace the target of a symbolic link, not the link
    with _locked(path.parent):
        text, tables = _read(path)
        names = [table["name"] for table in tables]
        if name not in names:
            raise NoSuchKey(f"{path} has no key {name!r}; it has {', '.join(names)}")
        left = [table for table in tables if table["name"] != name]
        if not left:
            raise KeysRefused(
                f"{name!r} is the only key in {path}: a running service would ignore a file without keys and keep the "
                "revoked one; add another key first"
            )
        edited = _without(text, names.index(name))
        if edited is None or _tables(edited) != left:
            raise KeysRefused(f"{path} does not consist of consecutive [[key]] tables: remove {name!r} by hand")
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
    """The text without the key of this number, from its header to its last line that is not empty or a comment."""
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
        sync_directory(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Wait for other processes that edit a file in the directory, so that no edit is lost."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
