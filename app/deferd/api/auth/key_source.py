"""Where the keys are written: a file that may change while the service runs, or the setting itself."""

from __future__ import annotations

import logging
import stat
import time
from pathlib import Path

from deferd.api.auth.api_keys import Key, KeysRefused, parse_keys
from deferd.settings import Settings, flag, variable

CHECK_S = 1.0
"""How often the file is looked at."""
FILE_MAX_BYTES = 1024 * 1024
_SETTLED_NS = 2_000_000_000
"""A file that was written this long ago shows by its time whether it is written again; clocks of file systems tick."""
_log = logging.getLogger("deferd.keys")


class KeySource:
    """Reads keys; asked again, it tells whether they have changed. Its calls read the disk: not for the event loop.

    `last_good` is what was in the file when it could last be used.
    """

    def __init__(self, file: Path | None, text: str | None, last_good: str | None = None) -> None:
        self.file = file
        self.last_good = last_good
        self._text = text
        self._mark: tuple[int, int, int] | None = None
        self._seen: bytes | None = None
        self._complaint: str | None = None
        self._name = _named("keys") if file is None else f"{_named('keys_file')} {file}"

    def read(self) -> list[Key]:
        """The keys as they are now, or as they last were when they could be used, which is logged.

        Raises:
            KeysRefused: they never could; the sentence names the setting and the file.
        """
        try:
            return self._read()
        except KeysRefused as exc:
            if self.last_good is None:
                raise
            self._complaint = str(exc)
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
            raise KeysRefused(f"{self._name} is no valid TOML: it must be UTF-8") from None
        except KeysRefused as exc:
            raise KeysRefused(f"{self._name} is {exc}") from None
        self.last_good = text
        return keys

    def read_if_changed(self) -> list[Key] | None:
        """The keys when the file has changed since the last call, else None.

        Raises:
            KeysRefused: what is there now cannot be used. The same thing is said once.
        """
        if self.file is None:
            return None
        before = self._seen
        try:
            if not self._may_have_changed(self.file):
                return None
            keys = self._read()
        except KeysRefused as exc:
            if str(exc) == self._complaint:
                return None
            self._complaint = str(exc)
            raise
        mended = self._complaint is not None
        self._complaint = None
        return keys if mended or self._seen != before else None

    def _may_have_changed(self, file: Path) -> bool:
        try:
            found = file.stat()
        except OSError:
            return True  # reading it says what is wrong
        settled = time.time_ns() - found.st_mtime_ns > _SETTLED_NS
        return self._mark != (found.st_ino, found.st_size, found.st_mtime_ns) or not settled

    def _bytes(self, file: Path) -> bytes:
        self._mark = None
        try:
            found = file.stat()
            if not stat.S_ISREG(found.st_mode):
                raise KeysRefused("not a file")  # reading a pipe could take for ever
            with file.open("rb") as opened:
                content = opened.read(FILE_MAX_BYTES + 1)
        except OSError as exc:
            raise KeysRefused(f"not readable: {exc.strerror or exc}") from None
        if len(content) > FILE_MAX_BYTES:
            raise KeysRefused(f"larger than {FILE_MAX_BYTES} bytes")
        self._mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        return content


def key_source(settings: Settings, last_good: str | None = None) -> KeySource | None:
    """Where these settings say that the keys are; None when there are none, and nobody is asked for one.

    `last_good` is for a file that is broken now: what was in it when it could last be used.
    """
    if settings.keys_file is not None:
        return KeySource(settings.keys_file, None, last_good)
    return None if settings.keys is None else KeySource(None, settings.keys.get_secret_value())


def _named(name: str) -> str:
    return f"{flag(name)} ({variable(name)})"
