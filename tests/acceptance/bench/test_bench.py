"""`deferd bench` as users run it: against a real service, and against something else."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deferd.version import how_to_install
from tests.acceptance.cli.command_line import run_in_process
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service

RUN_S = 50
SMALL = ("--seconds", "0.5", "--connections", "4", "--jobs", "600", "--batch", "100", "--rate", "200")
PACE = {"jobs", "seconds", "jobs_per_second", "generator_busy"}
SPREAD = {"p50_ms", "p90_ms", "p99_ms", "max_ms"}


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "deferd", "bench", *flags]


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    return run_in_process("bench", *flags)


def figures(*flags: str) -> dict[str, Any]:
    """The JSON of a run that must succeed."""
    done = bench(*flags, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.keys() == {
        *("url", "processes", "clock_offset_ms", "clock_error_ms"),
        *("single", "batch", "lateness", "error"),
    }
    assert found["error"] is None
    return found


def bench_topics(url: str) -> list[str]:
    topics = httpx.get(f"{url}/topics", timeout=RUN_S, verify=NO_TLS).raise_for_status().json()["topics"]
    return [topic["topic"] for topic in topics if topic["topic"].startswith("bench-")]


class _NotDeferd(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # it would log to the stderr of the command
        pass


@contextlib.contextmanager
def server_of_something_else() -> Iterator[str]:
    """The URL of an HTTP server that is not deferd."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NotDeferd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def test_each_load_is_measured_and_leaves_no_topic_behind(shared_service: ServiceProcess) -> None:
    flags = (*SMALL, "--jobs", "601", "--processes", "2", "--consumers", "2")
    found = figures("--url", shared_service.url, *flags)

    assert (found["url"], found["processes"]) == (shared_service.url, 2)
    assert (found["clock_offset_ms"], found["clock_error_ms"] > 0) == (0, True)
    single = found["single"]
    assert single.keys() == {"connections", "put", "cycle"}
    assert single["connections"] == 4
    for calls, a_job in (("put", 1), ("cycle", 3)):
        one = single[calls]
        assert one.keys() == PACE | SPREAD | {"calls", "calls_per_second"}
        assert one["calls"] == a_job * one["jobs"] >= a_job
        assert one["jobs_per_second"] == pytest.approx(one["jobs"] / one["seconds"], rel=0.01)
        assert 0 < one["p50_ms"] <= one["p90_ms"] <= one["p99_ms"] <= one["max_ms"]
    batch = found["batch"]
    assert batch.keys() == {"batch", "put", "take", "cycle"}
    assert batch["batch"] == 100
    for part in ("put", "take", "cycle"):
        assert batch[part].keys() == PACE
        assert batch[part]["jobs"] == 601
    assert batch["cycle"]["seconds"] == pytest.approx(batch["put"]["seconds"] + batch["take"]["seconds"], abs=0.01)
    lateness = found["lateness"]
    assert lateness.keys() == SPREAD | {
        *("rate", "seconds", "jobs", "consumers"),
        *("jobs_per_pop", "generator_busy", "histogram"),
    }
    assert [lateness[name] for name in ("rate", "seconds", "jobs", "consumers")] == [200, 0.5, 100, 2]
    assert lateness["p50_ms"] <= lateness["p90_ms"] <= lateness["p99_ms"] <= lateness["max_ms"]
    assert sum(bucket["jobs"] for bucket in lateness["histogram"]) == 100
    assert bench_topics(shared_service.url) == []


