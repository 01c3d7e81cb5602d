"""What the operator must know is named where operators look: the responses, `/readyz`, the log, the failed start.

Small disks are real file systems, which only root can mount.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deferd.store.disk import write_fault
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.file_systems import fill, mounted
from tests.integration.store.store_servers import StoreServer
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
SOON_S = 20.0
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with mounted(tmp_path / "disk", "tmpfs", size="1m") as folder:
        yield folder


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def put_until_it_fails(service: ServiceProcess) -> dict[str, Any]:
    """Put 50 kB a time; the first problem document."""
    with httpx.Client(base_url=service.url, timeout=10, verify=NO_TLS) as client:
        for _ in range(100):
            response = client.post("/jobs", json={"topic": "t", "body": "x" * 50_000})
            if response.status_code != 201:
                return dict(response.json())
    raise AssertionError("the disk is not full")


def status_of_a_put(service: ServiceProcess) -> int:
    return httpx.post(f"{service.url}/jobs", json={"topic": "t"}, timeout=10, verify=NO_TLS).status_code


def refusal(folder: Path, *, files: int | None = None) -> str:
    """The line of a service that does not start."""
    limit = "" if files is None else f"ulimit -n {files};"
    command = f'{limit} exec "{sys.executable}" -m deferd serve --port 0 --data-dir "$0"'
    done = subprocess.run(
        ["/bin/sh", "-c", command, folder], stderr=subprocess.PIPE, text=True, timeout=SOON_S, check=False
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_is_named_and_the_service_goes_on_when_there_is_room(disk: Path, workers: str) -> None:
    with running_service("--workers", workers, data_dir=disk) as service:
        problem = put_until_it_fails(service)
        assert problem["code"] == "store_unavailable"
        assert problem["detail"].startswith(
            f"the store cannot be reached: its data directory cannot be written: {FULL} ("
        )
        fill(disk)  # now the store cannot come back either
        wait_until(lambda: f"its data directory cannot be written: {FULL}" in readiness(service), SOON_S, "it is named")
        line = f"exited unexpectedly (its data directory cannot be written: {FULL}"
        wait_until(lambda: line in service.output(), SOON_S, "the log names it")
        remount(disk, "size=16m")
        wait_until(lambda: status_of_a_put(service) == 201, SOON_S, "puts are stored again")


def readiness(service: ServiceProcess) -> str:
    return httpx.get(f"{service.url}/readyz", timeout=10, verify=NO_TLS).text


def test_a_start_on_a_disk_that_is_full_or_read_only_names_it(disk: Path) -> None:
    folder = disk / "data"
    folder.mkdir(mode=0o700)
    (folder / "deferd.lock").write_text("123\n")
    fill(disk)
    assert f"the data directory {folder} cannot be written: {FULL} (0 KiB are free)" in refusal(folder)
    remount(disk, "ro")
    assert f"the data directory {folder} cannot be used: Read-only file system" in refusal(folder)
    assert write_fault(folder) is not None


def test_a_full_disk_below_the_metrics_of_server_processes_is_named(disk: Path, tmp_path: Path) -> None:
    with running_service("--workers", "2", data_dir=tmp_path, TMPDIR=str(disk)) as service:
        fill(disk)
        os.kill(service.server_process_pids()[0], signal.SIGKILL)
        cause = f"(signal {signal.SIGBUS:d}; {disk}/deferd-metrics-"
        wait_until(lambda: cause in service.output(), SOON_S, "the log says it")
        assert f"cannot be written: {FULL} (" in service.output()


def test_too_few_open_files_are_named_at_the_start(tmp_path: Path) -> None:
    for files in (16, 20):
        assert "Too many open files" in refusal(tmp_path / "data", files=files)


def test_the_full_disk_of_an_external_store_is_named(disk: Path, tmp_path: Path) -> None:
    with (
        StoreServer(disk, appendonly="yes", appendfsync="everysec") as store,
        running_service("--redis-url", store.mark_used().url, data_dir=tmp_path) as service,
    ):
        detail = f"the store currently refuses calls: MISCONF Errors writing to the AOF file: {FULL}"
        assert put_until_it_fails(service)["detail"] == detail
        assert detail in readiness(service)
        wait_until(lambda: f": {detail}\n" in service.output(), SOON_S, "the log says it")


def test_a_backup_to_a_full_disk_names_where(disk: Path, tmp_path: Path) -> None:
    with running_service(data_dir=tmp_path) as service:
        assert status_of_a_put(service) == 201
    fill(disk)
    command = [sys.executable, "-m", "deferd", "backup", str(disk / "backup"), "--data-dir", str(service.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert (done.returncode, done.stderr) == (1, f"deferd: {disk / 'backup'} cannot be read or written: {FULL}\n")
