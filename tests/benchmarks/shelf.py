"""What do jobs on the shelf take: memory, disk, puts while they move, calls, a restart, lateness beside them?

    python -m tests.benchmarks.shelf [--jobs 10000000] [--data-dir DIR] [--steps fill,calls,restart,lateness,horizon]

A service with its embedded store and `--shelf-after 2h`. The jobs, scattered ids of 20 bytes and bodies of 200, are put
in batches of 1,000 over HTTP into one topic, 20,000 a second, due at random instants of 30 days, none within the next
three hours. A thousand of them have a tag. With `--data-dir` the data stays there; `fill` puts what is missing of
`--jobs`.

fill      puts per second until all jobs are on the shelf; the resident memory of all processes and the disk then
stuff     instead of that, writes the jobs into the files while no service runs: for the other steps it is the same, and
          takes less time
calls     a cancel by id, 1,000 by tag, a forecast of 60 buckets over the 30 days, a page of 100 jobs
restart   from SIGKILL until `/readyz` returns 200, and until a job on the shelf is found
lateness  2,000 jobs a second that are due at once, while 5,000 others a second are put that move to the shelf; then the
          same without a shelf
horizon   what jobs cost that never go to the shelf, as their topic has none there, beside that without a shelf: CPU of
          all processes for single puts, for put, pop and finish as single calls, and in batches; needs `wrk`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import orjson

from deferd.engine.shelf import KEPT_S, Job
from deferd.shelf.rows import OUT, Move, Rows
from tests.benchmarks import raw_http, single_calls
from tests.benchmarks.against_revision import run_batches, run_wrk
from tests.benchmarks.lasting_service import LastingService
from tests.benchmarks.measuring import (
    CpuMeter,
    end_in_order,
    new_event_loop,
    percentile,
    record_figure,
    resident_bytes,
    run_here,
    show_target,
)
from tests.benchmarks.steady_load import steady_load
from tests.waiting import wait_until

TOPIC = "bench.shelf"
DELAY = f"deferd:{{0}}:{TOPIC}:delay"
BATCH = 1000
PUTTERS = 3
AFTER_S = 2 * 3600
FIRST_S, SPAN_S = 3 * 3600.0, 30 * 86_400.0
TAGGED = 1000
CANCELS = 500
RATE = 20_000
LATENESS_RATE, LATENESS_S = 2000, 60.0
WARM_UP_S = 10.0
MOVED_RATE = 5000
HORIZON_ROUNDS, HORIZON_S, HORIZON_JOBS = 7, 2, 20_000
WORDS = ("order", "customer", "street", "parcel", "amount", "invoice", "locker", "carrier", "weight", "refund")


NOTES = [
    " ".join(f"{chance.choice(WORDS)} {chance.getrandbits(20)}" for _ in range(16))
    for chance in map(random.Random, range(100_000))
]


def id_of(number: int) -> str:
    """An id of 20 bytes; those of consecutive numbers lie far apart, as random ids do."""
    return f"order-{number * 61_803_398_877 % 10**14:014d}"


def job(number: int) -> dict[str, Any]:
    """A job for a put: an id of 20 bytes, a body of 200."""
    body: dict[str, Any] = {"order": number, "customer": f"{random.getrandbits(64):016x}"}
    body["note"] = random.choice(NOTES)[: 200 - len(str(number)) - 53]
    delay_s = round(FIRST_S + random.random() * (SPAN_S - FIRST_S), 3)
    tags = {"tags": ["campaign"]} if number % 997 == 0 and number // 997 < TAGGED else {}
    return {"topic": TOPIC, "id": id_of(number), "delay": delay_s, "body": body, **tags}


def shelved(service: LastingService) -> tuple[int, int]:
    """How many jobs are delayed, and how many of them on the shelf."""
    with service.client() as client:
        delayed = client.zcard(DELAY)
        on_shelf = int(client.hget(f"deferd:{{0}}:{TOPIC}:shelf", "jobs") or 0)
    return delayed + on_shelf, on_shelf


def processes_of(pid: int) -> list[int]:
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in processes_of(int(child)))]


def name_of(pid: int) -> str:
    """What a process is."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    names = ("shelf_process", "reaper", "valkey")
    return next((name for name in names if any(name in word for word in words)), "service")


