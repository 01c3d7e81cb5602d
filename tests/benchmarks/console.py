"""What does the console cost: its pages, the store behind them, tabs that stay open, and the first view?

    python -m tests.benchmarks.console [--jobs 5000000] [--topics 1000] [--requests 40] [--tabs 20] [--only pages,tabs]

The delayed jobs are spread over the topics and due within 30 days; only their due times are stored. 20,000 jobs of one
topic more are put as a program does. Nothing is written to disk.

pages: the time of each page, with requests a quarter of a second apart, so that most find what was read for an earlier
one and some have all of it read again; the longest call of a script meanwhile, as the store measures it.
tabs: the CPU of the service while as many tabs show Now, beyond what it takes without them. A tab does as the browser:
it asks for each region of the page at its interval, with the ETag of what it has.
first view: the bytes of Now, compressed, with all files that it loads.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urljoin

import httpx
import redis

from deferd.console.visit import NAVIGATION
from tests.acceptance.service_process import running_service
from tests.benchmarks.inspection import empty_store, fill
from tests.benchmarks.measuring import CpuMeter, MeasuredService, end_in_order, options_of, show_target
from tests.benchmarks.script_calls import forget_calls, script_calls

_HOUR_MS = 3_600_000
_PUT_JOBS = 20_000
_APART_S = 0.25
_MEASURED_S = 20.0
_LONGEST_MS, _PAGE_MS, _TABS_PERCENT, _FIRST_VIEW_BYTES = 5, 150, 2, 80_000
_REGION = re.compile(r'data-every="([\d.]+)" hx-get="([^"]+)"')
_FILES = re.compile(r'(?:src|href)="(console/static/[^"]+)"')
_IMPORTS = re.compile(r'from "\./([^"]+)"')
_PAGES = (
    "",
    "console/topics",
    "console/topics?sort=delayed",
    "console/topics/t1",
    "console/topics/orders.close?span=2d",
    "console/topics/orders.close/jobs?state=delayed",
    "console/topics/orders.close/jobs/order-19000",
    "console/go?q=t9",
    "console/tasks",
)


def put_jobs(client: httpx.Client) -> None:
    """Put jobs as a program does: one comes due each second, so what pages show changes all the time."""
    for start in range(0, _PUT_JOBS, 1000):
        jobs = [
            {"topic": "orders.close", "id": f"order-{at}", "delay": 1 + at, "body": {"order": at}}
            for at in range(start, start + 1000)
        ]
        client.post("/jobs/batch", json={"jobs": jobs}).raise_for_status()


def measure_pages(client: httpx.Client, store: redis.Redis, service: MeasuredService, requests: int) -> None:
    """Print the figures of each page that there is."""
    others = (link for _, _, link in NAVIGATION if link != "./")
    for page in dict.fromkeys((*_PAGES, *others)):
        url = f"/{page}"
        if client.get(url).status_code == 404:
            print(f"{url}: there is no such page yet")
            continue
        forget_calls(store)
        took_ms = []
        with CpuMeter(service.pid) as meter:
            for _ in range(requests):
                began = time.perf_counter()
                client.get(url).raise_for_status()
                took_ms.append(1000 * (time.perf_counter() - began))
                time.sleep(_APART_S)
        cpu_ms = 1000 * meter.used[service.pid] / requests
        p95 = statistics.quantiles(took_ms, n=20)[-1]
        print(
            f"{url}: median {statistics.median(took_ms):.1f} ms, longest {max(took_ms):.1f}, CPU {cpu_ms:.1f} ms each"
        )
        show_target("  p95, ms", p95, at_most=_PAGE_MS)
        show_target("  longest call of a script, ms of the store", script_calls(store).longest_ms, at_most=_LONGEST_MS)


async def _tab(client: httpx.AsyncClient, regions: Iterable[tuple[str, str]], until_s: float) -> int:
    """Ask for the regions until then; returns how many responses had something new."""

    async def poll(every_s: float, url: str) -> int:
        etag, changed = "", 0
        while time.monotonic() < until_s:
            response = await client.get(url, headers={"if-none-match": etag})
            assert response.status_code in {200, 304}, response.status_code
            changed += response.status_code == 200
            etag = response.headers["etag"]
            await asyncio.sleep(every_s)
        return changed

    return sum(await asyncio.gather(*(poll(float(every), url.replace("&amp;", "&")) for every, url in regions)))


async def _open_tabs(url: str, tabs: int) -> int:
    limits = httpx.Limits(max_connections=4 * tabs)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
        regions = _REGION.findall((await client.get("/")).text)
        until_s = time.monotonic() + _MEASURED_S

        async def open_one(number: int) -> int:
            await asyncio.sleep(2 * number / tabs)
            return await _tab(client, regions, until_s)

        return sum(await asyncio.gather(*map(open_one, range(tabs))))


def measure_tabs(service: MeasuredService, tabs: int) -> None:
    """Print what open tabs take of the service and of the store."""
    pids = (service.pid, service.store_pid)
    with CpuMeter(*pids) as idle:
        time.sleep(_MEASURED_S / 2)
    with CpuMeter(*pids) as busy:
        changed = asyncio.run(_open_tabs(service.url, tabs))
    print(f"{tabs} tabs on Now, {changed} changes in {_MEASURED_S:.0f} s:")
    of_service, of_store = (busy.share(pid) - idle.share(pid) for pid in pids)
    print(f"  the store takes {of_store:.2f} % of a core more than without tabs")
    show_target("  CPU of the service beyond that without tabs, % of a core", of_service, at_most=_TABS_PERCENT)


def measure_first_view(client: httpx.Client) -> None:
    """Print the size of the first view."""
    page = client.get("/")
    sizes = {"/": page.num_bytes_downloaded}
    wanted = [urljoin("/", name) for name in _FILES.findall(page.text)]
    while wanted:
        url = wanted.pop()
        if url not in sizes:
            file = client.get(url).raise_for_status()
            sizes[url] = file.num_bytes_downloaded
            wanted += [urljoin(url, name) for name in _IMPORTS.findall(file.text)] if url.endswith(".js") else []
    for url, size in sorted(sizes.items(), key=lambda item: -item[1])[:6]:
        print(f"  {size:>6,} bytes {url.rpartition('/')[2] or 'Now'}")
    show_target("first view, bytes", sum(sizes.values()), at_most=_FIRST_VIEW_BYTES)


def main() -> None:
    """Run the benchmark."""
    options = options_of(
        __doc__,
        jobs=5_000_000,
        topics=1000,
        requests=40,
        tabs=20,
        only=("pages,tabs,view", "some of pages, tabs and view"),
    )
    only = options.only.split(",")
    end_in_order()
    with (
        empty_store() as (server, store),
        tempfile.TemporaryDirectory(prefix="deferd-bench-") as name,
        running_service("--redis-url", server.url, data_dir=Path(name)) as process,
    ):
        process.wait_ready()
        service = MeasuredService(process, process.process.pid, server.pid)
        with httpx.Client(base_url=service.url, timeout=30) as client:
            began = time.monotonic()
            fill(store, "delay", options.topics, options.jobs, 720 * _HOUR_MS)
            put_jobs(client)
            took_s = time.monotonic() - began
            print(f"{options.jobs:,} delayed jobs in {options.topics:,} topics, filled in {took_s:.0f} s", flush=True)
            if "pages" in only:
                measure_pages(client, store, service, options.requests)
            if "tabs" in only:
                measure_tabs(service, options.tabs)
            if "view" in only:
                measure_first_view(client)


if __name__ == "__main__":
    main()
