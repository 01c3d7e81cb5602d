"""What do many delayed jobs on one durable store take: memory, disk, restarts, rewrites, audit, backup, copy, purge?

    python -m tests.benchmarks.ten_million [--jobs 10000000] [--steps fill,restart,rewrite,audit,backup,copy,purge]
        [--data-dir DIR] [--rate 500]

The jobs are put in batches of 1,000 over HTTP into one topic, due at random instants of a month, into the embedded store
(append-only file, fsync always), as `deferd serve` configures it. With `--data-dir` the data stays there, so that a long
run can be made of several commands; `fill` puts what is missing of `--jobs`.

fill     jobs per second, memory and disk of each job, and the memory, disk and restart time that `deferd bench plan`
         predicts for them
restart  from SIGTERM, or SIGKILL to the service or to its store, until `/readyz` returns 200
rewrite  BGREWRITEAOF, while `--rate` jobs are due each second
audit    an audit of the topic, backup a copy that is loaded and counted, copy `deferd copy` into an empty store (its
         services are stopped), purge the removal of all jobs: meanwhile the same load, and the longest call of the store
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import redis

from deferd.store.data_dir import APPEND_ONLY_DIR, DataDirectory
from deferd.testing.serve_process import ServeProcess, start_serve
from tests.benchmarks import raw_http
from tests.benchmarks.measuring import CpuMeter, end_in_order, new_event_loop, resident_bytes, show_target
from tests.benchmarks.steady_load import SteadyLoad, steady_load

TOPIC = "bench.many"
BATCH = 1000
PUTTERS = 3
FAR_S, SPREAD_S = 86_400.0, 30 * 86_400.0
START_S = 600.0
STOP_S = 120.0
CALL_S = 840.0
LONGEST_MS = 10
P99_MS = 50
LOGGED_US = 3_000
LOGGED_MOST = 20_000
STEPS = ("fill", "restart", "rewrite", "audit", "backup", "copy", "purge")


def job(number: int) -> dict[str, Any]:
    """A job for a put: 14 bytes of id and 37 to 44 of body."""
    return {
        "topic": TOPIC,
        "id": f"order-{number:08d}",
        "delay": round(FAR_S + random.random() * SPREAD_S, 3),
        "body": {"order": number, "customer": f"c-{number % 1000}"},
    }


class Service:
    """`python -m deferd serve` on a data directory that outlives it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.folder = DataDirectory(data_dir)
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start it and wait until `/readyz` returns 200; returns the seconds."""
        began = time.perf_counter()
        flags = ["--port", str(self.port), "--data-dir", str(self.data_dir)]
        self._process, output = start_serve(["deferd", "serve"], flags, {})
        self._serving = ServeProcess(self._process, output)
        self.port = httpx.URL(self._serving.wait_for_url(START_S)).port or 0
        self.wait_ready()
        return time.perf_counter() - began

    def wait_ready(self) -> None:
        """Wait until `/readyz` returns 200."""
        end_s = time.perf_counter() + START_S
        while time.perf_counter() < end_s:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).status_code == 200:
                    return
            time.sleep(0.02)
        raise SystemExit(f"the service was not ready within {START_S:.0f} s")

    def stop(self) -> float:
        """SIGTERM; returns the seconds until it has ended."""
        if self._process is None:
            return 0.0
        began = time.perf_counter()
        self._process.terminate()
        self._process.wait(STOP_S)
        self._process = None
        return time.perf_counter() - began

    def kill(self) -> None:
        """SIGKILL the service; its store is stopped by its reaper."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    @property
    def pid(self) -> int:
        """The process id of the service."""
        assert self._process is not None
        return self._process.pid

    @property
    def store_pid(self) -> int:
        """The process id of its store."""
        pid = self.folder.store_pid()
        assert pid is not None
        return pid

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A client of the store."""
        with redis.Redis(unix_socket_path=str(self.folder.socket), socket_timeout=60) as client:
            yield client

    def call(self, method: str, path: str) -> Any:
        """An HTTP call that may take long."""
        response = httpx.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=CALL_S)
        response.raise_for_status()
        return response.json()

    def log(self) -> str:
        """The log of the service since its last start."""
        return self._serving.log

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LongestCalls:
    """The longest calls of the store during a block, by what they call."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.longest_ms: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def __enter__(self) -> Self:
        with self._service.client() as client:
            client.config_set("slowlog-log-slower-than", LOGGED_US)
            client.config_set("slowlog-max-len", LOGGED_MOST)
            client.slowlog_reset()
            self._verbs = _verbs()
        return self

    def __exit__(self, *_: object) -> None:
        with self._service.client() as client:
            for one in client.slowlog_get(LOGGED_MOST):
                words = one["command"].split()
                name = words[0].decode().upper()
                if name == "EVALSHA":
                    name = self._verbs.get(words[1].decode(), "a script")
                self.longest_ms[name] = max(self.longest_ms.get(name, 0.0), one["duration"] / 1000)
                self.calls[name] = self.calls.get(name, 0) + 1

    def __str__(self) -> str:
        longest = sorted(self.longest_ms.items(), key=lambda one: -one[1])[:6]
        names = ", ".join(f"{name} {ms:.1f} ms ({self.calls[name]})" for name, ms in longest)
        return names or f"none over {LOGGED_US / 1000:.0f} ms"

    @property
    def most_ms(self) -> float:
        """The longest of all."""
        return max(self.longest_ms.values(), default=LOGGED_US / 1000)


