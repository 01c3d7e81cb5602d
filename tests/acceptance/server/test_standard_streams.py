"""A service whose standard streams are closed, or whose log nobody reads: it serves as any other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.cli.command_line import terminal
from tests.acceptance.http_calls import NO_TLS
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
START_S = 30.0
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@contextlib.contextmanager
def serving(folder: Path, *flags: str, redirection: str = "", **options: Any) -> Iterator[httpx.Client]:
    """A client of `deferd serve`, run by a shell with these redirections; it must end with 0 on SIGTERM."""
    port = free_port()
    command = f'exec "{sys.executable}" -m deferd serve --port {port} --data-dir "$0" "$@" {redirection}'
    process = subprocess.Popen(["/bin/sh", "-c", command, folder / "data", *flags], **options)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, verify=NO_TLS) as client:

            def is_ready() -> bool:
                assert process.poll() is None
                with contextlib.suppress(httpx.TransportError):
                    return client.get("/readyz").status_code == 200
                return False

            wait_until(is_ready, START_S, "the service is ready")
            yield client
        process.terminate()
        assert process.wait(START_S) == 0
    finally:
        process.kill()
        process.wait()


def put_and_pop(client: httpx.Client) -> None:
    client.post("/jobs", json={"topic": "t", "id": "a"}).raise_for_status()
    assert client.post("/topics/t/pop").json()["jobs"][0]["id"] == "a"


@pytest.mark.parametrize("redirection", ["<&-", "2>&-"])
def test_a_service_serves_with_closed_streams(tmp_path: Path, redirection: str) -> None:
    with serving(tmp_path, redirection=redirection, stderr=subprocess.DEVNULL) as client:
        put_and_pop(client)


def test_processes_serve_without_streams_in_a_locale_without_utf_8_from_a_directory_whose_name_is_no_text(
    tmp_path: Path,
) -> None:
    folder = tmp_path / os.fsdecode(b"no\xfftext")
    folder.mkdir()
    everything, options = "<&- >&- 2>&-", {"env": {**os.environ, **C_LOCALE}, "stderr": subprocess.DEVNULL}
    with serving(folder, "--workers", "2", redirection=everything, **options) as client:
        put_and_pop(client)


def test_a_log_that_nobody_reads_does_not_stop_the_service(tmp_path: Path) -> None:
    """Standard error is a pipe that is full from the start; at the end all of it is read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(writer, b"." * 4096)
    os.set_blocking(writer, True)
    with (
        os.fdopen(reader, "rb") as log,
        serving(tmp_path, "--workers", "2", "--insecure", stderr=writer) as client,
    ):
        os.close(writer)
        assert client.get("/topics", headers={"Host": "rebound.example.com"}).status_code == 403  # it is logged
        put_and_pop(client)
        assert log.read(filled) == b"." * filled
        assert any(b"listening on" in line for line in log)


TOSTOP_AND_SERVE = """
import os, sys, termios
attributes = termios.tcgetattr(0)
attributes[3] |= termios.TOSTOP
termios.tcsetattr(0, termios.TCSANOW, attributes)
os.execv(sys.executable, [sys.executable, "-m", "deferd", "serve", *sys.argv[1:]])
"""


def test_a_terminal_does_not_stop_server_processes_that_write_to_it(tmp_path: Path) -> None:
    words = ("--workers", "2", "--port", "0", "--log-level", "debug", "--data-dir", str(tmp_path / "data"))
    with terminal("", *words, program=(sys.executable, "-c", TOSTOP_AND_SERVE)) as shown:
        shown.wait_for("listening on", START_S)
        shown.press("\x03")
        assert shown.end(START_S) == 0
    assert shown.text.count("stopping: SIGTERM") == 2, "both have written to it"
    assert "killing" not in shown.text
