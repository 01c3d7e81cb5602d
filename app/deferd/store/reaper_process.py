"""The script that `deferd.store.embedded` runs: stops the embedded store when the service that started it has ended.

Arguments: the store's lock file; the store's process id, 0 while there is none; a file descriptor that reaches its end
when no server process is left; how many seconds to wait for that. Each line of standard input is a new process id of
the store. Its end means that the service has ended, for any reason.

It uses only the standard library, to start within milliseconds and stay small.
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
"""How long the store may take to shut down before it gets SIGKILL."""
POLL_S = 0.05


def main(lock_file: str, store_pid: int, serving_fd: int, linger_s: float) -> None:
    """Wait for the end of the service, then stop the store."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they stop the service, which needs the store until it has ended
    received = b""
    while piece := os.read(0, 1024):
        received = (received + piece)[-64:]
    if received:
        store_pid = int(received.split()[-1])
    if store_pid == 0:
        return
    select.select([serving_fd], [], [], linger_s)
    _signal(lock_file, store_pid, signal.SIGTERM)
    end_s = time.monotonic() + TERMINATE_S
    while _is_running(lock_file, store_pid):
        if time.monotonic() > end_s:
            _signal(lock_file, store_pid, signal.SIGKILL)
            return
        time.sleep(POLL_S)


def _signal(lock_file: str, store_pid: int, number: int) -> None:
    if _is_running(lock_file, store_pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(store_pid, number)


def _is_running(lock_file: str, store_pid: int) -> bool:
    """Whether this store holds the lock, and not the store of a service that was started since."""
    try:
        lock = os.open(lock_file, os.O_RDWR)
    except OSError:  # the directory was removed
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, 32, 0).strip() == str(store_pid).encode()
    finally:
        os.close(lock)
    return False


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
