"""Where the keys are written: a file that may change while the service runs, or the setting itself."""

from __future__ import annotations

import stat
import time
from pathlib import Path

from deferd.api.keys import Key, KeysRefused, parse_keys
from deferd.settings import Settings, flag, variable

FILE_MAX_BYTES = 1024 * 1024
_SETTLED_NS = 2_000_000_000
"""A file that was written this long ago shows by its time whether it is written again; clocks of file systems tick."""


class KeySource:
    """Reads keys; asked again, it tells whether they have changed. Its calls read the disk: not for the event loop."""

    def __init__(self, file: Path | None, text: str | None) -> None:
        self.file = file
        self._text = text
        self._mark: tuple[int, int, int] | None = None
        self._seen: bytes | None = None
        self._complaint: str | None = None
        self._name = _named("keys") if file is None else f"{_named('keys_file')} {file}"

    def read(self) -> list[Key]:
        """The keys as they are now. Raises KeysRefused, with a sentence that names the setting and the file."""
        try:
            if self.file is None:
                return parse_keys(self._text or "")
            self._seen = self._bytes(self.file)
            return parse_keys(self._seen.decode())
        except UnicodeDecodeError:
            raise KeysRefused(f"{self._name} is no valid TOML: it must be UTF-8") from None
        except KeysRefused as exc:
            raise KeysRefused(f"{self._name} is {exc}") from None

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
            keys = self.read()
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


def key_source(settings: Settings) -> KeySource | None:
    """Where these settings say that the keys are; None when there are none, and nobody is asked for one."""
    if settings.keys_file is not None:
        return KeySource(settings.keys_file, None)
    return None if settings.keys is None else KeySource(None, settings.keys.get_secret_value())


def _named(name: str) -> str:
    return f"{flag(name)} ({variable(name)})"