def _verbs() -> dict[str, str]:
    from deferd.engine.scripts import assembled  # noqa: PLC0415 (takes a tenth of a second)

    return {script.digest: verb for verb, script in assembled(False).items()}


class DiskWatch:
    """The most bytes that a directory held during a block, looked at four times a second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0

    def _look(self) -> None:
        while not self._ended.wait(0.25):
            self.most = max(self.most, bytes_in(self._directory))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.most = max(self.most, bytes_in(self._directory))


def bytes_in(directory: Path) -> int:
    """The bytes of all files in a directory and below."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # a rewrite removed it
            total += path.stat().st_size
    return total


def stored(service: Service) -> int:
    """How many delayed jobs there are."""
    try:
        view = service.call("GET", f"/topics/{TOPIC}")
    except httpx.HTTPStatusError:
        return 0
    counts = view["counts"] if "counts" in view else view
    return int(counts["delayed"])


async def put(port: int, first: int, jobs: int) -> None:
    """Put the jobs from `first` on, over a few connections."""
    starts = iter(range(first, jobs, BATCH))
    shown = time.perf_counter()

    async def put_over(connection: raw_http.Connection) -> None:
        nonlocal shown
        for start in starts:
            batch = [job(number) for number in range(start, min(start + BATCH, jobs))]
            results = (await connection.call("POST", "/jobs/batch", {"jobs": batch}))["results"]
            if any(result["status"] != 201 for result in results):
                raise SystemExit(f"a put was refused: {results}")
            if time.perf_counter() - shown > 20:
                shown = time.perf_counter()
                print(f"    {start:,} put", flush=True)

    connections = await raw_http.connect_many(port, PUTTERS)
    await asyncio.gather(*map(put_over, connections))
    for connection in connections:
        connection.close()


