"""The data folder of an embedded store: who may use it, and what lies where in it.

`deferd.lock` is held (flock) by the service that owns the folder and holds its process id as text. `valkey.lock` is
held by the store process itself, by an open file that it inherits: as long as any store works on these files the
lock is taken, even after the service that started it is gone, and it is free as soon as that store is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from deferd.store.checks import StoreRefused

SOCKET_PATH_MAX_BYTES = 100
"""The system's bound on a unix socket's path is 104 or 108 bytes."""
LOG_MAX_BYTES = 10 * 1024 * 1024
APPEND_ONLY_FOLDER = "appendonlydir"
"""In the data folder: what the store keeps. `deferd.store.append_only` says how."""
UNFINISHED_RESTORE = "restore.unfinished"
"""In the data folder: data of a backup that is not yet in its place. See `deferd.maintenance.restore`."""


class DataFolder:
    """The folder of one embedded store. Nothing is made or taken before `claim`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._claim: int | None = None

    @property
    def log_file(self) -> Path:
        """Where the store logs."""
        return self.path / "valkey.log"

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
        """Make the folder (only its owner may enter it) if it is not there, and own it until `release`.

        Raises:
            StoreRefused: another service owns it, or it cannot be written to.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
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
            lock = os.open(self.path / "valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)
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
            lock = os.open(self.path / "valkey.lock", os.O_RDONLY)
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
        unfinished = self.path / UNFINISHED_RESTORE
        if unfinished.exists() and not (self.path / APPEND_ONLY_FOLDER).exists():
            raise StoreRefused(
                f"a restore into the data folder {self.path} was cut short, so it has no data: run `deferd restore` "
                f"again, or delete {unfinished} to begin without jobs"
            )
        try:
            place = self.socket.parent
            if place != self.path:
                place.mkdir(mode=0o700, exist_ok=True)
                if place.is_symlink() or place.stat().st_uid != os.getuid():
                    raise StoreRefused(f"{place} belongs to somebody else: the store's socket cannot be put there")
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
