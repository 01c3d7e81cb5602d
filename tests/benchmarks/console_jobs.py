"""How long do the pages of jobs take, and what do they cost the store, at a million jobs in one topic?

    python -m tests.benchmarks.console_jobs [--jobs 1000000] [--pages 40]

Each page is read once, one after the other, as a browser does that follows the links: nothing comes from the caches of
a second. Shown are the median and the 95th percentile of the time for the caller, and for the scripts the time of the
store for a page and in its longest call, as it measures them. Nothing is written to disk.
"""

from __future__ import annotations

import argparse
import html
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import redis

from tests.acceptance.service_process import running_service
from tests.benchmarks.inspection import empty_store
from tests.benchmarks.measuring import show_target
from tests.benchmarks.script_calls import forget_calls, script_calls

_TOPIC = "t0"
_PAGE_MS, _SCRIPT_MS = 150, 5
_SPREAD_MS = 30 * 86_400_000
_STEP = 1000
_FILL = """
local extra = cjson.encode({ e = string.rep('x', 280) .. ' refused: 502', g = { 'customer' } })
for at = 1, tonumber(ARGV[1]) do
  local id, due = ARGV[4] .. at, ARGV[2] + math.floor(math.random() * ARGV[3])
  redis.call('ZADD', KEYS[1], due, id)
  redis.call('HSET', KEYS[4], id, struct.pack('<I6I6I6I4I4', ARGV[2], due, at, 1, #extra) .. extra .. '{"order":1042}')
end
redis.call('ZADD', KEYS[2], 0, ARGV[5])
redis.call('HSETNX', KEYS[3], ARGV[5], '')
"""


def fill(store: redis.Redis, jobs: int) -> None:
    """Store delayed jobs with an error of an earlier attempt."""
    now_ms, prefix = round(time.time() * 1000) + 3_600_000, f"deferd:{{0}}:{_TOPIC}"
    keys = (f"{prefix}:delay", "deferd:{0}:topics", "deferd:{0}:settings", f"{prefix}:pool")
    for start in range(0, jobs, _STEP):
        store.eval(_FILL, len(keys), *keys, min(_STEP, jobs - start), now_ms, _SPREAD_MS, f"order-{start}-", _TOPIC)


def follow(client: httpx.Client, path: str, pages: int) -> Iterator[float]:
    """Follow the links to the next page; the time that each took, in ms."""
    for _ in range(pages):
        began = time.perf_counter()
        page = client.get(path)
        yield (time.perf_counter() - began) * 1000
        assert page.status_code == 200, page.text
        found = re.search(r'href="([^"]+)" rel="next"', page.text)
        if found is None:
            return
        path = "/" + html.unescape(found[1])


def visit(client: httpx.Client, paths: list[str]) -> Iterator[float]:
    """Read pages that have nothing in common."""
    for path in paths:
        began = time.perf_counter()
        assert client.get(path).status_code == 200, path
        yield (time.perf_counter() - began) * 1000


def measure(store: redis.Redis, what: str, times: Iterator[float]) -> None:
    """Read the pages, and print the figures."""
    next(times)  # compiles the templates and loads the scripts
    forget_calls(store)
    taken = sorted(times)
    calls = script_calls(store)
    print(f"{what}: {len(taken)} pages, median {statistics.median(taken):.1f} ms")
    print(f"  {calls.all_ms / len(taken):.2f} ms of the store for a page")
    show_target("ms for the caller, 95th percentile", taken[int(len(taken) * 0.95)], at_most=_PAGE_MS)
    show_target("ms of the store in its longest call", calls.longest_ms, at_most=_SCRIPT_MS)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=40)
    options = parser.parse_args()
    with empty_store() as (server, store), tempfile.TemporaryDirectory(prefix="deferd-bench-") as folder:
        fill(store, options.jobs)
        with (
            running_service("--redis-url", server.url, data_dir=Path(folder)) as service,
            httpx.Client(base_url=service.url, timeout=60) as client,
        ):
            root, pages = f"/console/topics/{_TOPIC}/jobs", options.pages
            measure(store, "due first", follow(client, f"{root}?state=delayed", pages))
            measure(store, "due last", follow(client, f"{root}?state=delayed&order=desc", pages))
            measure(store, "200 rows", follow(client, f"{root}?state=delayed&limit=200", pages))
            measure(store, "search for an error", follow(client, f"{root}?state=delayed&error=nothing", pages))
            measure(store, "search for an id", follow(client, f"{root}?state=delayed&id=nothing", pages))
            window = "due_after=%2B10d&due_before=%2B11d"
            measure(store, "a day", follow(client, f"{root}?state=delayed&{window}", pages))
            ids = [f"order-{1000 * (number % (options.jobs // 1000))}-{number + 1}" for number in range(pages)]
            measure(store, "one job", visit(client, [f"{root}/{job_id}" for job_id in ids]))


if __name__ == "__main__":
    main()
