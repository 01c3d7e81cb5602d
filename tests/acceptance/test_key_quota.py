"""The live jobs that all topics of a key may hold together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.keyed_service import KeysFile, call
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import Answer

MOST = 20
SHARDS = 3


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("admin", "admin")
    for name in ("full", "many", "again", "others"):
        keys.add(name, "put", "pop", "cancel", topics=(f"{name}.*",), more=f"max_jobs_total = {MOST}")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--keys-file", str(keys.path), "--shards", str(SHARDS))
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("quota")) as service:
        yield service
        assert "Traceback" not in service.output()


class Caller:
    """Calls with one key."""

    def __init__(self, service: ServiceProcess, keys: KeysFile, name: str) -> None:
        self._service = service
        self._token = keys.tokens[name]

    async def __call__(self, method: str, path: str, body: Any = None) -> Answer:
        return await call(self._service, method, path, body, token=self._token)

    async def put(self, topic: str, **fields: Any) -> Answer:
        return await self("POST", "/jobs", {"topic": topic, **fields})

    async def put_batch(self, topic: str, count: int) -> int:
        return (await self("POST", "/jobs/batch", {"jobs": [{"topic": topic}] * count})).status

    async def put_when_counted(self, topic: str) -> None:
        """Put one as soon as the topics are found to have room again."""
        async with asyncio.timeout(10):
            while (await self.put(topic)).status != 201:
                await asyncio.sleep(0.1)


async def test_a_put_is_refused_while_all_topics_together_are_full(service: ServiceProcess, keys: KeysFile) -> None:
    full, admin = Caller(service, keys, "full"), Caller(service, keys, "admin")
    for number in range(MOST):
        assert 201 == (await full.put(f"full.{number}", id="j", delay=60)).status
    answer = await full.put("full.new")
    assert (429, "rate_limited", "1") == (answer.status, answer.json()["code"], answer.headers["retry-after"])
    assert (
        "the topics of key 'full' may hold 20 live jobs together, and have no room for 1 more"
        == answer.json()["detail"]
    )
    assert 404 == (await admin("GET", "/topics/full.new")).status
    assert 201 == (await admin.put("full.new")).status  # the bound is the key's
    assert 201 == (await Caller(service, keys, "others").put("others.new")).status
    assert 200 == (await full("DELETE", "/jobs/full.0/j")).status
    assert 200 == (await full("DELETE", "/jobs/full.1/j")).status
    await full.put_when_counted("full.new")  # so they have been counted, the one of the other key among them
    assert 429 == (await full.put("full.new")).status


async def test_a_batch_for_which_there_is_no_room_is_refused_whole(service: ServiceProcess, keys: KeysFile) -> None:
    many = Caller(service, keys, "many")
    assert 200 == await many.put_batch("many.a", MOST - 3)
    assert 429 == await many.put_batch("many.b", 4)
    assert 404 == (await Caller(service, keys, "admin")("GET", "/topics/many.b")).status
    assert 200 == await many.put_batch("many.b", 3)
    assert 429 == await many.put_batch("many.b", 1)


async def test_jobs_that_come_and_go_are_never_too_many(service: ServiceProcess, keys: KeysFile) -> None:
    again = Caller(service, keys, "again")
    for number in range(3 * MOST):
        topic = f"again.{number % 7}"
        await again.put_when_counted(topic)
        [job] = (await again("POST", f"/topics/{topic}/pop?wait=0")).json()["jobs"]
        assert 200 == (await again("POST", f"/jobs/{topic}/{job['id']}/finish", {})).status


async def test_jobs_put_at_the_same_time_are_never_more_than_the_quota(service: ServiceProcess, keys: KeysFile) -> None:
    others = Caller(service, keys, "others")
    puts = (others.put(f"others.{number % 9}", delay=60) for number in range(3 * MOST))
    stored = [answer.status for answer in await asyncio.gather(*puts)].count(201)
    assert MOST - 1 <= stored <= MOST  # another test put one
