"""The outbox in PostgreSQL: what a put costs in a transaction, how soon it is a job, and how fast a backlog is sent.

    python -m tests.benchmarks.outbox [--only cost,latency,rate,backlog] [--rows 1000000]

PostgreSQL (fsync on), the service with its store, the relay and this benchmark share all cores of the machine.

- `cost`: a transaction with an INSERT, beside one with an INSERT and a put, and one with an INSERT and ten puts, in
  turn on one connection; medians, without waiting for the disk and with it. Then puts of many connections at once,
  beside INSERTs of as many.
- `latency`: 500 transactions a second with an INSERT and a put over 16 connections. Consumers long-poll for the jobs,
  so that the time from the response to the commit to the arrival of the job is an upper bound for the time until it is
  stored: the service hands out no job that is not on the disk.
- `rate`: 200,000 rows that were there when the relay started, and rows while others write as fast as they can.
- `backlog`: a million rows for half as many ids. The second put of each replaces the first one, which shows the order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg

from deferd.outbox.schema import schema_sql
from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    CpuMeter,
    DiskMeter,
    MeasuredService,
    measured_service,
    options_of,
    percentile,
    resident_bytes,
    run_here,
    show_target,
)
from tests.faults.outbox.deployment import Relay
from tests.postgresql import PostgresServer

PARTS = ("cost", "latency", "rate", "backlog")
TOPIC = "bench.outbox"
COMMITS_A_SECOND, LATENCY_S = 500, 20.0
CONNECTIONS = 16
CONSUMERS = 2
RATE_ROWS = 200_000
BESIDE_S = 15.0
_TRANSACTIONS = 1000
_AT_ONCE_S = 4.0
_WARM_UP_S = 2.0
_INSERT_ROWS = 10_000
_DRAIN_S = 1200.0
_LOOK_S = 0.2
_ORDERS = "create table orders (id bigserial primary key, number int)"
_ORDER = "insert into orders (number) values (1)"
_PUT = "select deferd.put('bench.outbox', '{\"order\": 1}'::jsonb, delay => interval '30 minutes')"
_PUT_NOW = """
with placed as (insert into orders (number) values (%s) returning number)
select deferd.put('bench.outbox', jsonb_build_object('order', number), id => number::text) from placed
"""
_PUTS = """
select count(deferd.put('bench.outbox', jsonb_build_object('order', n, 'nth', %(nth)s::int), id => n::text,
  delay => interval '30 days', on_conflict => %(on_conflict)s)) from generate_series(%(first)s::int, %(last)s::int) as n
