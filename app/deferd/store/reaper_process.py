"""Run as a script by `deferd.store.reaper`: ends the embedded store when the service that started it is gone.

Arguments: the store's lock file; a file descriptor at whose end no serving process is left; how many seconds to wait
for that end. From standard input come lines with the store's process id, 0 while there is none; its end means that
the service has ended, however that happened.

Only the standard library: it starts within milliseconds and stays small.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time

TERMINATE_S = 3.0
"""How long the store gets to end in order, before SIGKILL."""
LOOK_AGAIN_S = 0.05


def main(lock_file: str, serving_fd: int, linger_s: float) -> None:
    """Wait for the end of the service, then end the store."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these ask the service to end, and the store is needed until it has
    said = b""
    while piece := os.read(0, 1024):
        said = (said + piece)[-64:]
    store_pid = int(said.split()[-1]) if said else 0
    if store_pid == 0:
        return
    select.select([serving_fd], [], [], linger_s)
    _signal(lock_file, store_pid, signal.SIGTERM)
    end_s = time.monotonic() + TERMINATE_S
    while _is_at_work(lock_file, store_pid):
        if time.monotonic() > end_s:
            _signal(lock_file, store_pid, signal.SIGKILL)
            return
        time.sleep(LOOK_AGAIN_S)


def _signal(lock_file: str, store_pid: int, number: int) -> None:
    if _is_at_work(lock_file, store_pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(store_pid, number)


def _is_at_work(lock_file: str, store_pid: int) -> bool:
    """Whether the lock is held, and by this store: not by one of a service that was started meanwhile."""
    try:
        lock = os.open(lock_file, os.O_RDWR)
    except OSError:  # the folder was removed
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, 32, 0).strip() == str(store_pid).encode()
    finally:
        os.close(lock)
    return False


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
