"""A real run: 1,000 orders are to be closed in a few seconds, some are paid before, two consumers close the rest.

    python -m tests.acceptance.project.orders_run [--url http://127.0.0.1:8000]

Without --url it starts a service of its own on an embedded store. It prints what it counted; the counts must add up.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import running_service

ORDERS = 1000
PAID = 250
DELAY_S = 8.0


async def put_orders(client: httpx.AsyncClient, topic: str) -> None:
    async with asyncio.TaskGroup() as group:
        for worker in range(10):
            group.create_task(put_share(client, topic, range(worker, ORDERS, 10)))


async def put_share(client: httpx.AsyncClient, topic: str, numbers: range) -> None:
    for number in numbers:
        job = {"topic": topic, "id": f"order-{number}", "delay": DELAY_S, "body": {"order": number}}
        response = await client.post("/jobs", json=job)
        assert response.status_code == 201, response.text


async def pay_some(client: httpx.AsyncClient, topic: str) -> set[str]:
    """Cancel the closing of orders that were paid in time."""
    paid = {f"order-{number}" for number in random.sample(range(ORDERS), PAID)}
    for job_id in paid:
        response = await client.delete(f"/jobs/{topic}/{job_id}")
        assert response.status_code == 200, response.text
    return paid


async def close_orders(client: httpx.AsyncClient, topic: str, name: str, closed: list[tuple[str, str]]) -> None:
    """One consumer: pop, close, finish, until all are closed and a pop later nothing more has come.

    It gives up when nothing comes for longer than any order waits.
    """
    last_came_s = time.monotonic()
    while time.monotonic() - last_came_s < DELAY_S + 2:
        are_closed = len(closed) >= ORDERS - PAID
        response = await client.get(f"/topics/{topic}/pop", params={"wait": 1, "count": 20, "consumer": name})
        jobs = response.raise_for_status().json()["jobs"]
        if not jobs and are_closed:
            return
        if not jobs:
            continue
        last_came_s = time.monotonic()
        closed.extend((job["id"], name) for job in jobs)
        items = [{"id": job["id"], "receipt": job["receipt"]} for job in jobs]
        results = (await client.post(f"/topics/{topic}/finish", json={"jobs": items})).json()["results"]
        assert all(result["status"] == 200 for result in results), results


async def run(base_url: str, topic: str, pass_time: Callable[[float], object] = lambda _: None) -> str:
    """Do the run; returns the report. Raises AssertionError when the counts do not add up.

    Once the consumers wait, `pass_time` may move the clock of the service by so many seconds.
    """
    closed: list[tuple[str, str]] = []
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=base_url, timeout=30, verify=NO_TLS) as client:
        await put_orders(client, topic)
        put_s = time.monotonic() - began
        paid = await pay_some(client, topic)
        async with asyncio.TaskGroup() as group:
            for name in ("closer-1", "closer-2"):
                group.create_task(close_orders(client, topic, name, closed))
            await asyncio.to_thread(pass_time, DELAY_S)
        left = (await client.get(f"/topics/{topic}")).json()["counts"]
    ids = [job_id for job_id, _ in closed]
    by_consumer = Counter(name for _, name in closed)
    assert len(ids) == len(set(ids)), "a job was delivered twice"
    assert not paid & set(ids), "a cancelled job was delivered"
    assert len(paid) + len(ids) == ORDERS, "jobs are missing"
    assert sum(left.values()) == 0, left
    return (
        f"put        {ORDERS} orders in {put_s:.2f} s, each due {DELAY_S:.0f} s later\n"
        f"cancelled  {len(paid)} before they were due\n"
        f"closed     {len(ids)}: "
        + ", ".join(f"{count} by {name}" for name, count in sorted(by_consumer.items()))
        + "\n"
        f"left       {sum(left.values())}, twice 0, cancelled but delivered 0: {len(paid)} + {len(ids)} = {ORDERS}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running service; without it one is started")
    options = parser.parse_args()
    if options.url:
        print(asyncio.run(run(options.url, f"orders.close.{time.time_ns()}")))
        return
    with tempfile.TemporaryDirectory() as folder, running_service(data_dir=Path(folder)) as service:
        print(asyncio.run(run(service.url, "orders.close")))


if __name__ == "__main__":
    main()