"""


def main() -> None:
    """Run with the arguments of the command line."""
    options = options_of(__doc__, only=",".join(PARTS), rows=1_000_000)
    for part in options.only.split(","):
        with PostgresServer(durable=True) as server, DiskMeter() as disk:
            database_url = server.database(
                f"{schema_sql()}; create table orders (id bigserial primary key, number int)"
            )
            print(f"\n{part}", flush=True)
            if part == "cost":
                _measure_cost(database_url)
            else:
                with tempfile.TemporaryDirectory(prefix="deferd-bench-") as folder, _service() as service:
                    relay = Relay("relay", Path(folder), database_url, service.url)
                    {"latency": _measure_latency, "rate": _measure_rate, "backlog": _measure_backlog}[part](
                        _Parts(server, database_url, service, relay), options.rows
                    )
        print(f"  {disk}", flush=True)


def _service() -> contextlib.AbstractContextManager[MeasuredService]:
    return measured_service(pinned=False)


# What a put costs


def _measure_cost(url: str) -> None:
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:

        def transaction_us(further: Sequence[str]) -> float:
            began = time.perf_counter()
            with connection.transaction():
                connection.execute(_ORDER)
                for statement in further:
                    connection.execute(statement)
            return 1e6 * (time.perf_counter() - began)

        further = {"alone": (), "with another INSERT": (_ORDER,), "with a put": (_PUT,), "with ten puts": 10 * (_PUT,)}
        for setting, waits in (("off", "without"), ("on", "with")):
            connection.execute(f"set synchronous_commit = {setting}")
            taken_us: dict[str, list[float]] = {name: [] for name in further}
            for _ in range(_TRANSACTIONS):
                for name in random.sample([*further], len(further)):  # the disk is slower after a large write
                    taken_us[name].append(transaction_us(further[name]))
            medians_us = {name: statistics.median(of_name) for name, of_name in taken_us.items()}
            shown = ", ".join(f"{name} {median_us:.0f} us" for name, median_us in medians_us.items())
            print(f"  a transaction with an INSERT, {waits} waiting for the disk: {shown}")
            cost_us = medians_us["with a put"] - medians_us["alone"]
            show_target(f"a put, us, {waits} waiting for the disk", cost_us, at_most=150)
    for connections in (1, 4, CONNECTIONS):
        plain, put = (_at_once(url, statement, connections) for statement in (_ORDER, _PUT))
        print(f"  {connections} connections: {plain:.0f} INSERTs/s, {put:.0f} puts/s, each a transaction")


def _at_once(url: str, statement: str, connections: int) -> float:
    """How often a second a statement is committed over so many connections."""
    counts: list[int] = []

    def execute() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
            count, end_s = 0, time.perf_counter() + _AT_ONCE_S
            while time.perf_counter() < end_s:
                connection.execute(statement)
                count += 1
            counts.append(count)

    threads = [threading.Thread(target=execute) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / _AT_ONCE_S


# A relay at work


class _Parts:
    """The processes that are measured."""

    def __init__(self, server: PostgresServer, database_url: str, service: MeasuredService, relay: Relay) -> None:
        self.server = server
        self.database_url = database_url
        self.service = service
        self.relay = relay

    def execute(self, statement: str, **values: Any) -> Any:
        """Execute it in a transaction of its own; returns the first value."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return connection.execute(statement, values).fetchone()[0]  # type: ignore[index]

    def put_rows(self, count: int, *, nth: int = 1) -> None:
        """Put so many jobs, with ids from 1, in transactions of 10,000."""
        on_conflict = "keep" if nth == 1 else "replace"
        for first in range(1, count + 1, _INSERT_ROWS):
            last = min(first + _INSERT_ROWS - 1, count)
            self.execute(_PUTS, nth=nth, on_conflict=on_conflict, first=first, last=last)

    def jobs(self) -> int:
        """How many jobs the service has."""
        response = httpx.get(f"{self.service.url}/topics/{TOPIC}", timeout=30)
        return 0 if response.status_code == 404 else sum(response.json()["counts"].values())

    def rows_are_left(self) -> bool:
        """Whether the outbox has rows."""
        return bool(self.execute("select exists (select from deferd.outbox)"))

    def table_bytes(self) -> int:
        """The size of the table with its index."""
        return int(self.execute("select pg_total_relation_size('deferd.outbox')"))

    @contextlib.contextmanager
    def relaying(self) -> Iterator[None]:
        """The relay works during the block."""
        self.relay.start()
        try:
            yield
        finally:
            self.relay.stop()

    @contextlib.contextmanager
    def cpu(self) -> Iterator[None]:
        """Print how much CPU the parts used during the block."""
        # PostgreSQL counts its processes when they have ended: those that serve connections do so during the block.
        processes = {"relay": self.relay.pid, "service": self.service.pid, "store": self.service.store_pid}
        with CpuMeter(*processes.values()) as meter:
            database_s = _cpu_of_group(self.server.pid)
            yield
            database_s = _cpu_of_group(self.server.pid) - database_s
        shares = ", ".join(f"{name} {meter.share(pid):.0f}" for name, pid in processes.items())
        print(f"  CPU, % of a core: {shares}, PostgreSQL {100 * database_s / meter.seconds:.0f}")


