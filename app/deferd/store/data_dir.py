"""The data folder of an embedded store: who may use it, and what lies where in it.

`deferd.lock` is held (flock) by the service that owns the folder and holds its process id as text. `valkey.lock` is
held by the store process itself, by an open file that it inherits: as long as any store works on these files the
lock is taken, even after the service that started it is gone, and it is free as soon as that store is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

from deferd.store.preflight import StoreRefused

_log = logging.getLogger("deferd.store")

SOCKET_PATH_MAX_BYTES = 100
"""The system's bound on a unix socket's path is 104 or 108 bytes."""
LOG_MAX_BYTES = 10 * 1024 * 1024
APPEND_ONLY_DIR = "appendonlydir"
"""In the data folder: what the store keeps. `deferd.store.append_only` says how."""
UNFINISHED_RESTORE = "restore.unfinished"
"""In the data folder: data of a backup that is not yet in its place. See `deferd.cli.restore`."""
MOVED_ASIDE = ".before-restore-"
"""Follows in the name of data that a restore has moved aside."""
_FOR_OTHERS = 0o077
_OWN_NAMES = {
    *("deferd.lock", "valkey.lock", "valkey.log", "valkey.log.1", "valkey.sock", "lost+found"),
    *(APPEND_ONLY_DIR, UNFINISHED_RESTORE),
}
"""What a service or a restore makes in its data folder, and what a new file system holds."""
_OWN_PREFIXES = ("temp-", f"{APPEND_ONLY_DIR}{MOVED_ASIDE}")
"""Of files that the store is about to put in place of others, and of data that a restore moved aside."""


class DataDirectory:
    """The folder of one embedded store. Nothing is made or taken before `claim`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._claim: int | None = None

    @property
    def log_file(self) -> Path:
        """Where the store logs."""
        return self.path / "valkey.log"

    @property
    def store_lock_file(self) -> Path:
        """What the store process holds locked, with its process id as text."""
        return self.path / "valkey.lock"

    @property
    def socket(self) -> Path:
        """Where the store listens: in the folder, or when that path is too long, in a private one in the temp folder.

        The latter follows from the folder's path, so that every service on the folder comes to the same one.
        """
        inside = self.path / "valkey.sock"
        if len(os.fsencode(inside)) <= SOCKET_PATH_MAX_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"deferd-{os.getuid()}-{digest}" / "valkey.sock"

    def claim(self) -> None:
        """Make the folder if it is not there, close it to other users, and own it until `release`.

        Raises:
            StoreRefused: another service owns it, it cannot be written to, or it stays open to other users.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._close_to_others()
            lock = os.open(self.path / "deferd.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_pid(lock, os.getpid())
        except BlockingIOError as exc:
            owner = _read_pid(lock)
            os.close(lock)
            raise StoreRefused(
                f"the data folder {self.path} is in use by another deferd service"
                + (f" (process {owner})" if owner else "")
                + ": stop that one, or give this one a folder of its own (--data-dir, DEFERD_DATA_DIR)"
            ) from exc
        except OSError as exc:
            os.close(lock)
            raise self._unusable(exc) from exc
        self._claim = lock

    def release(self) -> None:
        """End of `claim`; the lock file stays, as only the lock on it counts."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def try_store_lock(self) -> int | None:
        """Take the lock that a store process holds: an open file to hand to it, or None while a store still runs.

        Raises:
            StoreRefused: the folder cannot be written to.
        """
        try:
            lock = os.open(self.store_lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def note_store_pid(self, lock: int, pid: int) -> None:
        """Write into the store's lock file which process holds it."""
        # On a full disk the number is lost; the store will say more clearly than this that there is no room.
        with contextlib.suppress(OSError):
            _write_pid(lock, pid)

    def store_pid(self) -> int | None:
        """The store process that holds the store's lock, if the file says so."""
        with contextlib.suppress(OSError):
            lock = os.open(self.store_lock_file, os.O_RDONLY)
            try:
                return _read_pid(lock)
            finally:
                os.close(lock)
        return None

    def is_store(self, pid: int) -> bool:
        """Whether the process works in this folder, as a store does; False where the system does not tell."""
        try:
            return Path(f"/proc/{pid}/cwd").readlink() == self.path
        except OSError:
            return False

    def prepare(self) -> None:
        """Make what a store needs before its start: the socket's folder, and a log that is not too long.

        Raises:
            StoreRefused: that fails, or a restore was cut short, and the folder has no data.
        """
        if not (self.path / APPEND_ONLY_DIR).exists():
            left = [*self.path.glob(UNFINISHED_RESTORE), *self.path.glob(f"{APPEND_ONLY_DIR}{MOVED_ASIDE}*")]
            if left:
                raise StoreRefused(
                    f"a restore into the data folder {self.path} was cut short, so it has no data: run `deferd "
                    f"restore` again, or rename what it moved aside to {APPEND_ONLY_DIR}, or delete "
                    f"{', '.join(path.name for path in sorted(left))} to begin without jobs"
                )
        try:
            place = self.socket.parent
            if place != self.path:
                place.mkdir(mode=0o700, exist_ok=True)
                if place.is_symlink() or place.stat().st_uid != os.getuid():
                    raise StoreRefused(f"{place} belongs to somebody else: the store's socket cannot be put there")
                place.chmod(0o700)
            if self.log_file.exists() and self.log_file.stat().st_size > LOG_MAX_BYTES:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
        except OSError as exc:
            raise self._unusable(exc) from exc

    def clean_up(self) -> None:
        """Remove what lies outside of the folder."""
        if self.socket.parent != self.path:
            with contextlib.suppress(OSError):
                self.socket.unlink(missing_ok=True)
                self.socket.parent.rmdir()

    def _close_to_others(self) -> None:
        """Make the folder 0700, as a new one is, unless that could take other files away from their readers.

        PostgreSQL does the same: `initdb` tightens an empty folder, and a server refuses one that others may enter.
        """
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & _FOR_OTHERS:
            return
        foreign = sorted(
            path.name
            for path in self.path.iterdir()
            if path.name not in _OWN_NAMES and not path.name.startswith(_OWN_PREFIXES)
        )
        why = f"it also holds {', '.join(foreign[:3])}{' ...' if len(foreign) > 3 else ''}"
        if not foreign:
            why = "its mode cannot be changed by this user"
            with contextlib.suppress(PermissionError):
                self.path.chmod(0o700)
            if not stat.S_IMODE(self.path.stat().st_mode) & _FOR_OTHERS:
                _log.warning("other users could enter the data folder %s (mode %04o): it is now 0700", self.path, mode)
                return
        raise StoreRefused(
            f"other users can enter the data folder {self.path} (mode {mode:04o}), and {why}: run chmod 700 on it, or "
            "give this service a folder of its own (--data-dir, DEFERD_DATA_DIR)"
        )

    def _unusable(self, exc: OSError) -> StoreRefused:
        return StoreRefused(
            f"the data folder {self.path} cannot be used: {exc.strerror or exc} (--data-dir, DEFERD_DATA_DIR)"
        )


def _write_pid(lock: int, pid: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{pid}\n".encode(), 0)


def _read_pid(lock: int) -> int | None:
    text = os.pread(lock, 32, 0).strip()
    return int(text) if text.isdigit() else None
