"""The data directory of an embedded store: its locks, its permissions and the files in it.

The service that owns the directory locks `deferd.lock` (flock), which holds its process id as text. The store process
locks `valkey.lock` by an open file that it inherits. So that lock is held exactly as long as a store uses the files,
even after the service that started it was killed. The process of the shelf, if there is one, locks `shelf.lock` so.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from deferd.store.disk import DiskFault, write_fault
from deferd.store.preflight import StoreRefused

_log = logging.getLogger("deferd.store")

SOCKET_PATH_MAX_BYTES = 100
"""Systems limit the path of a Unix socket to 104 or 108 bytes."""
LOG_MAX_BYTES = 10 * 1024 * 1024
APPEND_ONLY_DIR = "appendonlydir"
"""In the data directory: the store's data. `deferd.store.backup` describes it."""
SHELF_DIR = "shelf"
"""In the data directory: the files of the shelf, `deferd.shelf.rows`."""
UNFINISHED_RESTORE = "restore.unfinished"
"""In the data directory: data of a backup that is not in place yet. See `deferd.cli.service.store_copies`."""
MOVED_ASIDE = ".before-restore-"
"""In the name of data that a restore has moved aside: what follows `appendonlydir` or `shelf`."""
_OTHER_USERS = 0o077
_LOCK_POLL_S = 0.02
_OWN_NAMES = {
    *("deferd.lock", "valkey.lock", "valkey.log", "valkey.log.1", "valkey.sock", "lost+found"),
    *("shelf.lock", "shelf.sock"),
    *(APPEND_ONLY_DIR, SHELF_DIR, UNFINISHED_RESTORE),
}
"""The files that a service or a restore creates in its data directory, or that a new file system contains."""
_OWN_PREFIXES = ("temp-", f"{APPEND_ONLY_DIR}{MOVED_ASIDE}", f"{SHELF_DIR}{MOVED_ASIDE}")
"""Beginnings of the names of the store's temporary files, and of data that a restore moved aside."""


