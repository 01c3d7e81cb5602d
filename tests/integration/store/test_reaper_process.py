"""What the store's reaper does with real processes and a real lock, without a service."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferd.store import reaper_process

END_S = 10.0
FIRST_PID = 1
"""Of a process that is not the store."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock of `tmp_path / "lock"`, as the store does."""
    with (tmp_path / "lock").open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(["sleep", "60"], pass_fds=(lock.fileno(),))
        lock.write(f"{process.pid}\n")
    with process:
        yield process
        process.kill()


def run_reaper(lock_file: Path, store_pid: int, later_pids: bytes) -> None:
    """Run a reaper until it has ended; its service has ended after it wrote `later_pids`."""
    serving_read, serving_write = os.pipe()
    os.close(serving_write)
    command = [sys.executable, "-I", "-S", reaper_process.__file__, str(lock_file), str(store_pid)]
    subprocess.run(
        [*command, str(serving_read), "5"], input=later_pids, timeout=END_S, pass_fds=(serving_read,), check=True
    )
    os.close(serving_read)


def test_a_reaper_ends_the_store_of_a_service_that_died_while_the_reaper_started(
    tmp_path: Path, store: subprocess.Popen[bytes]
) -> None:
    run_reaper(tmp_path / "lock", store.pid, b"")
    assert store.wait(END_S) == -signal.SIGTERM


def test_a_reaper_ends_the_newest_store(tmp_path: Path, store: subprocess.Popen[bytes]) -> None:
    run_reaper(tmp_path / "lock", FIRST_PID, b"0\n%d\n" % store.pid)
    assert store.wait(END_S) == -signal.SIGTERM


def test_a_reaper_ends_nothing_after_the_store_has_ended(tmp_path: Path, store: subprocess.Popen[bytes]) -> None:
    run_reaper(tmp_path / "lock", store.pid, b"0\n")
    assert store.poll() is None


def test_a_reaper_leaves_the_store_of_a_later_service_alone(tmp_path: Path, store: subprocess.Popen[bytes]) -> None:
    run_reaper(tmp_path / "lock", os.getpid(), b"")
    assert store.poll() is None
