"""Reads the keys from a file, which may change while the service runs, or from the setting."""

from __future__ import annotations

import logging
import stat
import time
from pathlib import Path

from deferd.api.auth.api_keys import Key, KeysRefused, parse_keys
from deferd.settings import Settings, flag, variable

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
