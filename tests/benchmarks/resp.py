"""The Redis protocol beside HTTP: pipelined SADD, SPOP of 100 jobs, and the latency of one SPOP.

    python -m tests.benchmarks.resp [--jobs 100000] [--connections 4] [--rounds 3] [--in-memory]

One service process on one core; its embedded store (append-only file, fsync always) and this process, the clients,
share the other one. With `--in-memory` the store writes no file. In each round the same jobs go, from the same
connections, through HTTP as batches of 100, put, popped and finished, and through the Redis protocol as pipelines of
100 SADDs and as SPOPs of 100; then single SPOPs come one after the other, first alone, then from a topic of their own
while the other connections go on with pipelines of 100 SADDs and SPOPs of 100. The figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis

from tests.acceptance.resp_calls import packed, resp_port
from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    CpuMeter,
    DiskMeter,
    MeasuredService,
    measured_service,
    options_of,
    percentile,
    record_figure,
    run_here,
    show_target,
)

TOPIC = "bench.resp"
BODY = '{"order":1042,"customer":"c-17"}'
BATCH = 100
SINGLES = 5000
SINGLES_BESIDE = 2000
TOPIC_BESIDE = f"{TOPIC}.single"
RATE_TARGET = 40_000
P99_TARGET_MS = 10


class RespClient:
    """A pipelining client of one connection: bytes out, parsed replies in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = hiredis.Reader()

    async def send(self, commands: bytes, replies: int) -> list[Any]:
        """Send commands and return their replies. An error ends the benchmark."""
        self._writer.write(commands)
        found: list[Any] = []
        while len(found) < replies:
            data = await self._reader.read(1 << 18)
            if not data:
                raise SystemExit("the service closed the connection")
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                if isinstance(reply, hiredis.ReplyError):
                    raise SystemExit(f"the service replied {reply}")
                found.append(reply)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def drain(connections: int, take: Callable[[int], Awaitable[int]], jobs: int) -> None:
    """Let each connection take jobs until all are taken."""
    left = jobs

    async def work(number: int) -> None:
        nonlocal left
        while left > 0:
            taken = await take(number)
            left -= taken

    await asyncio.gather(*(work(number) for number in range(connections)))
    if left < 0:
        raise SystemExit(f"{-left} jobs more were taken than put")


