"""SIGKILL of the service and its store at random moments under load: no acknowledged job is lost, and none is
delivered twice during a lease."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess

pytestmark = pytest.mark.slow

TOPIC = "orders.close"
KILLS = 8
TTR_S = 3.0
DRAIN_S = 60.0


@dataclass
class History:
    """What the clients know from the responses."""

    put: set[str] = field(default_factory=set)
    cancelled: dict[str, str] = field(default_factory=dict)
    maybe_cancelled: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    leases: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    delivered_after_finish: list[str] = field(default_factory=list)
    delivered_after_cancel: list[str] = field(default_factory=list)
    responses: Counter[str] = field(default_factory=Counter)


async def send(
    client: httpx.AsyncClient, history: History, method: str, path: str, **options: object
) -> httpx.Response | None:
    """Send one request once; None if there is no response."""
    try:
        response = await client.request(method, path, **options)  # type: ignore[arg-type]
    except httpx.HTTPError as exc:
        history.responses[f"{method} {type(exc).__name__}"] += 1
        await asyncio.sleep(0.05)
        return None
    history.responses[f"{method} {response.status_code}"] += 1
    if response.status_code == 503:
        await asyncio.sleep(0.05)
    return response


async def produce(client: httpx.AsyncClient, history: History, name: str, running: Callable[[], bool]) -> None:
    number = 0
    while running():
        number += 1
        job_id = f"{name}-{number}"
        delay = random.choice([0, 0, 0.2, 1.0])
        job = {"topic": TOPIC, "id": job_id, "delay": delay, "ttr": TTR_S, "body": {"n": number}}
        response = await send(client, history, "POST", "/jobs", json=job)
        if response is not None and response.status_code == 201:
            history.put.add(job_id)
            if number % 10 == 0:
                history.maybe_cancelled.add(job_id)  # until a response shows the state
                cancelled = await send(client, history, "DELETE", f"/jobs/{TOPIC}/{job_id}")
                if cancelled is not None and cancelled.status_code == 200:
                    history.cancelled[job_id] = cancelled.json()["was"]
                elif cancelled is not None and cancelled.status_code == 404:
                    history.maybe_cancelled.discard(job_id)  # it was delivered and finished before the cancel
        await asyncio.sleep(0.01)


async def consume(client: httpx.AsyncClient, history: History, running: Callable[[], bool]) -> None:
    while running():
        response = await send(client, history, "GET", f"/topics/{TOPIC}/pop?wait=1&count=5")
        if response is None or response.status_code != 200:
            continue
        for job in response.json()["jobs"]:
            lease_end = datetime.fromisoformat(job["reserved_until"]).timestamp()
            history.leases[job["id"]].append((lease_end - TTR_S, lease_end))
            if job["id"] in history.finished:
                history.delivered_after_finish.append(job["id"])
            if history.cancelled.get(job["id"], "reserved") != "reserved":
                history.delivered_after_cancel.append(job["id"])
            if random.random() < 0.03:
                continue  # this consumer forgets the job: it must be delivered again after its lease
            finish = {"receipt": job["receipt"]}
            done = await send(client, history, "POST", f"/jobs/{TOPIC}/{job['id']}/finish", json=finish)
            if done is not None and done.status_code == 200:
                history.finished.add(job["id"])


async def inject_kills(service: ServiceProcess, kills: Counter[str]) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(random.uniform(0.5, 1.5))
        victim = random.choice(["service", "store", "both"])
        kills[victim] += 1
        if victim in {"store", "both"}:
            service.kill_store()
        if victim in {"service", "both"}:
            service.kill()
            await asyncio.to_thread(service.start)
        await asyncio.to_thread(service.wait_ready)


async def test_no_acknowledged_job_is_lost_and_none_is_delivered_twice_at_a_time(tmp_path: Path) -> None:
    history, kills = History(), Counter[str]()
    with ServiceProcess(tmp_path, preloaded=True) as service:
        killer = asyncio.create_task(inject_kills(service, kills))

        def under_load() -> bool:
            return not killer.done()

        def undelivered() -> bool:
            return not history.put <= history.maybe_cancelled | history.leases.keys()

        async with httpx.AsyncClient(base_url=service.url, timeout=5, verify=NO_TLS) as client:
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(produce(client, history, f"p{number}", under_load))
                    group.create_task(consume(client, history, under_load))
            await killer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S), asyncio.TaskGroup() as group:
                    for _ in range(4):
                        group.create_task(consume(client, history, undelivered))
            left = (await client.get(f"/topics/{TOPIC}")).json()["counts"]

    lost = history.put - history.leases.keys() - history.maybe_cancelled
    overlaps = [
        job_id
        for job_id, leases in history.leases.items()
        for (_, end), (start, _) in zip(sorted(leases), sorted(leases)[1:], strict=False)
        if start < end - 0.002  # both ends are rounded to the millisecond
    ]
    again = sum(len(leases) - 1 for leases in history.leases.values())
    print(
        f"\nput {len(history.put)}, cancelled {len(history.cancelled)}, delivered {len(history.leases)}, "
        f"finished {len(history.finished)}, delivered again {again}, kills {dict(kills)}, left {left}, "
        f"responses {dict(history.responses)}"
    )
    assert lost == set()
    assert overlaps == []
    assert history.delivered_after_finish == []
    assert history.delivered_after_cancel == []
    assert sum(kills.values()) == KILLS
    assert len(history.put) >= 10 * KILLS
