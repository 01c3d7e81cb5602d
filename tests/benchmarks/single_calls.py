"""How fast are single-job calls, against a bare ASGI application on uvicorn?

    python -m tests.benchmarks.single_calls [--rounds 5] [--seconds 4] [--connections 64] [--in-memory]

Needs `wrk`. The service has one process on one core; its embedded store (append-only file, fsync always) shares the
other core with wrk. With `--in-memory` the store writes no file, as the baseline writes none. The baseline runs on
the service's core, reads the same requests and returns the same JSON. Both are measured in turn, and the medians are
compared: first only puts, then the full cycle of put, pop and finish, each as one request.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    SERVICE_CORE,
    CpuMeter,
    DiskMeter,
    MeasuredService,
    measured_service,
    options_of,
    pin,
    record_figure,
    run_here,
    show_target,
)
from tests.ports import free_port
from tests.waiting import wait_until

TOPIC = "bench.single"
SCRIPT = Path(__file__).with_name("single_calls.lua")
TARGETS = {"put": 1.1, "cycle": 0.9}
START_S = 20.0
OWN_HEADERS = {"content-length", "date", "server"}
"""Headers that the service or the baseline adds to each response."""


class Run(NamedTuple):
    """The result of one run of wrk. `cpu_us` is the server's CPU time for each request, `busy` the share of a core."""

    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    service_busy: float
    other_busy: float


def example_responses(base_url: str) -> dict[str, dict[str, Any]]:
    """deferd's responses to each of the three calls."""
    with httpx.Client(base_url=base_url, timeout=10) as client:
        put = client.post("/jobs", json={"topic": TOPIC, "body": {"order": 1042, "customer": "c-17"}})
        pop = client.get(f"/topics/{TOPIC}/pop", params={"wait": 5})
        [job] = pop.raise_for_status().json()["jobs"]
        finish = client.post(f"/jobs/{TOPIC}/{job['id']}/finish", json={"receipt": job["receipt"]})
    return {
        call: {
            "status": response.raise_for_status().status_code,
            "headers": [(name, value) for name, value in response.headers.items() if name not in OWN_HEADERS],
            "json": response.json(),
        }
        for call, response in (("put", put), ("pop", pop), ("finish", finish))
    }


@contextlib.contextmanager
def bare_application(responses: dict[str, dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """The baseline, running on the service's core: its URL and process id."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "responses.json"
        file.write_bytes(orjson.dumps(responses))
        command = (sys.executable, "-m", "tests.benchmarks.bare_asgi", "--port", str(port), "--responses", str(file))
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                wait_until(lambda: _responds(url), START_S, "the bare application responds")
                pin(process.pid, SERVICE_CORE)
                yield url, process.pid
            finally:
                process.terminate()
                process.wait(10)


def _responds(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.post(f"{url}/jobs", json={"topic": TOPIC, "body": {}}, timeout=2).is_success
    return False


def run_wrk(mode: str, url: str, options: argparse.Namespace, pid: int, store_pid: int | None) -> Run:
    """Load `url` for a while. Failed calls or empty pops end the benchmark."""
    command = [
        *("wrk", "-t1", f"-c{options.connections}", f"-d{options.seconds}", "--timeout", "10"),
        *("-s", str(SCRIPT), f"{url}/jobs", "--", mode),
    ]
    children = os.times()
    with CpuMeter(pid, *([] if store_pid is None else [store_pid])) as cpu:
        output = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=options.seconds + 60
        ).stdout
    after = os.times()
    wrk_s = after.children_user + after.children_system - children.children_user - children.children_system
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    requests, duration_us, failed, empty, p50_us, p99_us = map(int, line.split()[1:])
    if failed or empty:
        raise SystemExit(f"{mode}: {failed} calls failed and {empty} pops were empty")
    other_s = wrk_s + (0 if store_pid is None else cpu.used[store_pid])
    return Run(
        rate=requests / duration_us * 1e6,
        cpu_us=cpu.us_each(pid, requests),
        p50_ms=p50_us / 1000,
        p99_ms=p99_us / 1000,
        service_busy=cpu.share(pid),
        other_busy=100 * other_s / cpu.seconds,
    )


def purge(service: MeasuredService) -> None:
    """Delete what the runs have left, so that the next ones find an empty topic."""

    async def run() -> None:
        connection = await raw_http.connect(service.port)
        await connection.call("DELETE", f"/topics/{TOPIC}")
        connection.close()

    run_here(run())
    time.sleep(0.5)


def show(name: str, runs: list[Run]) -> Run:
    """Print the medians of the runs, and return them."""
    middle = Run(*(statistics.median(values) for values in zip(*runs, strict=True)))
    print(
        f"  {name:7} {middle.rate:8.0f} requests/s   {middle.cpu_us:5.1f} us of CPU a request   "
        f"p50 {middle.p50_ms:5.1f} ms   p99 {middle.p99_ms:6.1f} ms   its core {middle.service_busy:3.0f} % busy, "
        f"the other {middle.other_busy:3.0f} %   runs {' '.join(f'{run.rate:.0f}' for run in runs)}"
    )
    return middle


def main() -> None:
    options = options_of(
        __doc__,
        rounds=(5, "runs of each; the medians count"),
        seconds=(4, "length of a run"),
        connections=64,
        in_memory=(False, "a store without append-only file"),
    )
    with (
        measured_service(in_memory=options.in_memory) as service,
        bare_application(example_responses(service.url)) as (bare_url, bare_pid),
    ):
        print(f"single calls over {options.connections} connections", flush=True)
        for mode, target in TARGETS.items():
            bare, deferd = [], []
            with DiskMeter() as disk:
                for _ in range(options.rounds):
                    bare.append(run_wrk(mode, bare_url, options, bare_pid, None))
                    deferd.append(run_wrk(mode, service.url, options, service.pid, service.store_pid))
                    purge(service)
            print(f" {mode}; {disk}")
            baseline, service_run = show("bare", bare), show("deferd", deferd)
            show_target(f"{mode}, of bare", service_run.rate / baseline.rate, at_least=target)
            print(f"  by CPU time alone: {baseline.cpu_us / service_run.cpu_us:.2f}", flush=True)
            if mode == "put":
                record_figure("put-rate", service_run.rate, "/s", digits=3)


if __name__ == "__main__":
    main()
