"""Loss of the primary: jobs acknowledged at `replicated:1` survive the promotion, and calls succeed again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS, Http, ok
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.faults.failover import DOWN_AFTER_MS, make_replica_lag, stored_at_the_end, stored_ids
from tests.integration.store.store_servers import SentinelSet, StoreServer
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PRODUCERS = 12
BEFORE = 300
AFTER = 200
TOPIC = "payments"
LEVEL = "replicated:1"
POOL = f"deferd:{{0}}:{TOPIC}:pool"


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[SentinelSet]:
    with SentinelSet(tmp_path / "stores", sentinels=3, quorum=2, down_after_ms=DOWN_AFTER_MS) as stores:
        yield stores


@pytest.fixture
def service(stores: SentinelSet, tmp_path: Path) -> Iterator[ServiceProcess]:
    with running_service("--redis-url", stores.url, data_dir=tmp_path / "service") as service:
        yield service


@pytest.fixture
async def shop(service: ServiceProcess) -> AsyncIterator[Http]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield Http(client, TOPIC)


class Producers:
    """Put job after job at `replicated:1`, each again with the same id until it is acknowledged.

    A third of them request the level per job, a third in batches, and a third by the topic's default. A primary that
    came back empty has lost that default, and its responses show it.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self._tasks: list[asyncio.Task[None]] = []
        self.acknowledged: list[str] = []
        self.statuses: Counter[int] = Counter()

    async def _produce(self, name: int) -> None:
        number = 0
        while True:
            job_id = f"p{name}-{number}"
            number += 1
            job = {"topic": TOPIC, "id": job_id, "delay": 600}
            if name % 3:
                job["durability"] = LEVEL
            while True:
                status, durability = await (self._put_in_batch(job) if name % 3 == 1 else self._put(job))
                self.statuses[status] += 1
                if status in (201, 409):
                    if "durability" in job:
                        assert durability == LEVEL
                    if durability == LEVEL:
                        self.acknowledged.append(job_id)
                    break
                assert status == 503
                await asyncio.sleep(0.05)

    async def _put(self, job: dict[str, Any]) -> tuple[int, str | None]:
        response = await self._http.post("/jobs", json=job)
        return response.status_code, response.json().get("durability")

    async def _put_in_batch(self, job: dict[str, Any]) -> tuple[int, str | None]:
        response = await self._http.post("/jobs/batch", json={"jobs": [job]})
        if response.status_code != 200:
            return response.status_code, None
        [result] = response.json()["results"]
        return result["status"], result.get("durability")

    async def until_acknowledged(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._produce(name)) for name in range(PRODUCERS)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def safe_ids(producers: Producers) -> set[str]:
    return set(producers.acknowledged)


def role(server: StoreServer) -> str:
    with contextlib.suppress(Exception), server.client() as client:
        return str(client.info("replication")["role"])
    return "unreachable"


@pytest.mark.parametrize("how", ["killed", "replaced"])
async def test_jobs_acknowledged_as_replicated_survive_the_loss_of_the_primary(
    stores: SentinelSet, shop: Http, how: str
) -> None:
    old, new = stores.master, stores.replica
    ok(await shop.put(f"/topics/{TOPIC}", json={"durability": LEVEL}))
    async with Producers(shop) as producers:
        await producers.until_acknowledged(BEFORE)
        doubtful = 0
        if how == "killed":
            in_doubt = await asyncio.to_thread(make_replica_lag, old, new, POOL)
            assert in_doubt, "no put was stored while the replica was frozen"
            old.kill()
            new.unpause()
            doubtful = len(in_doubt - await asyncio.to_thread(stored_at_the_end, new, POOL))
            assert doubtful > 0, "the replica lacked no put, so nothing was tested"
        else:
            stores.sentinels[0].command("SENTINEL", "FAILOVER", stores.MASTER_NAME)
        await asyncio.to_thread(wait_until, lambda: role(new) == "master", 20, "the replica is promoted")
        safe = list(producers.acknowledged)
        if how == "killed":
            old.start()  # empty: the sentinels make it a replica of the new primary
        await producers.until_acknowledged(AFTER)

    lost = safe_ids(producers) - stored_ids(new, POOL)
    print(
        f"primary {how}: {len(producers.acknowledged)} acknowledged at replicated:1, {len(safe)} of them by the time "
        f"of the promotion; lost {len(lost)}; stored without replica {doubtful}; statuses {dict(producers.statuses)}"
    )
    assert lost == set()
    assert len(safe) >= BEFORE
    await shop.put_job("after", durability=LEVEL)
    job = await shop.pop_one()
    assert (job["id"], role(new), role(old)) == ("after", "master", "slave")
    ok(await shop.post(shop.job_path("after", "finish"), json={"receipt": job["receipt"]}))