def bytes_below(folder: Path) -> int:
    """The size of all files in a folder."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def fill(service: LastingService, jobs: int, rate: int = RATE) -> None:
    """Put what is missing, wait until it is on the shelf, and print what a job takes."""
    first, _ = shelved(service)
    most = 0
    pids = processes_of(service.pid)
    began = time.perf_counter()
    with CpuMeter(*pids) as cpu:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(
                raw_http.put_range(service.port, range(first, jobs), job, batch=BATCH, connections=PUTTERS, rate=rate)
            )
        put_s = time.perf_counter() - began
        left = jobs
        while left:
            left = count_to_leave(service)
            most = max(most, left)
            time.sleep(0.5)
    seconds = time.perf_counter() - began
    new = max(jobs - first, 1)
    print(f"  {new:,} put at {new / put_s:,.0f}/s; then {most:,} had not left the store; all had after {seconds:.0f} s")
    print("  CPU a job:", ", ".join(f"{name_of(pid)} {cpu.us_each(pid, new):.1f} us" for pid in pids))
    show_target("puts while moving, a second", new / put_s, at_least=0.99 * rate)
    show_size(service, jobs)


def stuff(service: LastingService, jobs: int) -> None:
    """Write what is missing into the files of the shelf, and count it in the store."""
    first, _ = shelved(service)
    service.stop()
    size = 0
    began = time.perf_counter()
    with Rows(service.data_dir / "shelf") as rows:
        rows._on_disk.sync = False
        for start in range(first, jobs, BATCH):
            batch = [row(job(number)) for number in range(start, min(start + BATCH, jobs))]
            move = Move(TOPIC, OUT, 0, "stuffed", tuple(one.id for one in batch))
            rows.begin(move, batch)
            rows.end(move, ())
            size += sum(2 * len(one.id) + len(one.record) for one in batch)
            if start % 10_000_000 < BATCH:
                print(f"    {start:,}", flush=True)
    service.start()
    known, _ = shelved(service)  # if the store knew of none, the service has counted the rows itself
    with service.client() as client:
        for field, change in (("jobs", jobs - known), ("bytes", size), ("tags", 0)):
            client.hincrby(f"deferd:{{0}}:{TOPIC}:shelf", field, change)
        client.hincrby(f"deferd:{{0}}:{TOPIC}:tally", "put", jobs - first)
    print(f"  {jobs - first:,} written at {(jobs - first) / (time.perf_counter() - began):,.0f}/s")
    show_size(service, jobs)


def row(put: dict[str, Any]) -> Job:
    """The row of a job without tags; see engine/record.py."""
    now_ms = round(time.time() * 1000)
    due_ms = now_ms + round(put["delay"] * 1000)
    head = now_ms.to_bytes(6, "little") + due_ms.to_bytes(6, "little") + random.randbytes(6) + bytes(8)
    return Job(put["id"], head + orjson.dumps(put["body"]))


def show_size(service: LastingService, jobs: int) -> None:
    """Print memory and disk."""
    memory = {pid: resident_bytes(pid) for pid in processes_of(service.pid)}
    shares = ", ".join(f"{name_of(pid)} {size / 1e6:,.0f} MB" for pid, size in memory.items())
    print(f"  resident: {shares}; {sum(memory.values()) / jobs:.1f} bytes a job")
    show_target("resident memory of all processes, GB", sum(memory.values()) / 1e9, at_most=2)
    record_figure(f"shelf-memory-{jobs // 10**6}m", sum(memory.values()) / 1e9, "GB")
    disk = bytes_below(service.data_dir)
    of_shelf = bytes_below(service.data_dir / "shelf")
    print(f"  disk: {disk / jobs:.0f} bytes a job, {of_shelf / jobs:.0f} of them the shelf's")
    show_target("disk, GB", disk / 1e9, at_most=20)
    record_figure(f"shelf-disk-{jobs // 10**6}m", disk / 1e9, "GB")


def timed_ms(call: Callable[[], Any]) -> float:
    """How long a call took."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def calls(service: LastingService, jobs: int) -> None:
    """Time calls on jobs that are on the shelf."""
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
        if not client.get(f"/topics/{TOPIC}/jobs?tag=campaign&limit=1").json()[
            "jobs"
        ]:  # they were written, or are gone
            put_tagged(service, client)
        time_calls(client, jobs)


def put_tagged(service: LastingService, client: httpx.Client) -> None:
    """Put TAGGED jobs with a tag, and wait until they are on the shelf."""
    new = [{**job(number), "id": f"tagged-{random.getrandbits(48)}", "tags": ["campaign"]} for number in range(TAGGED)]
    before = moved_out(service)
    client.post("/jobs/batch", json={"jobs": new}).raise_for_status()
    while moved_out(service) < before + TAGGED:
        time.sleep(0.5)