def fill(service: Service, jobs: int, _rate: int) -> None:
    """Put what is missing, and print what a job takes."""
    first = stored(service)
    with service.client() as client:
        before, before_rss = client.info("memory")["used_memory"], resident_bytes(service.store_pid)
    put_first = first
    began = time.perf_counter()
    with (
        LongestCalls(service) as calls,
        DiskWatch(service.data_dir / APPEND_ONLY_DIR) as disk,
        CpuMeter(service.pid, service.store_pid) as cpu,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(put(service.port, first, jobs))
    seconds = time.perf_counter() - began
    new = max(jobs - put_first, 1)
    print(f"  {jobs - put_first:,} put at {new / seconds:,.0f}/s; longest calls: {calls}")
    print(
        f"  CPU a job: service {cpu.us_each(service.pid, new):.1f} us, "
        f"store without its rewrites {cpu.us_each(service.store_pid, new):.1f} us"
    )
    print(f"  the append-only file: at most {disk.most / jobs:.0f} bytes a job during the puts")
    with service.client() as client:
        memory = client.info("memory")
    print(
        f"  memory of the store: {(memory['used_memory'] - before) / new:.1f} bytes for each new job as it reports it, "
        f"{(resident_bytes(service.store_pid) - before_rss) / new:.1f} resident; {memory['used_memory'] / 1e6:,.0f} MB "
        f"in all, {resident_bytes(service.store_pid) / 1e6:,.0f} MB resident; the service "
        f"{resident_bytes(service.pid) / 1e6:.0f} MB"
    )
    if not put_first:
        payload = sum(len(one["id"]) + len(f'{{"order":{n},"customer":"c-{n % 1000}"}}') for n, one in _samples(jobs))
        payload_each = payload / SAMPLES
        beyond = (memory["used_memory"] - before) / new - payload_each
        print(f"  id and body: {payload_each:.1f} bytes; beyond them {beyond:.1f}")


SAMPLES = 10_000


def _samples(jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for at in range(SAMPLES):
        number = at * jobs // SAMPLES
        yield number, job(number)


def restart(service: Service, jobs: int, _rate: int) -> None:
    """Restart in three ways."""
    size = bytes_in(service.data_dir / APPEND_ONLY_DIR)
    print(f"  append-only file: {size / 1e6:,.0f} MB")
    stopped_s = service.stop()
    started_s = service.start()
    print(f"  SIGTERM: ended within {stopped_s:.1f} s; ready {started_s:.1f} s after the start{_loaded(service)}")
    service.kill()
    started_s = service.start()
    print(f"  SIGKILL of the service: ready {started_s:.1f} s after the start{_loaded(service)}")
    began = time.perf_counter()
    os.kill(service.store_pid, signal.SIGKILL)
    time.sleep(0.5)
    service.wait_ready()
    print(f"  SIGKILL of the store alone: ready again after {time.perf_counter() - began:.1f} s{_loaded(service)}")
    left = stored(service)
    if left != jobs:
        raise SystemExit(f"{left} of {jobs} jobs are there after the restarts")


def _loaded(service: Service) -> str:
    """How long the store itself took to load, by its log."""
    lines = service.folder.log_file.read_text(errors="replace").splitlines()
    loaded = [line for line in lines if "DB loaded from append only file" in line]
    return f" (the store loaded for {loaded[-1].rpartition(': ')[2]})" if loaded else ""


def rewrite(service: Service, _jobs: int, rate: int) -> None:
    """Rewrite the append-only file under load."""
    directory = service.data_dir / APPEND_ONLY_DIR
    with service.client() as client, steady_load(service.port, rate) as load:
        quiet = time.time()
        time.sleep(10)
        rss = resident_bytes(service.store_pid)
        with LongestCalls(service) as calls, DiskWatch(directory) as disk:
            began = time.time()
            client.execute_command("BGREWRITEAOF")
            most_private = 0
            while client.info("persistence")["aof_rewrite_in_progress"]:
                most_private = max(most_private, client.info("memory").get("mem_aof_buffer", 0))
                time.sleep(0.1)
            ended = time.time()
        time.sleep(2)
        info = client.info()
    print(f"  before it, {rate}/s: {load.report(quiet, began)}")
    print(
        f"  rewritten within {ended - began:.1f} s, the fork {info['latest_fork_usec'] / 1000:.0f} ms, memory copied on "
        f"write {info['aof_last_cow_size'] / 1e6:.0f} MB, status {info['aof_last_bgrewrite_status']}"
    )
    print(
        f"  the file: at most {disk.most / 1e6:,.0f} MB, then {bytes_in(directory) / 1e6:,.0f} MB; the store {rss / 1e6:,.0f} MB"
    )
    print(f"  meanwhile: {load.report(began, ended)}; longest calls: {calls}")
    show_p99(load, began, ended)


def show_p99(load: SteadyLoad, began: float, ended: float) -> None:
    """Print the p99 of the jobs that were due between these instants, and its target."""
    late = sorted(load.late_ms_between(began, ended)) or [0.0]
    show_target("p99 lateness meanwhile, ms", late[int(len(late) * 0.99)], at_most=P99_MS)


def beside_load(service: Service, rate: int, what: str, work: Callable[[], object]) -> None:
    """Do it beside the load, and print how long it took, the lateness and the longest calls of the store."""
    with steady_load(service.port, rate) as load:
        time.sleep(3)
        with LongestCalls(service) as calls, CpuMeter(service.store_pid) as cpu:
            began = time.time()
            done = work()
            ended = time.time()
            time.sleep(1)
    print(f"  {what}: {ended - began:.1f} s, {cpu.share(service.store_pid):.0f} % of a core for the store; {done}")
    print(f"  meanwhile: {load.report(began, ended)}; longest calls: {calls}")
    show_p99(load, began, ended)
    show_target("longest call of the store, ms", calls.most_ms, at_most=LONGEST_MS)


def audit(service: Service, jobs: int, rate: int) -> None:
    """Audit the topic."""

    def work() -> str:
        found = service.call("GET", f"/topics/{TOPIC}/audit")
        return f"{found['checked']:,} jobs checked, {'clean' if not found['findings'] else found['findings']}"

    beside_load(service, rate, f"audit of a topic with {jobs:,} jobs", work)


def backup(service: Service, _jobs: int, rate: int) -> None:
    """Make backups, without and with loading the copy."""
    for flags in (["--no-verify"], []):
        target = service.data_dir.parent / f"{service.data_dir.name}-backup"
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "deferd", "backup", str(target), "--data-dir", str(service.data_dir), *flags]

        def work(command: list[str] = command) -> str:
            made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=CALL_S)  # noqa: S603
            return " ".join(made.stdout.split()[-12:])

        beside_load(service, rate, f"backup {' '.join(flags)}", work)
        shutil.rmtree(target, ignore_errors=True)