class DataDirectory:
    """The directory of one embedded store. Nothing is created or locked before `claim`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.fault = DiskFault(self.path, self.log_file)
        self._claim: int | None = None

    @property
    def log_file(self) -> Path:
        """The store's log."""
        return self.path / "valkey.log"

    @property
    def store_lock_file(self) -> Path:
        """The file that the store process locks; it holds the process id as text."""
        return self.path / "valkey.lock"

    @property
    def _shelf_lock_file(self) -> Path:
        return self.path / "shelf.lock"

    @property
    def socket(self) -> Path:
        """The store's socket: in the directory, or if that path is too long, in a private one below the system's temp.

        The latter is derived from the directory's path, so that every service on the directory uses the same one.
        """
        inside = self.path / "valkey.sock"
        if len(os.fsencode(inside)) <= SOCKET_PATH_MAX_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"deferd-{os.getuid()}-{digest}" / "valkey.sock"

    @property
    def shelf_dir(self) -> Path:
        """The shelf's files."""
        return self.path / SHELF_DIR

    @property
    def shelf_socket(self) -> Path:
        """The socket of the shelf's process: beside the store's."""
        return self.socket.with_name("shelf.sock")

    def claim(self) -> None:
        """Create the directory if it is missing, deny other users access, and own it until `release`.

        Raises:
            StoreRefused: another service owns it, it is not writable, or other users keep access.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._deny_other_users()
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
                f"the data directory {self.path} is in use by another deferd service"
                + (f" (process {owner})" if owner else "")
                + ": stop it, or choose another directory (--data-dir, DEFERD_DATA_DIR)"
            ) from exc
        except OSError as exc:
            os.close(lock)
            raise self._unusable(exc) from exc
        self._claim = lock

    def release(self) -> None:
        """Release the claim. The lock file stays, because only the lock on it counts."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def try_store_lock(self) -> int | None:
        """Take the lock of the store process: an open file for it to inherit, or None while a store is running.

        Raises:
            StoreRefused: the directory is not writable.
        """
        return self._try_lock(self.store_lock_file)

    def try_shelf_lock(self) -> int | None:
        """The same for the process of the shelf."""
        return self._try_lock(self._shelf_lock_file)

    def _try_lock(self, file: Path) -> int | None:
        try:
            lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def note_pid(self, lock: int, pid: int) -> None:
        """Write the id of a process into its lock file."""
        # On a full disk this fails, but the process reports that more clearly.
        with contextlib.suppress(OSError):
            _write_pid(lock, pid)

    def store_pid(self) -> int | None:
        """The process id in the store's lock file, or None if there is none."""
        return _pid_in(self.store_lock_file)

    def shelf_pid(self) -> int | None:
        """The same in the lock file of the shelf's process."""
        return _pid_in(self._shelf_lock_file)

    def is_store(self, pid: int) -> bool:
        """Whether the process has this working directory, as a store does; False where /proc does not exist."""
        try:
            return Path(f"/proc/{pid}/cwd").readlink() == self.path
        except OSError:
            return False

    def prepare(self) -> None:
        """Prepare the start of a store: create the socket's directory and rotate a long log.

        Raises:
            StoreRefused: that fails, nothing can be written, or a restore was interrupted and left no data.
        """
        if not (self.path / APPEND_ONLY_DIR).exists():
            patterns = [UNFINISHED_RESTORE, *(f"{name}{MOVED_ASIDE}*" for name in (APPEND_ONLY_DIR, SHELF_DIR))]
            leftovers = [path for pattern in patterns for path in self.path.glob(pattern)]
            if leftovers:
                raise StoreRefused(
                    f"a restore into the data directory {self.path} was interrupted, so it has no data: run `deferd "
                    f"restore` again, or rename what it moved aside to {APPEND_ONLY_DIR} and {SHELF_DIR}, or delete "
                    f"{', '.join(path.name for path in sorted(leftovers))} to begin without jobs"
                )
        if fault := write_fault(self.path):
            raise StoreRefused(
                f"the data directory {self.path} cannot be written: {fault} (--data-dir, DEFERD_DATA_DIR)"
            )
        try:
            socket_dir = self.socket.parent
            if socket_dir != self.path:
                socket_dir.mkdir(mode=0o700, exist_ok=True)
                if socket_dir.is_symlink() or socket_dir.stat().st_uid != os.getuid():
                    raise StoreRefused(
                        f"the store's socket cannot be created in {socket_dir}, which belongs to another user: remove "
                        "it, or choose a data directory with a shorter path (--data-dir, DEFERD_DATA_DIR)"
                    )
                socket_dir.chmod(0o700)
            if self.log_file.exists() and self.log_file.stat().st_size > LOG_MAX_BYTES:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
        except OSError as exc:
            raise self._unusable(exc) from exc

    def clean_up(self) -> None:
        """Remove what is outside of the directory: a socket in the temporary directory."""
        if self.socket.parent != self.path:
            with contextlib.suppress(OSError):
                self.socket.unlink(missing_ok=True)
                self.socket.parent.rmdir()

    def _deny_other_users(self) -> None:
        """Change the mode to 0700, as a new directory has, unless other files are in it that other users may need.

        PostgreSQL does the same: `initdb` restricts an empty directory, and a server refuses one that others can use.
        """
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & _OTHER_USERS:
            return
        foreign = sorted(
            path.name
            for path in self.path.iterdir()
            if path.name not in _OWN_NAMES and not path.name.startswith(_OWN_PREFIXES)
        )
        reason = f"it also holds {', '.join(foreign[:3])}{' ...' if len(foreign) > 3 else ''}"
        if not foreign:
            reason = "this user is not allowed to change it"
            with contextlib.suppress(PermissionError):
                self.path.chmod(0o700)
            if not stat.S_IMODE(self.path.stat().st_mode) & _OTHER_USERS:
                _log.warning(
                    "other users could access the data directory %s (mode %04o): changed the mode to 0700",
                    self.path,
                    mode,
                )
                return
        raise StoreRefused(
            f"other users can access the data directory {self.path} (mode {mode:04o}), which was not "
            f"changed because {reason}: run chmod 700 on it, or choose another directory (--data-dir, DEFERD_DATA_DIR)"
        )

    def _unusable(self, exc: OSError) -> StoreRefused:
        return StoreRefused(
            f"the data directory {self.path} cannot be used: {exc.strerror or exc} (--data-dir, DEFERD_DATA_DIR)"
        )


async def lock_within(try_lock: Callable[[], int | None], seconds: float) -> int | None:
    """Take a lock of another process, an open file, as soon as it is free; None if it is not free in time."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + seconds
    while (lock := try_lock()) is None and clock() < end_s:  # noqa: ASYNC110 (another process holds it)
        await asyncio.sleep(_LOCK_POLL_S)
    return lock


def _write_pid(lock: int, pid: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{pid}\n".encode(), 0)


def _pid_in(file: Path) -> int | None:
    with contextlib.suppress(OSError):
        lock = os.open(file, os.O_RDONLY)
        try:
            return _read_pid(lock)
        finally:
            os.close(lock)
    return None


def _read_pid(lock: int) -> int | None:
    text = os.pread(lock, 32, 0).strip()
    return int(text) if text.isdigit() else None
