"""How much CPU time does the client take for a put?

    python -m tests.benchmarks.client_put [--rounds 3] [--jobs 6000]

One process puts single jobs into a service with its embedded store: from 64 tasks on uvloop and on the event loop of
asyncio, one after the other, and with the blocking client. The same puts are sent in turn by two yardsticks: `bare`, a
protocol that writes prepared bytes and reads the JSON of the response (`tests.benchmarks.raw_http`), and `httpx`, one
transport of it for each task, below which the client was built before. The median of the rounds counts. CPU time is
that of this process, user and system.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from deferd import AsyncClient, Client
from tests.benchmarks import raw_http
from tests.benchmarks.measuring import MeasuredService, measured_service, new_event_loop, options_of, show_target

TOPIC = "bench.client"
BODY = {"order": 1042, "customer": "c-17"}
DELAY_S = 3600
TASKS = 64
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
TARGETS = {("deferd", "uvloop", TASKS): 45, ("deferd", "uvloop", 1): 170}

Put = Callable[[], Awaitable[object]]


class Run(NamedTuple):
    """The result of one run: CPU time of this process for a put, and puts in a second."""

    cpu_us: float
    rate: float


async def _load(puts: list[Put], count: int) -> Run:
    """Make `count` puts in all, each of `puts` one after the other, all of them concurrently."""
    left = iter(range(count))

    async def work(put: Put) -> None:
        for _ in left:
            await put()

    began_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(put) for put in puts))
    return Run((time.process_time() - cpu_s) / count * 1e6, count / (time.perf_counter() - began_s))


async def with_deferd(service: MeasuredService, tasks: int, count: int) -> Run:
    """The client itself."""
    async with AsyncClient(service.url) as client:

        async def put() -> None:
            await client.put(TOPIC, BODY, delay=DELAY_S)

        await _load([put] * tasks, 2 * tasks)
        return await _load([put] * tasks, count)


async def with_bare_protocol(service: MeasuredService, tasks: int, count: int) -> Run:
    """A protocol that does nothing but exchange bytes."""
    request = raw_http.request_bytes("POST", "/jobs", {"topic": TOPIC, "body": BODY, "delay": DELAY_S})
    connections = await raw_http.connect_many(service.port, tasks)

    def put_over(connection: raw_http.Connection) -> Put:
        async def put() -> None:
            json.loads((await connection.send(request)).body)

        return put

    puts = [put_over(connection) for connection in connections]
    await _load(puts, 2 * tasks)
    run = await _load(puts, count)
    for connection in connections:
        connection.close()
    return run


async def with_httpx(service: MeasuredService, tasks: int, count: int) -> Run:
    """httpx's transports, without its client."""
    content = json.dumps({"topic": TOPIC, "body": BODY, "delay": DELAY_S}).encode()
    transports = [httpx.AsyncHTTPTransport(trust_env=False) for _ in range(tasks)]

    def put_over(transport: httpx.AsyncHTTPTransport) -> Put:
        async def put() -> None:
            headers = {"content-type": "application/json"}
            request = httpx.Request("POST", f"{service.url}/jobs", content=content, headers=headers)
            response = await transport.handle_async_request(request)
            json.loads(await response.aread())

        return put

    puts = [put_over(transport) for transport in transports]
    await _load(puts, 2 * tasks)
    run = await _load(puts, count)
    for transport in transports:
        await transport.aclose()
    return run


def blocking(service: MeasuredService, count: int) -> Run:
    """The blocking client, one put after the other."""
    with Client(service.url) as client:
        client.put(TOPIC, BODY, delay=DELAY_S)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(count):
            client.put(TOPIC, BODY, delay=DELAY_S)
        return Run((time.process_time() - cpu_s) / count * 1e6, count / (time.perf_counter() - began_s))


def purge(service: MeasuredService) -> None:
    """Remove what the runs have put."""
    with Client(service.url) as client:
        client.purge(TOPIC)


def measure(rounds: int, jobs: int) -> dict[tuple[str, str, int], list[Run]]:
    """The runs of each sender, by its name, its event loop and how many puts it makes at a time."""
    makers: dict[str, Callable[[MeasuredService, int, int], Any]] = {
        "deferd": with_deferd,
        "bare": with_bare_protocol,
        "httpx": with_httpx,
    }
    runs: dict[tuple[str, str, int], list[Run]] = {}
    with measured_service() as service:
        for _ in range(rounds):
            for tasks, count in ((TASKS, jobs), (1, jobs // 10)):
                for loop, factory in LOOPS.items():
                    for name, make in makers.items():
                        with asyncio.Runner(loop_factory=factory) as runner:
                            run = runner.run(make(service, tasks, count))
                        runs.setdefault((name, loop, tasks), []).append(run)
            runs.setdefault(("deferd", "blocking", 1), []).append(blocking(service, jobs // 10))
            purge(service)
    return runs


def median_cpu_us(runs: Mapping[tuple[str, str, int], Sequence[Run]]) -> dict[tuple[str, str, int], float]:
    """The median CPU time of each sender for a put."""
    return {key: statistics.median(run.cpu_us for run in measured) for key, measured in runs.items()}


def main() -> None:
    options = options_of(
        __doc__,
        rounds=(3, "runs of each; the medians count"),
        jobs=(6000, "puts of a run with 64 tasks; a tenth one by one"),
    )
    runs = measure(options.rounds, options.jobs)
    cpu_us = median_cpu_us(runs)
    for key, measured in runs.items():
        name, loop, tasks = key
        rate = statistics.median(run.rate for run in measured)
        every = " ".join(f"{run.cpu_us:.0f}" for run in measured)
        what = f"{tasks:3} at a time, {loop:8} {name:7}"
        print(f"{what} {cpu_us[key]:6.0f} us of CPU a put {rate:6.0f} puts/s  runs {every}")
    for loop in LOOPS:
        for tasks in (TASKS, 1):
            own = cpu_us["deferd", loop, tasks]
            ratios = (f"{own / cpu_us[other, loop, tasks]:.2f} of {other}" for other in ("bare", "httpx"))
            print(f"  {tasks} at a time, {loop}: {', '.join(ratios)}")
    for key, target in TARGETS.items():
        show_target(f"us of CPU a put, {key[2]} at a time, {key[1]}", cpu_us[key], at_most=target)


if __name__ == "__main__":
    main()
