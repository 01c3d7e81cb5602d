"""What do the looks of operators cost: alerts, forecasts, dead jobs by error, consumers, why a job has not run?

    python -m tests.benchmarks.inspection [--jobs 5000000] [--topics 1000] [--rounds 3] [--only now,forecast,dead,why]

Shown are the time of the store, in all and in its longest call, as it measures it, and the time for the caller; the
medians of the rounds. Nothing is written to disk, and nothing else runs on the store.

forecast: delayed jobs that are due at random instants of 30 days, or all within the six hours of the forecast, which is
the worst case: then every bucket of every topic has jobs. They are in one topic, or spread over many, which take turns
as they are filled. Only their due times are stored.
dead: a tenth of as many dead jobs, over all topics, with errors of 300 characters that differ in their numbers.
why: a job in the middle of as many ready jobs of one topic, and one that does not exist.
consumers: as many held jobs as the dead ones, over all topics.
now: delayed jobs in all topics, and in each some ready and dead ones, so that every topic has alerts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis

from deferd.engine.engine import Engine
from deferd.store.connection import connect
from tests.benchmarks.measuring import embedded_environment, end_in_order, options_of, run_here, show_target
from tests.benchmarks.script_calls import forget_calls, log_calls, script_calls
from tests.integration.store.store_servers import StoreServer

_STEP = 1000
_HOUR_MS = 3_600_000
_LONGEST_MS = 5
_LOOKS = ("now", "forecast", "dead", "why", "consumers")
_FILL = """
local records = ARGV[6] == '1'
for at = 1, tonumber(ARGV[1]) do
  local id = ARGV[4] .. at
  redis.call('ZADD', KEYS[1], ARGV[2] + math.floor(math.random() * ARGV[3]), id)
  if records then
    local error = 'order ' .. id .. ' refused: ' .. string.rep('x', 280)
    local extra = cjson.encode({ d = 'buried', da = ARGV[2] + 0, e = error })
    local head = struct.pack('<I6I6I6I4I4', ARGV[2], ARGV[2], at, 1, #extra)
    redis.call('HSET', KEYS[4], id, head .. extra .. '{"order":1042}')
  end
end
redis.call('ZADD', KEYS[2], 0, ARGV[5])
redis.call('HSETNX', KEYS[3], ARGV[5], '')
"""

Look = Callable[[Engine], Awaitable[Any]]


def fill(client: redis.Redis, key: str, topics: int, jobs: int, spread_ms: int, *, records: bool = False) -> None:
    """Store the times of `jobs` in the sorted sets `key` of the topics, in steps that take turns."""
    now_ms = round(time.time() * 1000)
    of_each = jobs // topics
    for start in range(0, of_each, _STEP):
        for topic in range(topics):
            prefix = f"deferd:{{0}}:t{topic}"
            keys = (f"{prefix}:{key}", "deferd:{0}:topics", "deferd:{0}:settings", f"{prefix}:pool")
            count = min(_STEP, of_each - start)
            args = (count, now_ms, spread_ms, f"order-{start}-", f"t{topic}", int(records))
            client.eval(_FILL, 4, *keys, *args)


@contextmanager
def empty_store() -> Iterator[tuple[StoreServer, redis.Redis]]:
    """A store that measures its calls of scripts."""
    with (
        tempfile.TemporaryDirectory(prefix="deferd-bench-") as name,
        StoreServer(Path(name), environment=embedded_environment()) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        log_calls(client)
        yield server, client


async def measure(url: str, client: redis.Redis, rounds: int, look: Look) -> None:
    """Look several times, and print the figures."""
    store = await connect(url, timeout_s=30)
    engine = Engine(store)
    all_ms, longest_ms, caller_ms, calls = [], [], [], 0
    for _ in range(rounds + 1):  # the first one loads the scripts
        forget_calls(client)
        for reads in (engine.forecasts, engine.dead_jobs, engine.consumers, engine.consumer_registry, engine.alerts):
            reads._reads._values.clear()
        began = time.perf_counter()
        await look(engine)
        caller_ms.append((time.perf_counter() - began) * 1000)
        calls, store_ms, longest = script_calls(client)
        all_ms.append(store_ms)
        longest_ms.append(longest)
    await engine.close()
    await store.close()
    in_all, longest, caller = (statistics.median(values[1:]) for values in (all_ms, longest_ms, caller_ms))
    print(f"  {calls} calls, {in_all:.2f} ms of the store, {caller:.1f} ms for the caller")
    show_target("ms of the store in its longest call", longest, at_most=_LONGEST_MS)


def run(url: str, client: redis.Redis, rounds: int, what: str, look: Look) -> None:
    """Measure and print."""
    print(what)
    run_here(measure(url, client, rounds, look))


def _everything(_topic: str) -> bool:
    return True


async def _forecast(engine: Engine) -> None:
    total = (await engine.forecasts.forecast(None, _everything)).total()
    assert total.delayed == total.before + total.after + sum(total.counts)


async def _dead(engine: Engine) -> None:
    assert (await engine.dead_jobs.by_error(None, _everything)).groups


async def _now(engine: Engine) -> None:
    assert (await engine.alerts.now(_everything)).alerts


async def _why(job_id: str, engine: Engine) -> None:
    await engine.topics.why("t0", job_id)


async def _consumers(engine: Engine) -> None:
    assert (await engine.consumers.all(_everything)).nameless


def main() -> None:
    """Run the benchmark."""
    options = options_of(
        __doc__,
        jobs=5_000_000,
        topics=1000,
        rounds=3,
        only=(",".join(_LOOKS), "some of now, forecast, dead, why and consumers"),
    )
    end_in_order()
    jobs, topics, rounds, only = options.jobs, options.topics, options.rounds, options.only.split(",")
    if "now" in only:
        with empty_store() as (server, client):
            fill(client, "delay", topics, jobs, 720 * _HOUR_MS)
            for key in ("ready", "dead"):
                fill(client, key, topics, 20 * topics, _HOUR_MS, records=True)
            what = f"now: {jobs:,} delayed jobs, {20 * topics:,} ready and as many dead ones in {topics:,} topics"
            run(server.url, client, rounds, what, _now)
    for of_topics, hours in ((1, 720), (1, 6), (topics, 720), (topics, 6)) if "forecast" in only else ():
        with empty_store() as (server, client):
            fill(client, "delay", of_topics, jobs, hours * _HOUR_MS)
            what = f"forecast: {jobs:,} jobs in {of_topics:,} topics, due within {hours} h, 60 buckets of 6 min"
            run(server.url, client, rounds, what, _forecast)
    if "dead" in only:
        with empty_store() as (server, client):
            fill(client, "dead", topics, jobs // 10, _HOUR_MS, records=True)
            run(server.url, client, rounds, f"dead: {jobs // 10:,} jobs in {topics:,} topics", _dead)
    if "why" in only:
        with empty_store() as (server, client):
            fill(client, "ready", 1, jobs, 10**9)
            [found] = client.execute_command("ZRANGE", "deferd:{0}:t0:ready", jobs // 2, jobs // 2)
            middle = found.decode()
            fill(client, "expiry", 1, 1, 1, records=True)
            [record] = client.execute_command("HVALS", "deferd:{0}:t0:pool")
            client.hset("deferd:{0}:t0:pool", middle, record)
            for job_id in (middle, "unknown"):
                what = f"why: job {job_id} among {jobs:,} ready ones"
                run(server.url, client, rounds, what, partial(_why, job_id))
    if "consumers" in only:
        with empty_store() as (server, client):
            fill(client, "reserved", topics, jobs // 10, _HOUR_MS)
            run(server.url, client, rounds, f"consumers: {jobs // 10:,} held jobs in {topics:,} topics", _consumers)


if __name__ == "__main__":
    main()
