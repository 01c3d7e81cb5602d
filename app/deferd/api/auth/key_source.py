"""The keys of a service: read from a file, which may change while it runs, or a setting; listed, revoked and made."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import stat
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from deferd.api.auth.api_keys import Bounds, Key, KeysRefused, hash_of, parse_keys
from deferd.settings import Settings, flag, variable
from deferd.store.disk import sync_directory

CHECK_S = 1.0
"""How often the file is checked."""
FILE_MAX_BYTES = 1024 * 1024
_SETTLED_NS = 2_000_000_000
"""The timestamp of a file older than this reveals another write; file system clocks are coarse."""
_log = logging.getLogger("deferd.keys")


class KeySource:
    """Reads the keys, and again when they have changed. Its methods read the disk: do not call them in the event loop.

    `last_good` is the content of the file when it was last valid.
    """

    def __init__(self, file: Path | None, text: str | None, last_good: str | None = None) -> None:
        self.file = file
        self.last_good = last_good
        self._text = text
        self._mark: tuple[int, int, int] | None = None
        self._seen: bytes | None = None
        self._last_error: str | None = None
        self._name = _named("keys") if file is None else f"{_named('keys_file')} {file}"

    def read(self) -> list[Key]:
        """The current keys, or the last good ones if the current ones are invalid, which is logged.

        Raises:
            KeysRefused: the keys are invalid and there are no last good ones; the text names the setting and the file.
        """
        try:
            return self._read()
        except KeysRefused as exc:
            if self.last_good is None:
                raise
            self._last_error = str(exc)
            _log.error("the keys stay as they were: %s", exc)
            return parse_keys(self.last_good)

    def _read(self) -> list[Key]:
        try:
            if self.file is None:
                return parse_keys(self._text or "")
            self._seen = self._bytes(self.file)
            text = self._seen.decode()
            keys = parse_keys(text)
        except UnicodeDecodeError:
            raise KeysRefused(f"{self._name} is not valid TOML: it must be UTF-8") from None
        except KeysRefused as exc:
            raise KeysRefused(f"{self._name} is {exc}") from None
        self.last_good = text
        return keys

    def read_if_changed(self) -> list[Key] | None:
        """The keys when the file has changed since the last call, else None.

        Raises:
            KeysRefused: the file is invalid now. The same error is raised once.
        """
        if self.file is None:
            return None
        before = self._seen
        try:
            if not self._may_have_changed(self.file):
                return None
            keys = self._read()
        except KeysRefused as exc:
            if str(exc) == self._last_error:
                return None
            self._last_error = str(exc)
            raise
        was_invalid = self._last_error is not None
        self._last_error = None
        return keys if was_invalid or self._seen != before else None

    def _may_have_changed(self, file: Path) -> bool:
        try:
            status = file.stat()
        except OSError:
            return True  # reading it will raise the error
        settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
        return self._mark != (status.st_ino, status.st_size, status.st_mtime_ns) or not settled

    def _bytes(self, file: Path) -> bytes:
        self._mark = None
        try:
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):
                raise KeysRefused("not a file")  # reading a pipe could block for ever
            with file.open("rb") as opened:
                content = opened.read(FILE_MAX_BYTES + 1)
        except OSError as exc:
            raise KeysRefused(f"not readable: {exc.strerror or exc}") from None
        if len(content) > FILE_MAX_BYTES:
            raise KeysRefused(f"larger than {FILE_MAX_BYTES} bytes")
        self._mark = (status.st_ino, status.st_size, status.st_mtime_ns)
        return content


def key_source(settings: Settings, last_good: str | None = None) -> KeySource | None:
    """The source of the keys by these settings; None for a service without keys.

    `last_good` is the content of the file when it was last valid, used if it is invalid now.
    """
    if settings.keys_file is not None:
        return KeySource(settings.keys_file, None, last_good)
    return None if settings.keys is None else KeySource(None, settings.keys.get_secret_value())


def _named(name: str) -> str:
    return f"{flag(name)} ({variable(name)})"


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


TOKEN_BYTES = 32
TOKEN_PREFIX = "deferd_"  # noqa: S105 (people and secret scanners recognize a token by it)
BOUNDS: dict[str, str] = {one.name: one.metadata["about"] for one in fields(Bounds)}


def make_key(
    name: str, scopes: Iterable[str], topics: Iterable[str], bounds: Mapping[str, float | None]
) -> tuple[str, str]:
    """Make a token, and the TOML entry with its hash. Without topics it is for all; a bound that is None is left out.

    Raises:
        KeysRefused: the service would refuse the entry.
    """
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    lines = [
        "[[key]]",
        f"name = {json.dumps(name)}",
        f"hash = {json.dumps(hash_of(token))}",
        f"scopes = {json.dumps(list(dict.fromkeys(scopes)))}",
        f"topics = {json.dumps(list(topics) or ['*'])}",
        *(f"{bound} = {value}" for bound, value in bounds.items() if value is not None),
    ]
    entry = "\n".join(lines) + "\n"
    parse_keys(entry)
    return token, entry