def copy(service: Service, _jobs: int, _rate: int) -> None:
    """Copy to another data directory; the service is stopped meanwhile."""
    target = service.data_dir.parent / f"{service.data_dir.name}-copy"
    shutil.rmtree(target, ignore_errors=True)
    service.stop()
    began = time.perf_counter()
    command = [sys.executable, "-m", "deferd", "copy", "--from", str(service.data_dir), "--to", str(target)]
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=CALL_S)  # noqa: S603
    print(f"  copy: {time.perf_counter() - began:.1f} s, exit code {made.returncode}")
    if made.returncode:
        print(made.stdout, made.stderr)
    shutil.rmtree(target, ignore_errors=True)
    service.start()


def purge(service: Service, jobs: int, rate: int) -> None:
    """Remove all jobs."""

    def work() -> str:
        return f"{service.call('DELETE', f'/topics/{TOPIC}')['removed']:,} removed"

    beside_load(service, rate, f"purge of a topic with {jobs:,} jobs", work)
    print(f"  the store then: {resident_bytes(service.store_pid) / 1e6:,.0f} MB resident")


def run(service: Service, steps: list[str], jobs: int, rate: int) -> None:
    """Run the steps in their order."""
    doing: dict[str, Callable[[Service, int, int], None]] = {
        **{"fill": fill, "restart": restart, "rewrite": rewrite, "audit": audit, "backup": backup},
        **{"copy": copy, "purge": purge},
    }
    for step in steps:
        print(f"{step}, {jobs:,} jobs", flush=True)
        doing[step](service, jobs, rate)
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--steps", default=",".join(STEPS), help="some of the steps, in any order")
    parser.add_argument("--data-dir", type=Path, help="where the data is kept; default: a temporary directory")
    parser.add_argument("--rate", type=int, default=500, help="jobs due per second beside the steps")
    options = parser.parse_args()
    steps = options.steps.split(",")
    if unknown := set(steps) - set(STEPS):
        raise SystemExit(f"--steps names {', '.join(sorted(unknown))}, but must name some of {', '.join(STEPS)}")
    end_in_order()
    with contextlib.ExitStack() as stack:
        data_dir = options.data_dir
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deferd-bench-"))) / "data"
        run(stack.enter_context(Service(data_dir)), steps, options.jobs, options.rate)


if __name__ == "__main__":
    main()
