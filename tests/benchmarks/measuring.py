"""Shared by all benchmarks: a service pinned to a core, CPU and disk meters, and the output of figures.

The service has a core to itself. Its store shares another one with the benchmark, which acts as the clients. On a
machine with one core all share it. Linux only: it reads `/proc`.

FIGURES=docs/figures.json python -m tests.benchmarks.memory

also writes the figures that pages state into that file, where `scripts/write_figures.py` takes them from.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from deferd.store.data_dir import DataDirectory
from deferd.store.valkey_process import allocator_environment, valkey_binary
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer

_CORES = sorted(os.sched_getaffinity(0))
SERVICE_CORE = _CORES[0]
OTHER_CORE = _CORES[-1]
SETTLE_S = 1.0
"""Pause between the start of a service and the first measurement."""

new_event_loop = uvloop.new_event_loop
T = TypeVar("T")


@dataclass(frozen=True)
class MeasuredService:
    """A running `deferd serve` and its store."""

    process: ServiceProcess
    pid: int
    store_pid: int

    @property
    def url(self) -> str:
        """Its URL."""
        return self.process.url

    @property
    def port(self) -> int:
        """Its port on loopback."""
        return self.process.port

    @property
    def store_socket(self) -> Path:
        """The Unix socket of its embedded store."""
        return DataDirectory(self.process.data_dir).socket


@contextlib.contextmanager
def measured_service(
    *flags: str, pinned: bool = True, in_memory: bool = False, **environment: str
) -> Iterator[MeasuredService]:
    """Start a service with a new data directory; with `pinned` on one core, its store and the benchmark on another.

    Its store is the embedded one (append-only file, fsync always), or with `in_memory` one that writes no file.
    """
    end_in_order()
    with (
        tempfile.TemporaryDirectory(prefix="deferd-bench-") as name,
        (_memory_service if in_memory else _durable_service)(Path(name), *flags, **environment) as service,
    ):
        if pinned:
            pin(service.pid, SERVICE_CORE)
            pin(service.store_pid, OTHER_CORE)
            pin(os.getpid(), OTHER_CORE)
        time.sleep(SETTLE_S)
        yield service


@contextlib.contextmanager
def _durable_service(folder: Path, *flags: str, **environment: str) -> Iterator[MeasuredService]:
    with running_service(*flags, data_dir=folder, **environment) as process:
        process.wait_ready()
        store_pid = process.store_pid()
        assert store_pid is not None, "the service has no embedded store"
        yield MeasuredService(process, process.process.pid, store_pid)


@contextlib.contextmanager
def _memory_service(folder: Path, *flags: str, **environment: str) -> Iterator[MeasuredService]:
    with (
        StoreServer(folder / "store", environment=embedded_environment()) as store,
        running_service("--redis-url", store.url, *flags, data_dir=folder / "service", **environment) as process,
    ):
        process.wait_ready()
        yield MeasuredService(process, process.process.pid, store.pid)


def embedded_environment() -> dict[str, str]:
    """Variables of the embedded store's process, for a store in its place: see `deferd.store.valkey_process`."""
    return asyncio.run(allocator_environment(valkey_binary()))