def time_calls(client: httpx.Client, jobs: int) -> None:
    """Time them over one connection."""

    def call(method: str, path: str, body: Any = None) -> Any:
        response = client.request(method, path, json=body)
        response.raise_for_status()
        return response.json()

    paths = [f"/jobs/{TOPIC}/{id_of(number)}" for number in random.sample(range(jobs), CANCELS) if number % 997]
    cancels = [timed_ms(partial(call, "DELETE", path)) for path in paths]
    show_target("cancel of a job on the shelf, ms, p50", percentile(cancels, 0.5), at_most=3)
    show_target("cancel of a job on the shelf, ms, p99", percentile(cancels, 0.99), at_most=15)
    now = datetime.now(UTC)
    end = (now + timedelta(seconds=SPAN_S)).isoformat().replace("+00:00", "Z")
    forecasts = []
    for second in range(5):  # each another period: a forecast is kept for ten seconds
        begin = (now + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")
        path = f"/forecast?from={begin}&to={end}&buckets=60&topics={TOPIC}"
        forecasts.append(timed_ms(partial(call, "GET", path)))
    show_target("a forecast of 60 buckets, ms", percentile(forecasts, 0.5), at_most=50)
    path = f"/topics/{TOPIC}/jobs?state=delayed&limit=100"
    pages = [timed_ms(partial(call, "GET", path)) for _ in range(5)]
    show_target("a page of 100 jobs, ms", percentile(pages, 0.5), at_most=50)
    done: list[Any] = []
    selected = {"select": {"tag": "campaign"}}
    took = timed_ms(lambda: done.append(call("POST", "/jobs/cancel", selected)))
    print(f"  cancelled by tag: {done[0]['done']}")
    show_target("a cancel by tag, ms", took, at_most=300)


def restart(service: LastingService, jobs: int) -> None:
    """Kill the service and start it."""
    service.kill()
    began = time.perf_counter()
    service.start()
    ready_s = time.perf_counter() - began
    show_target("restart to ready, s", ready_s, at_most=10)
    record_figure(f"shelf-ready-{jobs // 10**6}m", ready_s, "s")
    service.call("GET", f"/jobs/{TOPIC}/{id_of(jobs - 1)}")
    show_target("restart to a job on the shelf, s", time.perf_counter() - began, at_most=10)


def lateness(service: LastingService, _jobs: int) -> None:
    """Compare the lateness of other jobs beside puts that move with that beside the same puts without a shelf."""
    with moving(service):
        await_moves(service)
        before = moved_out(service)
        beside = late(service)
        moved = moved_out(service) - before
    show_target("jobs moved beside that, a second", moved / LATENESS_S, at_least=0.9 * MOVED_RATE)
    service.stop()
    with (
        tempfile.TemporaryDirectory(prefix="deferd-bench-") as name,
        LastingService(Path(name) / "data") as plain,
        moving(plain),
    ):
        time.sleep(WARM_UP_S)
        before, _ = shelved(plain)
        without = late(plain)
        put = shelved(plain)[0] - before
    show_target("jobs put beside that, a second", put / LATENESS_S, at_least=0.9 * MOVED_RATE)
    service.start()
    show_target("p99 lateness beside moving, relative to the same puts without a shelf", beside / without, at_most=1.2)


def horizon(service: LastingService, _jobs: int) -> None:
    """Compare what jobs cost that never go to the shelf with what they cost without one."""
    loads: dict[str, Callable[[str], int]] = {
        "put": lambda url: run_wrk(url, "put", HORIZON_S),
        "cycle": lambda url: run_wrk(url, "cycle", HORIZON_S),
        "batches": lambda url: run_here(run_batches(url, HORIZON_JOBS)),
    }
    with tempfile.TemporaryDirectory(prefix="deferd-bench-") as name, LastingService(Path(name) / "data") as plain:
        for load, run in loads.items():
            shares = []
            for number in range(HORIZON_ROUNDS + 1):
                pair = (service, plain) if number % 2 else (plain, service)
                cost_us = {one: cpu_us(one, run) for one in pair}
                shares.append(cost_us[plain] / cost_us[service])
            del shares[0]  # the first round warms up
            print(f"  {load}: {' '.join(f'{share:.3f}' for share in shares)}")
            show_target(f"CPU without a shelf, relative to that with one, {load}", median(shares), at_least=0.98)


def cpu_us(service: LastingService, run: Callable[[str], int]) -> float:
    """CPU time of all processes of a service for each job of a load, in microseconds."""
    pids = processes_of(service.pid)
    with CpuMeter(*pids) as cpu:
        count = run(f"http://127.0.0.1:{service.port}")
    service.call("DELETE", f"/topics/{single_calls.TOPIC}")
    return sum(cpu.us_each(pid, count) for pid in pids)


def moved_out(service: LastingService) -> int:
    """How many jobs have left the store for the shelf since its process was started."""
    moved: int = service.call("GET", "/system")["shelf"]["moved_out"]
    return moved


def await_moves(service: LastingService) -> None:
    """Wait until what is put moves, and what was put before has moved: after a restart nothing does for KEPT_S."""
    before, end_s = moved_out(service), time.perf_counter() + 2 * KEPT_S
    while moved_out(service) == before:
        if time.perf_counter() > end_s:
            raise SystemExit(f"no job has moved for {2 * KEPT_S:.0f} s")
        time.sleep(0.5)
    # Those of two seconds; more come all the time. After a fill of millions they take minutes.
    wait_until(lambda: count_to_leave(service) < 2 * MOVED_RATE, 600, "the jobs have left the store")


def count_to_leave(service: LastingService) -> int:
    """How many jobs in the store go to the shelf; others are due so soon that they stay, or have come back."""
    from_ms = round((time.time() + AFTER_S) * 1000)
    with service.client() as client:
        return int(client.zcount(DELAY, from_ms, "+inf"))


def late(service: LastingService) -> float:
    """The p99 lateness in ms of jobs that are due at a steady rate."""
    with steady_load(service.port, LATENESS_RATE) as load:
        began = time.time()
        time.sleep(LATENESS_S)
        ended = time.time()
    print(f"  {LATENESS_RATE}/s: {load.report(began, ended)}")
    return percentile(load.late_ms_between(began, ended), 0.99)


@contextlib.contextmanager
def moving(service: LastingService) -> Iterator[None]:
    """Put further jobs, MOVED_RATE a second, which move to the shelf."""
    processes = multiprocessing.get_context("spawn")  # in a thread it would hold up the consumers of this process
    has_put = processes.Event()
    putter = processes.Process(target=put_steadily, args=(service.port, has_put), daemon=True)
    putter.start()
    try:
        while not has_put.wait(1):
            if not putter.is_alive():
                raise SystemExit("no job was put")
        yield
        if not putter.is_alive():
            raise SystemExit("no jobs were put any more")
    finally:
        putter.terminate()
        putter.join(10)


def put_steadily(port: int, has_put: Event) -> None:
    """Put MOVED_RATE jobs a second until terminated."""

    async def work() -> None:
        [connection] = await raw_http.connect_many(port, 1)
        first, each = int(time.time() * 10_000), MOVED_RATE // 10  # ids that no earlier run has put
        while True:
            began = time.perf_counter()
            await connection.call("POST", "/jobs/batch", {"jobs": [job(first + number) for number in range(each)]})
            has_put.set()
            first += each
            await asyncio.sleep(max(0.1 - (time.perf_counter() - began), 0))

    asyncio.run(work())


STEPS: dict[str, Callable[[LastingService, int], None]] = {
    "fill": fill,
    "stuff": stuff,
    "calls": calls,
    "restart": restart,
    "lateness": lateness,
    "horizon": horizon,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument(
        "--steps", default="fill,calls,restart,lateness,horizon", help="some of the steps, in any order"
    )
    parser.add_argument("--data-dir", type=Path, help="where the data is kept; default: a temporary directory")
    options = parser.parse_args()
    steps = options.steps.split(",")
    if unknown := set(steps) - set(STEPS):
        raise SystemExit(f"--steps names {', '.join(sorted(unknown))}, but must name some of {', '.join(STEPS)}")
    end_in_order()
    with contextlib.ExitStack() as stack:
        data_dir = options.data_dir
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deferd-bench-"))) / "data"
        service = stack.enter_context(LastingService(data_dir, flags=("--shelf-after", f"{AFTER_S}s")))
        for step in steps:
            print(f"{step}, {options.jobs:,} jobs", flush=True)
            STEPS[step](service, options.jobs)


if __name__ == "__main__":
    main()
