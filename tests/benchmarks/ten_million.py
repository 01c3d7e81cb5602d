"""What do many delayed jobs on one durable store take: memory, disk, restarts, rewrites, audit, backup, copy, purge?

    python -m tests.benchmarks.ten_million [--jobs 10000000] [--text-bytes 0] [--rate 500] [--data-dir DIR]
        [--steps fill,cycle,restart,rewrite,audit,backup,copy,purge]

The jobs are put in batches of 1,000 over HTTP into one topic, due at random instants of a month, into the embedded
store (append-only file, fsync always), as `deferd serve` configures it. With `--data-dir` the data stays there, so that
a long run can be made of several commands; `fill` puts what is missing of `--jobs`.

fill     jobs per second, memory and disk of each job, and the memory, disk and restart time that `deferd bench plan`
         predicts for them
cycle    what a job of the same topic takes of CPU, network, append-only file and script calls, put to finish in batches
         of 500
restart  from SIGTERM, or SIGKILL to the service or to its store, until `/readyz` returns 200
rewrite  BGREWRITEAOF, while `--rate` jobs are due each second
audit    an audit of the topic, beside the same load: the time, the lateness and the longest call of the store; so for
backup   copies that are not loaded, and are loaded and counted, and
purge    the removal of all jobs
copy     `deferd copy` into an empty store, while no service runs
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
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson

from deferd.bench.plan import Plan, PlanOptions, plan, restart_s
from deferd.store.data_dir import APPEND_ONLY_DIR
from tests.benchmarks import raw_http
from tests.benchmarks.lasting_service import CALL_S, DiskWatch, LastingService, LongestCalls, bytes_in
from tests.benchmarks.measuring import (
    CpuMeter,
    end_in_order,
    new_event_loop,
    record_figure,
    resident_bytes,
    show_target,
)
from tests.benchmarks.steady_load import SteadyLoad, steady_load

TOPIC = "bench.many"
ID_BYTES = 14
BATCH = 1000
BATCH_BYTES = 1_000_000
"""A request has at most 1 MiB by default."""
PUTTERS = 3
FAR_S, SPREAD_S = 86_400.0, 30 * 86_400.0
LONGEST_MS = 10
P99_MS = 50
CYCLE_BATCH, CYCLE_S = 500, 15.0
STEPS = ("fill", "cycle", "restart", "rewrite", "audit", "backup", "copy", "purge")


def job(number: int, text_bytes: int) -> dict[str, Any]:
    """A job for a put: 14 bytes of id and about 34 of body, and text of which the body has `text_bytes` more."""
    body: dict[str, Any] = {"order": number, "customer": f"c-{number % 1000}"}
    if text_bytes:
        words = (f"{number * 2_654_435_761 + at * 40_503 & 0xFFFFFFFF:08x} item " for at in range(text_bytes // 14 + 1))
        body["text"] = "".join(words)[:text_bytes]
    delay_s = round(FAR_S + random.random() * SPREAD_S, 3)
    return {"topic": TOPIC, "id": f"order-{number:08d}", "delay": delay_s, "body": body}


def mean_payload(jobs: int, text_bytes: int) -> float:
    """Bytes of id and body of a job, the mean of ten thousand."""
    samples = [job(at * jobs // 10_000 + at % 1000, text_bytes) for at in range(10_000)]
    return sum(len(one["id"]) + len(orjson.dumps(one["body"])) for one in samples) / len(samples)


def stored(service: LastingService) -> int:
    """How many delayed jobs there are."""
    try:
        view = service.call("GET", f"/topics/{TOPIC}")
    except httpx.HTTPStatusError:
        return 0
    return int(view.get("counts", view)["delayed"])


def fill(service: LastingService, jobs: int, _rate: int) -> None:
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
        runner.run(
            raw_http.put_range(
                service.port,
                range(first, jobs),
                partial(job, text_bytes=service.text_bytes),
                batch=min(BATCH, BATCH_BYTES // (service.text_bytes + 200)),
                connections=PUTTERS,
            )
        )
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
        payload = mean_payload(jobs, service.text_bytes)
        beyond = (memory["used_memory"] - before) / new - payload
        print(f"  id and body: {payload:.1f} bytes; beyond them {beyond:.1f}")
    show_prediction("memory", predicted(service, jobs).primary_bytes, resident_bytes(service.store_pid))
    record_figure(f"memory-{jobs // 10**6}m", resident_bytes(service.store_pid) / 1e9, "GB")


def predicted(service: LastingService, jobs: int) -> Plan:
    """What `deferd bench plan` says of these jobs."""
    payload = mean_payload(jobs, service.text_bytes)
    return plan(PlanOptions(jobs=jobs, due=0, ids=ID_BYTES, bodies=round(payload) - ID_BYTES))


def show_prediction(what: str, said: float, measured: float) -> None:
    """Print what was predicted relative to what was measured."""
    print(f"  predicted {what} relative to the measured: {said / measured:.2f}")


def cycle(service: LastingService, jobs: int, _rate: int) -> None:
    """Full cycles in batches, and what each job of them takes."""
    with (
        service.client() as client,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
        CpuMeter(service.pid, service.store_pid) as cpu,
    ):
        client.config_resetstat()
        before = client.info()
        began = time.perf_counter()
        done, http_bytes = runner.run(cycles(service.port, service.text_bytes))
        seconds = time.perf_counter() - began
        after, commands = client.info(), client.info("commandstats")

    def each(name: str) -> float:
        return float(after[name] - before[name]) / done

    calls = commands["cmdstat_fcall"]["calls"]
    print(
        f"  {done:,} jobs put, promoted, popped and finished in batches of {CYCLE_BATCH} at {done / seconds:,.0f}/s, "
        f"of a topic with {jobs:,} others"
    )
    print(
        f"  CPU a job: service {cpu.us_each(service.pid, done):.1f} us, "
        f"store {cpu.us_each(service.store_pid, done):.1f} us"
    )
    print(
        f"  bytes a job: HTTP {http_bytes / done:.0f}, service to store {each('total_net_input_bytes'):.0f}, store to "
        f"service {each('total_net_output_bytes'):.0f}, append-only file {each('aof_current_size'):.0f}"
    )
    print(f"  calls of scripts a job, and so at most that many fsyncs: {calls / done:.4f}")


async def cycles(port: int, text_bytes: int) -> tuple[int, int]:
    """Full cycles for `CYCLE_S`; how many jobs, and the bytes of requests and responses, without their headers."""
    began, done, moved = time.perf_counter(), 0, 0

    async def call(connection: raw_http.Connection, method: str, path: str, body: Any = None) -> Any:
        nonlocal moved
        request = raw_http.request_bytes(method, path, body)
        response = await connection.send(request)
        moved += len(request) + len(response.body)
        return response.json()

    async def cycle_over(connection: raw_http.Connection) -> None:
        nonlocal done
        while time.perf_counter() - began < CYCLE_S:
            jobs = [{**job(number, text_bytes), "delay": 0.2} for number in range(CYCLE_BATCH)]
            for one in jobs:
                del one["id"]
            await call(connection, "POST", "/jobs/batch", {"jobs": jobs})
            left = CYCLE_BATCH
            while left > 0:
                popped = await call(connection, "GET", f"/topics/{TOPIC}/pop?wait=5&count={left}")
                items = [{"id": one["id"], "receipt": one["receipt"]} for one in popped["jobs"]]
                if not items:
                    raise SystemExit("a due job did not come")
                await call(connection, "POST", f"/topics/{TOPIC}/finish", {"jobs": items})
                left -= len(items)
            done += CYCLE_BATCH

    connections = await raw_http.connect_many(port, 2 * PUTTERS)
    await asyncio.gather(*map(cycle_over, connections))
    for connection in connections:
        connection.close()
    return done, moved


def restart(service: LastingService, jobs: int, _rate: int) -> None:
    """Restart in three ways."""
    size = bytes_in(service.data_dir / APPEND_ONLY_DIR)
    [base] = (service.data_dir / APPEND_ONLY_DIR).glob("*.base.*")
    base_bytes = base.stat().st_size
    print(f"  append-only file: {size / 1e6:,.0f} MB, of which {base_bytes / 1e6:,.0f} MB as of the last rewrite")
    stopped_s = service.stop()
    started_s = service.start()
    print(f"  SIGTERM: ended within {stopped_s:.1f} s; ready {started_s:.1f} s after the start{_loaded(service)}")
    of_jobs = predicted(service, jobs)
    body_bytes = mean_payload(jobs, service.text_bytes) - ID_BYTES
    said_s = restart_s(jobs * min(base_bytes / of_jobs.file_bytes, 1), body_bytes, size - base_bytes)
    show_prediction("restart time", said_s, started_s)
    record_figure(f"ready-{jobs // 10**6}m", started_s, "s")
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


def _loaded(service: LastingService) -> str:
    """How long the store itself took to load, by its log."""
    lines = service.folder.log_file.read_text(errors="replace").splitlines()
    loaded = [line for line in lines if "DB loaded from append only file" in line]
    return f" (the store loaded for {loaded[-1].rpartition(': ')[2]})" if loaded else ""


def rewrite(service: LastingService, jobs: int, rate: int) -> None:
    """Rewrite the append-only file under load."""
    directory = service.data_dir / APPEND_ONLY_DIR
    with service.client() as client, steady_load(service.port, rate) as load:
        quiet = time.time()
        time.sleep(10)
        client.config_set("latency-monitor-threshold", 5)
        client.execute_command("LATENCY", "RESET")
        with LongestCalls(service) as calls, DiskWatch(directory) as disk:
            began = time.time()
            client.execute_command("BGREWRITEAOF")
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.1)
            ended = time.time()
        time.sleep(2)
        info = client.info()
        slow = client.execute_command("LATENCY", "LATEST")
    print(f"  before it, {rate}/s: {load.report(quiet, began)}")
    print(
        f"  rewritten within {ended - began:.1f} s, the fork {info['latest_fork_usec'] / 1000:.0f} ms, memory copied "
        f"on write {info['aof_last_cow_size'] / 1e6:.0f} MB, status {info['aof_last_bgrewrite_status']}"
    )
    print(f"  the file: at most {disk.most / 1e6:,.0f} MB, then {bytes_in(directory) / 1e6:,.0f} MB")
    print(f"  meanwhile: {load.report(began, ended)}; longest calls: {calls}")
    waits = ", ".join(f"{name.decode()} {most} ms" for name, _, _, most, *_ in slow)
    print(f"  the longest waits of the store: {waits or 'none over 5 ms'}")
    show_prediction("file", predicted(service, jobs).file_bytes, bytes_in(directory))
    show_p99(load, began, ended)


def show_p99(load: SteadyLoad, began: float, ended: float) -> None:
    """Print the p99 of the jobs that were due between these instants, and its target."""
    late = sorted(load.late_ms_between(began, ended)) or [0.0]
    show_target("p99 lateness meanwhile, ms", late[int(len(late) * 0.99)], at_most=P99_MS)


def beside_load(service: LastingService, rate: int, what: str, work: Callable[[], object]) -> float:
    """Do it beside the load, and print the seconds it took, the lateness and the longest calls; returns the seconds."""
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
    return ended - began


def audit(service: LastingService, jobs: int, rate: int) -> None:
    """Audit the topic."""

    def work() -> str:
        found = service.call("GET", f"/topics/{TOPIC}/audit")
        return f"{found['checked']:,} jobs checked, {'clean' if not found['findings'] else found['findings']}"

    took_s = beside_load(service, rate, f"audit of a topic with {jobs:,} jobs", work)
    record_figure(f"audit-{jobs // 10**6}m", took_s, "s", digits=3)


def backup(service: LastingService, _jobs: int, rate: int) -> None:
    """Make backups, without and with loading the copy."""
    for flags in (["--no-verify"], []):
        target = service.data_dir.parent / f"{service.data_dir.name}-backup"
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "deferd", "backup", str(target), "--data-dir", str(service.data_dir), *flags]

        def work(command: list[str] = command) -> str:
            made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=CALL_S)
            return " ".join(made.stdout.split()[-12:])

        beside_load(service, rate, f"backup {' '.join(flags)}", work)
        shutil.rmtree(target, ignore_errors=True)


def copy(service: LastingService, _jobs: int, _rate: int) -> None:
    """Copy to another data directory; the service is stopped meanwhile."""
    target = service.data_dir.parent / f"{service.data_dir.name}-copy"
    shutil.rmtree(target, ignore_errors=True)
    service.stop()
    began = time.perf_counter()
    command = [sys.executable, "-m", "deferd", "copy", "--from", str(service.data_dir), "--to", str(target)]
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=CALL_S)
    print(f"  copy: {time.perf_counter() - began:.1f} s, exit code {made.returncode}")
    if made.returncode:
        print(made.stdout, made.stderr)
    shutil.rmtree(target, ignore_errors=True)
    service.start()


def purge(service: LastingService, jobs: int, rate: int) -> None:
    """Remove all jobs."""

    def work() -> str:
        return f"{service.call('DELETE', f'/topics/{TOPIC}')['removed']:,} removed"

    beside_load(service, rate, f"purge of a topic with {jobs:,} jobs", work)
    print(f"  the store then: {resident_bytes(service.store_pid) / 1e6:,.0f} MB resident")


def run(service: LastingService, steps: list[str], jobs: int, rate: int) -> None:
    """Run the steps in their order."""
    doing: dict[str, Callable[[LastingService, int, int], None]] = {
        "fill": fill,
        "cycle": cycle,
        "restart": restart,
        "rewrite": rewrite,
        "audit": audit,
        "backup": backup,
        "copy": copy,
        "purge": purge,
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
    parser.add_argument("--text-bytes", type=int, default=0, help="more bytes for each body")
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
        run(stack.enter_context(LastingService(data_dir, options.text_bytes)), steps, options.jobs, options.rate)


if __name__ == "__main__":
    main()