class Round:
    """One round on a running service; `figures` has its rates and CPU times by step."""

    def __init__(self, service: MeasuredService, options: argparse.Namespace, figures: dict[str, list[float]]) -> None:
        self._service = service
        self._jobs: int = options.jobs
        self._connections: int = options.connections
        self._figures = figures

    async def _measure(self, step: str, work: Awaitable[None]) -> None:
        with CpuMeter(self._service.pid, self._service.store_pid) as cpu:
            await work
        self._figures[step].append(self._jobs / cpu.seconds)
        for name, pid in (("service", self._service.pid), ("store", self._service.store_pid)):
            self._figures[f"{step} {name}"].append(cpu.us_each(pid, self._jobs))

    async def _each(self, one: Callable[[int], Awaitable[None]]) -> None:
        await asyncio.gather(*(one(number) for number in range(self._connections)))

    async def run(self) -> None:
        """Everything in turn."""
        http = [await raw_http.connect(self._service.port) for _ in range(self._connections)]
        port = resp_port(self._service.process)
        resp = [RespClient(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(self._connections)]
        calls = self._jobs // BATCH // self._connections
        puts = {"jobs": [{"topic": TOPIC, "body": BODY}] * BATCH}
        sadds = packed(b"SADD", TOPIC.encode(), BODY.encode(), b"0") * BATCH
        spop = packed(b"SPOP", TOPIC.encode(), b"%d" % BATCH)

        async def put(number: int) -> None:
            request = raw_http.request_bytes("POST", "/jobs/batch", puts)
            for _ in range(calls):
                results = (await http[number].send(request)).json()["results"]
                assert len(results) == BATCH
                assert results[0]["status"] == 201

        async def pop_and_finish(number: int) -> int:
            popped = await http[number].call("POST", f"/topics/{TOPIC}/pop?count={BATCH}&wait=0")
            jobs = [{"id": job["id"], "receipt": job["receipt"]} for job in popped["jobs"]]
            if jobs:
                await http[number].call("POST", f"/topics/{TOPIC}/finish", {"jobs": jobs})
            return len(jobs)

        async def sadd(number: int) -> None:
            for _ in range(calls):
                assert await resp[number].send(sadds, BATCH) == [1] * BATCH

        async def spop_many(number: int) -> int:
            [bodies] = await resp[number].send(spop, 1)
            return len(bodies)

        await self._measure("HTTP put", self._each(put))
        await self._measure("HTTP pop and finish", drain(self._connections, pop_and_finish, self._jobs))
        await self._measure("SADD", self._each(sadd))
        await self._measure("SPOP 100", drain(self._connections, spop_many, self._jobs))
        await self._singles("single", resp[0], TOPIC, SINGLES)
        await self._singles_beside(resp, sadds, spop)
        for of_http, of_resp in zip(http, resp, strict=True):
            of_http.close()
            of_resp.close()

    async def _singles_beside(self, clients: list[RespClient], sadds: bytes, spop: bytes) -> None:
        """Single SPOPs of the first client while the others put and pop as fast as they can."""
        ends = asyncio.Event()

        async def load(client: RespClient) -> None:
            while not ends.is_set():
                await client.send(sadds, BATCH)
                await client.send(spop, 1)

        loads = [asyncio.create_task(load(client)) for client in clients[1:]]
        await self._singles("beside", clients[0], TOPIC_BESIDE, SINGLES_BESIDE)
        ends.set()
        await asyncio.gather(*loads)
        while (await clients[0].send(spop, 1))[0]:
            pass

    async def _singles(self, step: str, client: RespClient, topic: str, count: int) -> None:
        one = packed(b"SPOP", topic.encode())
        sadds = packed(b"SADD", topic.encode(), BODY.encode(), b"0") * BATCH
        for _ in range(count // BATCH):
            await client.send(sadds, BATCH)
        taken_ms = []
        for _ in range(count):
            began = time.perf_counter()
            assert await client.send(one, 1) == [BODY.encode()]
            taken_ms.append((time.perf_counter() - began) * 1000)
        assert await client.send(one, 1) == [None]
        self._figures[f"{step} p50"].append(percentile(taken_ms, 0.5))
        self._figures[f"{step} p99"].append(percentile(taken_ms, 0.99))


def main() -> None:
    options = options_of(
        __doc__, jobs=100_000, connections=4, rounds=3, in_memory=(False, "a store that writes no file")
    )
    options.jobs -= options.jobs % (BATCH * options.connections)
    figures: dict[str, list[float]] = defaultdict(list)
    with measured_service("--resp-port", "0", in_memory=options.in_memory) as service, DiskMeter() as disk:
        for _ in range(options.rounds):
            run_here(Round(service, options, figures).run())
    middle = {step: statistics.median(values) for step, values in figures.items()}
    print(f"{options.jobs} jobs over {options.connections} connections, median of {options.rounds} rounds; {disk}")
    for step in ("HTTP put", "HTTP pop and finish", "SADD", "SPOP 100"):
        cpu = f"{middle[f'{step} service']:5.1f} and {middle[f'{step} store']:5.1f} us of CPU a job, service and store"
        print(f"  {step:20}{middle[step]:9.0f} jobs/s   {cpu}")
    beside = f"p50 {middle['beside p50']:.2f} ms, p99 {middle['beside p99']:.2f} ms"
    print(f"  one SPOP: p50 {middle['single p50']:.2f} ms; beside pipelines on the other connections {beside}")
    show_target("SADD, pipelined x100", middle["SADD"], at_least=RATE_TARGET)
    show_target("SPOP 100", middle["SPOP 100"], at_least=RATE_TARGET)
    show_target("one SPOP, p99 in ms", middle["single p99"], at_most=P99_TARGET_MS)
    record_figure("sadd-rate", middle["SADD"], "jobs/s")
    record_figure("spop-rate", middle["SPOP 100"], "jobs/s")
    record_figure("spop-p99", middle["single p99"], "ms")


if __name__ == "__main__":
    main()