def _cpu_of_group(pid: int) -> float:
    """CPU time of a process and those that it has started, also of those that have ended."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(entry.name) == pid:
                    ticks += sum(map(int, fields[11:15]))
                elif int(fields[1]) == pid:
                    ticks += sum(map(int, fields[11:13]))
    return ticks / 100


def _wait_until(holds: Callable[[], bool], what: str, look: Callable[[], None] = lambda: None) -> None:
    end_s = time.perf_counter() + _DRAIN_S
    while not holds():
        look()
        if time.perf_counter() > end_s:
            raise SystemExit(f"not done within {_DRAIN_S:.0f} s: {what}")
        time.sleep(_LOOK_S)


def _measure_latency(parts: _Parts, _: int) -> None:
    with parts.relaying():
        run_here(_latencies(parts, _WARM_UP_S))
        commit_ms, until_there_ms = run_here(_latencies(parts, LATENCY_S))
    print(f"  {len(commit_ms)} commits, {len(commit_ms) / LATENCY_S:.0f}/s; a commit took {_percentiles(commit_ms)}")
    print(f"  from its response to the arrival at a consumer: {_percentiles(until_there_ms)}")
    show_target("ms from commit to job, p50", percentile(until_there_ms, 0.5), at_most=10)
    show_target("ms from commit to job, p99", percentile(until_there_ms, 0.99), at_most=50)


def _percentiles(values_ms: list[float]) -> str:
    return ", ".join(f"p{100 * share:g} {percentile(values_ms, share):.1f} ms" for share in (0.5, 0.9, 0.99, 1))


async def _latencies(parts: _Parts, seconds: float) -> tuple[list[float], list[float]]:
    """How long each commit took, and how long after it the job was there."""
    committed_s: dict[int, float] = {}
    arrived_s: dict[int, float] = {}
    commit_ms: list[float] = []
    numbers = iter(range(round(COMMITS_A_SECOND * seconds)))
    first = parts.execute("select coalesce(max(number), 0) + 1 from orders")
    began_s = time.perf_counter()

    async def write() -> None:
        async with await psycopg.AsyncConnection.connect(
            parts.database_url, autocommit=True, prepare_threshold=0
        ) as connection:
            for number in numbers:
                await asyncio.sleep(max(began_s + number / COMMITS_A_SECOND - time.perf_counter(), 0))
                sent_s = time.perf_counter()
                await connection.execute(_PUT_NOW, (first + number,))
                committed_s[first + number] = time.perf_counter()
                commit_ms.append(1000 * (committed_s[first + number] - sent_s))

    async def consume(connection: raw_http.Connection) -> None:
        pop = raw_http.request_bytes("GET", f"/topics/{TOPIC}/pop?wait=5&count=100")
        while True:
            response = await connection.send(pop)
            now_s = time.perf_counter()
            jobs = response.json()["jobs"]
            arrived_s.update((job["body"]["order"], now_s) for job in jobs)
            if jobs:
                finished = [{"id": job["id"], "receipt": job["receipt"]} for job in jobs]
                await connection.call("POST", f"/topics/{TOPIC}/finish", {"jobs": finished})

    connections = await raw_http.connect_many(parts.service.port, CONSUMERS)
    consuming = [asyncio.create_task(consume(connection)) for connection in connections]
    with parts.cpu():
        await asyncio.gather(*(write() for _ in range(CONNECTIONS)))
    async with asyncio.timeout(_DRAIN_S):
        while len(arrived_s) < len(committed_s):
            await asyncio.sleep(_LOOK_S)
    for task in consuming:
        task.cancel()
    await asyncio.gather(*consuming, return_exceptions=True)
    for connection in connections:
        connection.close()
    return commit_ms, [1000 * (arrived_s[number] - at_s) for number, at_s in committed_s.items()]


def _measure_rate(parts: _Parts, _: int) -> None:
    parts.put_rows(RATE_ROWS)
    with parts.relaying():
        _wait_until(lambda: parts.jobs() > 0, "the relay has begun")
        before, began_s = parts.jobs(), time.perf_counter()
        with parts.cpu():
            _wait_until(lambda: parts.jobs() == RATE_ROWS, "all rows are sent")
            seconds = time.perf_counter() - began_s
        show_target("rows/s of a backlog", (RATE_ROWS - before) / seconds, at_least=10_000)
        _wait_until(lambda: not parts.rows_are_left(), "all rows are deleted")
        _measure_rate_beside_writers(parts)


def _measure_rate_beside_writers(parts: _Parts) -> None:
    """One connection commits a hundred puts at a time, as fast as it can."""
    written, before = 0, parts.jobs()
    end_s = time.perf_counter() + BESIDE_S
    with parts.cpu(), psycopg.connect(parts.database_url, autocommit=True, prepare_threshold=0) as connection:
        while time.perf_counter() < end_s:
            first = RATE_ROWS + written + 1
            connection.execute(_PUTS, {"nth": 1, "on_conflict": "keep", "first": first, "last": first + 99})
            written += 100
        sent = parts.jobs() - before
    print(f"  while one connection writes: {written / BESIDE_S:,.0f} rows/s written, {sent / BESIDE_S:,.0f} sent")


def _measure_backlog(parts: _Parts, rows: int) -> None:
    ids = rows // 2
    began_s = time.perf_counter()
    parts.put_rows(ids, nth=1)
    parts.put_rows(ids, nth=2)
    print(f"  {2 * ids:,} rows written in {time.perf_counter() - began_s:.0f} s", flush=True)
    sizes, memory = [parts.table_bytes()], list[int]()

    def look() -> None:
        sizes.append(parts.table_bytes())
        memory.append(resident_bytes(parts.relay.pid))

    with parts.relaying():
        _wait_until(lambda: parts.jobs() > 0, "the relay has begun")
        began_s = time.perf_counter()
        with parts.cpu():
            _wait_until(lambda: not parts.rows_are_left(), "all rows are sent", look)
        seconds = time.perf_counter() - began_s
        print(f"  sent in {seconds:.0f} s", flush=True)
        show_target("rows/s of a large backlog", 2 * ids / seconds, at_least=10_000)
        growth = max(sizes) / sizes[0]
        print(f"  the table: {sizes[0] / 1e6:.0f} MB with all rows, then at most {max(sizes) / 1e6:.0f} MB")
        show_target("largest size of the table, of that with all rows", growth, at_most=1.01)
        fifth = len(memory) // 5
        early, late = (statistics.median(some) / 1e6 for some in (memory[fifth : 2 * fifth], memory[-fifth:]))
        print(f"  memory of the relay: {early:.1f} MB in the second fifth, {late:.1f} MB in the last one")
        show_target("growth of the relay, MB", late - early, at_most=3)
    wrong = run_here(_jobs_of_first_puts(parts, ids))
    show_target("ids without the job of their last put", wrong, at_most=0)


async def _jobs_of_first_puts(parts: _Parts, ids: int) -> int:
    """How many ids have no job, or that of their first put."""
    right = 0
    [connection] = await raw_http.connect_many(parts.service.port, 1)
    cursor = ""
    while True:
        page = await connection.call("GET", f"/topics/{TOPIC}/jobs?limit=1000{cursor}")
        right += sum(1 for job in page["jobs"] if job["body"]["nth"] == 2)
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    connection.close()
    return ids - right


if __name__ == "__main__":
    main()