def end_in_order() -> None:
    """Let SIGTERM raise SystemExit, so that this process stops those that it has started."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def pin(pid: int, core: int) -> None:
    """Run all threads of a process on this core only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {core})


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system, with a resolution of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class CpuMeter:
    """CPU time of processes during the block: `used[pid]` in seconds, `share(pid)` in percent of a core."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.used: dict[int, float] = {}
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._before = {pid: cpu_seconds(pid) for pid in self._pids}
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds = time.perf_counter() - self._began
        self.used = {pid: cpu_seconds(pid) - before for pid, before in self._before.items()}

    def share(self, pid: int) -> float:
        """Percent of one core."""
        return 100 * self.used[pid] / self.seconds

    def us_each(self, pid: int, count: int) -> float:
        """Microseconds for each of `count` jobs or calls."""
        return 1e6 * self.used[pid] / count


def allow_connections(count: int) -> None:
    """Raise the limit of open files to `count` connections, for this process and those that it starts."""
    needed = count + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > hard != resource.RLIM_INFINITY:
        raise SystemExit(f"{count} connections need {needed} open files; this system allows {hard} (ulimit -Hn)")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` (0 to 1) of the `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class DiskMeter:
    """The duration of a small durable write during the block, measured ten times a second.

    Figures with `appendfsync always` depend on this. It differs between machines and with other load on the disk.
    """

    _EVERY_S = 0.1

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._taken_ms: list[float] = []

    def _measure(self) -> None:
        with tempfile.TemporaryFile() as file:
            while not self._ended.wait(self._EVERY_S):
                file.write(b"x" * 400)
                file.flush()
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                self._taken_ms.append((time.perf_counter() - began) * 1000)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def __str__(self) -> str:
        """The result as a phrase."""
        p50_ms, p99_ms = (percentile(self._taken_ms or [0.0], share) for share in (0.5, 0.99))
        return f"a durable write took p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms"


def options_of(doc: str | None, /, **flags: Any) -> argparse.Namespace:
    """The options of this run. Each flag has a default, which gives its type, or that and its help. False: a switch."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, given in flags.items():
        default, text = given if isinstance(given, tuple) else (given, None)
        way: dict[str, Any] = (
            {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        )
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **way)
    return parser.parse_args()


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run it on an event loop of its own."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def store_cpu_us(server: StoreServer) -> float:
    """CPU time of a store so far, by its own count; that of its child processes is not in it."""
    cpu = server.command("INFO", "cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6


def show_target(what: str, measured: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
    """Print a figure, its target, and whether the target was met."""
    targets: Sequence[tuple[str, float | None, Callable[[float, float], bool]]] = (
        (">=", at_least, float.__ge__),
        ("<=", at_most, float.__le__),
    )
    for sign, target, holds in targets:
        if target is not None:
            verdict = "met" if holds(float(measured), float(target)) else "MISSED"
            print(f"  {what}: {measured:.2f}  (target {sign} {target:g}: {verdict})")


def record_figure(name: str, value: float, unit: str, *, digits: int = 2) -> None:
    """Write a figure into the file that the variable FIGURES names, where that has a row for it: see CONTRIBUTING.md.

    `digits` are the significant ones that pages show. Runs of one version of the service on one machine make a range;
    the first run of another one replaces them. A run with other options than the row's is not recorded.
    """
    if "FIGURES" not in os.environ:
        return
    file = Path(os.environ["FIGURES"])
    figures: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    row = figures.get(name)
    command = " ".join(["python", *sys.orig_argv[1:]])
    if row is None or row.get("command", command) != command:
        print(f"  not recorded as {name}: {file} has {'no row for it' if row is None else row['command']}")
        return
    run = {"unit": unit, "digits": digits, "commit": _service_commit(), "command": command, "machine": _machine()}
    is_same = all(row.get(key) == now for key, now in run.items())
    values = [*(row["values"] if is_same else []), float(f"{value:.4g}")]
    figures[name] = {"values": values, "measured": f"{datetime.now(UTC):%Y-%m-%d}", **run}
    file.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"  recorded as {name} in {file}")


@functools.cache
def _service_commit() -> str:
    """The last commit that changed the service; with `+` if it has changes that are not committed."""
    commit = _output("git", "log", "-1", "--format=%h", "--", "app")
    return commit + "+" * bool(_output("git", "status", "--porcelain", "--", "app"))


@functools.cache
def _machine() -> dict[str, Any]:
    """What figures depend on beside the service. The store's allocator is one of these."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpus = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    store = _output(valkey_binary(), "--version").split("v=")[1].split()[0]
    with ThreadPoolExecutor(1) as thread:  # a benchmark may have a loop that runs here
        environment = thread.submit(embedded_environment).result()
    allocator = "jemalloc" if "LD_PRELOAD" in environment else "malloc"
    return {
        "cores": len(_CORES),
        "cpu": next(cpus, None),
        "python": platform.python_version(),
        "store": f"Valkey {store}, {allocator}",
    }


def _output(*command: str) -> str:
    ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=30)
    return ran.stdout.strip()