@pytest.mark.slow
def test_without_json_it_prints_tables(shared_service: ServiceProcess) -> None:
    done = bench("--url", shared_service.url, "--only", "batch", *SMALL)

    assert (done.returncode, done.stderr) == (0, "")
    for text in ("Batches of 100, 600 jobs", "competed for its cores"):
        assert text in done.stdout
    assert bench_topics(shared_service.url) == []


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar_beside_the_json(shared_service: ServiceProcess) -> None:
    ours, theirs = pty.openpty()
    shown = bytearray()
    flags = ("--url", shared_service.url, "--only", "single", *SMALL, "--json")
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command(*flags), stdout=subprocess.PIPE, stderr=theirs, env=environment) as run:
        os.close(theirs)
        with contextlib.suppress(OSError):  # how a read from a terminal ends
            while piece := os.read(ours, 65536):
                shown += piece
        output, _ = run.communicate(timeout=RUN_S)
    os.close(ours)

    assert run.returncode == 0
    found = json.loads(output)
    assert (found["error"], found["batch"], found["lateness"]) == (None, None, None)
    for text in ("connecting", "single calls: put", "single calls: put, pop, finish", "calls", "━"):
        assert text in shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_removes_its_topics(shared_service: ServiceProcess, ending: signal.Signals) -> None:
    flags = ("--url", shared_service.url, "--only", "single", "--seconds", f"{RUN_S}", "--processes", "2")
    assert bench_topics(shared_service.url) == []  # else this would stop a run that has not begun
    run = subprocess.Popen(
        command(*flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline_s = time.monotonic() + RUN_S
        while not any("single" in topic for topic in bench_topics(shared_service.url)):
            assert time.monotonic() < deadline_s, "the run did not begin"
        os.killpg(run.pid, ending)  # like a terminal, which signals the child processes too
        output, error = run.communicate(timeout=RUN_S)
    finally:
        run.kill()

    assert run.returncode == 128 + ending
    assert output == ""
    assert [line for line in error.splitlines() if not line.startswith("deferd: ")] == []
    assert bench_topics(shared_service.url) == []


@pytest.mark.slow
def test_when_the_service_dies_the_remaining_topic_is_named(tmp_path: Path) -> None:
    with running_service(data_dir=tmp_path) as service:
        run = subprocess.Popen(
            command("--url", service.url, "--only", "single", "--seconds", "30", "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while not (topics := bench_topics(service.url)) or "single" not in topics[0]:
                assert run.poll() is None, run.communicate()
            service.kill()
            output, error = run.communicate(timeout=30)
        finally:
            run.kill()

    left, failed = error.splitlines()
    assert run.returncode == 1
    assert left == f"deferd: these topics may be left behind, DELETE /topics/... removes them: {topics[0]}"
    assert failed.startswith(f"deferd: single calls: put: no response from {service.url}: ")
    assert json.loads(output)["error"] == failed.removeprefix("deferd: ")


def test_an_unreachable_url_is_one_line_and_exit_code_1() -> None:
    done = bench("--url", "http://127.0.0.1:9", "--json")

    assert done.returncode == 1
    assert done.stderr == "deferd: cannot reach http://127.0.0.1:9: All connection attempts failed\n"
    assert json.loads(done.stdout)["error"] == done.stderr.removeprefix("deferd: ").strip()


def test_another_kind_of_server_is_one_line_and_exit_code_1() -> None:
    with server_of_something_else() as url:
        done = bench("--url", url)

    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"deferd: {url} responds, but not as a deferd service does: status 501: ")


def test_wrong_flags_are_a_line_each_and_exit_code_2() -> None:
    done = bench("--url", "ftp://x", "--only", "all", "--connections", "0", "--seconds", "nan", "--batch", "1001")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "deferd: --url is 'ftp://x', but must be an http:// or https:// URL without a query, such as http://host:8000",
        "deferd: --only is 'all', but must be single, batch or lateness",
        "deferd: --seconds is 'nan', but must be a number from 0.5 to 600",
        "deferd: --connections is '0', but must be a whole number from 1 to 1000",
        "deferd: --batch is '1001', but must be a whole number from 1 to 1000",
    ]


def test_flags_that_contradict_each_other_are_exit_code_2() -> None:
    done = bench("--processes", "9", "--connections", "4", "--rate", "100000", "--seconds", "600")

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "deferd: --connections is 4, but must be at least --processes (9): each needs one",
        "deferd: --consumers is 8, but must be at least --processes (9): each needs one",
        "deferd: --rate is 100000 and --seconds 600: 60000000 jobs, but there must be at most 1000000",
    ]


def test_without_rich_the_help_works_and_a_run_says_what_to_install() -> None:
    """As with the base install."""
    hide = "import sys; sys.modules['rich'] = None\nfrom deferd.cli.main import main\nsys.exit(main(sys.argv[1:]))"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", hide, *words]
        return subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)

    helped, refused = run("bench", "--help"), run("bench")

    assert (helped.returncode, "deferd bench --only lateness" in helped.stdout) == (0, True)
    assert refused.returncode == 1
    needs = "deferd: `deferd bench` needs tables and progress bars, and rich is missing"
    assert refused.stderr == f"{needs}: {how_to_install('cli')}\n"
