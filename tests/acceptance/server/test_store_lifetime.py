"""How a service and its embedded store end together: by SIGHUP, by the end of a terminal, by SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

GONE_S = 15.0
START_S = 30.0
JOB = b'{"topic": "t", "id": "late"}'
workers = pytest.mark.parametrize("workers", ["1", "2"])


@contextlib.contextmanager
def sighup_ignored() -> Iterator[None]:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def wait_for_the_end_of_the_store(service: ServiceProcess) -> None:
    wait_until(lambda: service.store_pid() is None, GONE_S, "the store has ended")
    wait_until(lambda: service.reaper_pid() is None, GONE_S, "the store's reaper has ended")


def store_log(service: ServiceProcess) -> str:
    return (service.data_dir / "valkey.log").read_text()


@workers
def test_sighup_stops_a_service_cleanly(tmp_path: Path, workers: str) -> None:
    with ServiceProcess(tmp_path, "--workers", workers, preloaded=True) as service:
        service.process.send_signal(signal.SIGHUP)
        assert service.process.wait(GONE_S) == 0
        assert service.store_pid() is None
        assert "stopping: SIGHUP" in service.output()


def test_a_service_under_nohup_ignores_sighup(tmp_path: Path) -> None:
    with sighup_ignored():
        service = ServiceProcess(tmp_path).start()
    try:
        service.process.send_signal(signal.SIGHUP)
        service.wait_ready()
        assert service.stop() == 0
    finally:
        service.kill_store()
    assert "SIGHUP" not in service.output()


def test_closing_its_terminal_stops_a_service_cleanly(tmp_path: Path) -> None:
    """Like a terminal window, a program runs the service on its own terminal and is killed."""
    service = ServiceProcess(tmp_path, "--workers", "2")
    program = "import pty, sys; pty.spawn(sys.argv[1:])"
    command = [*(sys.executable, "-m", "deferd", "serve", "--port", "0"), *("--data-dir", str(service.data_dir))]
    with subprocess.Popen(
        [sys.executable, "-c", program, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as terminal:
        assert terminal.stdout is not None
        assert any("listening on" in line for line in terminal.stdout)
        assert service.store_pid() is not None
        terminal.kill()
    wait_for_the_end_of_the_store(service)
    assert "bye bye" in store_log(service)


@workers
def test_the_store_of_a_killed_service_ends_in_order(tmp_path: Path, workers: str) -> None:
    with ServiceProcess(tmp_path, "--workers", workers, preloaded=True) as service:
        assert service.store_pid() is not None
        service.kill()
        wait_for_the_end_of_the_store(service)
        assert "bye bye" in store_log(service)


def test_the_store_runs_until_the_server_processes_of_a_killed_supervisor_have_drained(tmp_path: Path) -> None:
    head = b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    with ServiceProcess(tmp_path, "--workers", "2", "--log-level", "debug", preloaded=True) as service:
        with socket.create_connection(("127.0.0.1", service.port), START_S) as client:
            client.sendall(head % len(JOB) + b"Expect: 100-continue\r\n\r\n")
            assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            service.kill()
            # The one without a request has ended; the other drains.
            wait_until(lambda: len(service.server_process_pids()) == 1, GONE_S, "one worker is left")
            client.sendall(JOB)
            assert client.recv(65536).startswith(b"HTTP/1.1 201 ")
        wait_for_the_end_of_the_store(service)


def test_the_store_of_a_killed_service_does_not_wait_for_a_hanging_server_process(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "--workers", "2", "--drain-timeout", "0", preloaded=True) as service:
        hanging = service.server_process_pids()[0]
        os.kill(hanging, signal.SIGSTOP)
        try:
            service.kill()
            wait_for_the_end_of_the_store(service)
        finally:
            os.kill(hanging, signal.SIGKILL)


def test_a_service_takes_over_the_store_of_one_that_was_killed_with_its_reaper(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, preloaded=True) as service:
        reaper = service.reaper_pid()
        assert reaper is not None
        os.kill(reaper, signal.SIGSTOP)
        service.kill()
        service.start()
        service.wait_logged("a store of an earlier service")
        store = service.store_pid()

        os.kill(reaper, signal.SIGCONT)
        wait_until(lambda: reaper not in service.reaper_pids(), GONE_S, "the earlier reaper has ended")
        assert service.store_pid() == store, "the earlier reaper ended the store of the new service"
        service.wait_ready()


def test_a_reaper_that_is_killed_is_replaced_and_knows_the_store(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, preloaded=True) as service:
        first = service.reaper_pid()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: service.reaper_pid() not in {first, None}, GONE_S, "there is another reaper")
        service.wait_logged("the store's reaper exited unexpectedly (signal 9: it was killed")
        service.kill()
        wait_for_the_end_of_the_store(service)


def test_files_of_the_store_are_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        service = ServiceProcess(tmp_path).start()
    finally:
        os.umask(before)
    try:
        found = [service.data_dir, *service.data_dir.rglob("*")]
        assert {path.name for path in found} >= {"valkey.log", "valkey.sock", "appendonlydir"}
        assert [path for path in found if path.stat().st_mode & 0o077] == []
    finally:
        service.stop()
