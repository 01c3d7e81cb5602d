"""The quotas of a key count what collapsing puts store: follow-ups and collected items."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.api.test_key_quota import COUNTED_S, Caller
from tests.acceptance.service_process import ServiceProcess, running_service

MOST_JOBS = 10
MOST_BYTES = 20_000


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("follow", "put", "pop", "cancel", "read", topics=("follow.*",), more=f"max_jobs_total = {MOST_JOBS}")
    for name in ("long", "items", "tags"):
        keys.add(name, "put", "pop", "cancel", "read", topics=(f"{name}.*",), more=f"max_bytes_total = {MOST_BYTES}")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--keys-file", str(keys.path), "--shards", "2")
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("quota")) as service:
        yield service
        assert "Traceback" not in service.output()


async def hold(caller: Caller, topic: str, count: int) -> list[dict[str, Any]]:
    for number in range(count):
        assert (await caller.put(topic, id=f"j{number}")).status == 201
    jobs: list[dict[str, Any]] = (await caller("POST", f"/topics/{topic}/pop?wait=0&count={count}&ttr=600")).json()[
        "jobs"
    ]
    assert len(jobs) == count
    return jobs


async def stays_refused(caller: Caller, topic: str, **fields: Any) -> None:
    """Assert that a put is refused, also after two more counts, and that nothing is stored."""
    for _ in range(2):
        response = await caller.put(topic, **fields)
        assert (response.status, response.json()["code"]) == (429, "rate_limited")
        await asyncio.sleep(1.5)
    assert (await caller.put(topic, **fields)).status == 429


@pytest.mark.slow
async def test_follow_ups_count_as_jobs(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "follow")
    held = await hold(caller, "follow.a", MOST_JOBS // 2)
    for job in held:
        await caller.put_when_counted("follow.a", id=job["id"], on_conflict="replace", if_reserved="after")
    await stays_refused(caller, "follow.a", id="one.more")
    assert (await caller("GET", "/jobs/follow.a/one.more")).status == 404
    finish = {"receipt": held[0]["receipt"]}
    assert (await caller("POST", f"/jobs/follow.a/{held[0]['id']}/finish", finish)).status == 200
    await caller.put_when_counted("follow.a", id="one.more")


@pytest.mark.slow
async def test_the_bytes_of_follow_ups_count(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "long")
    [job] = await hold(caller, "long.a", 1)
    after = {"id": job["id"], "on_conflict": "replace", "if_reserved": "after"}
    await caller.put_when_counted("long.a", body="x" * 15_000, **after)
    await stays_refused(caller, "long.b", body="x" * 8000)
    assert (await caller("DELETE", f"/jobs/long.a/{job['id']}")).status == 200
    await caller.put_when_counted("long.b", body="x" * 8000)


@pytest.mark.slow
async def test_the_bytes_of_collected_items_count(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "items")
    stored = 0
    async with asyncio.timeout(COUNTED_S):
        while stored < 15:  # each is 1 kB; a put may be refused early, until the next count
            status = (await caller.put("items.a", id="all", body="x" * 1000, delay=60, on_conflict="append")).status
            assert status in {200, 201, 429}
            stored += status != 429
    await stays_refused(caller, "items.a", id="all", body="x" * 8000, on_conflict="append")
    assert (await caller("GET", "/jobs/items.a/all")).json()["items"] == 15
    assert (await caller("DELETE", "/jobs/items.a/all")).status == 200
    await caller.put_when_counted("items.a", id="all", body="x" * 8000, on_conflict="append")


@pytest.mark.slow
async def test_the_bytes_of_the_tag_index_count(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "tags")
    tags = [f"{number}{'t' * 60}" for number in range(8)]
    stored = 0
    async with asyncio.timeout(COUNTED_S):
        while stored < 3:  # some 5 kB each
            response = await caller.put("tags.a", id=f"{stored}{'i' * 250}", tags=tags, delay=60)
            assert response.status in {201, 429}
            stored += response.status == 201
            await asyncio.sleep(0.1)
    await stays_refused(caller, "tags.a", id="last" + "i" * 250, tags=tags, body="x" * 8000)
