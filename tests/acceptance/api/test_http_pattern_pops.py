"""Pops by patterns over HTTP: their form, their bound, and what a key may pop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.api.keyed_service import KeysFile, call, keys_of_every_kind
from tests.acceptance.http_calls import Http, ok, refusal
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import WireResponse
from tests.waiting import BUSY_S

both_entry_points = pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])


async def pop(http: Http, topics: str, **query: Any) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = ok(await http.get(f"/topics/{topics}/pop", params={"wait": 0, **query}))["jobs"]
    return jobs


async def put(http: Http, *topics: str, **fields: Any) -> None:
    ok(await http.post("/jobs/batch", json={"jobs": [{"topic": topic, "id": "j", **fields} for topic in topics]}))


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_encoded_asterisk_is_one(http: Http, method: str) -> None:
    await put(http, f"{http.topic}.a")
    response = await http.client.request(method, f"/topics/{http.topic}%2E%2A/pop", params={"wait": 0})
    assert [job["topic"] for job in ok(response)["jobs"]] == [f"{http.topic}.a"]


@pytest.mark.parametrize("topics", ["-*", ".*", "a*,", "a b*", "x" * 128 + "*", ",".join(["a*"] + ["t"] * 32), "a*,é"])
async def test_a_bad_pattern_is_refused(http: Http, topics: str) -> None:
    assert "must match" in refusal(await http.get(f"/topics/{topics}/pop"), "path.topic")


async def test_a_pattern_named_twice_is_refused(http: Http) -> None:
    assert refusal(await http.get("/topics/a*,b,a*/pop"), "path.topic") == "must name each topic once"


@pytest.mark.parametrize("path", ["/topics/a*", "/topics/a*/jobs", "/jobs/a*/j"])
async def test_only_a_pop_takes_patterns(http: Http, path: str) -> None:
    assert "must match" in refusal(await http.get(path), "path.topic")


class KeyedService:
    """A service with keys; calls name the key that they use."""

    def __init__(self, service: ServiceProcess, keys: KeysFile) -> None:
        self.service = service
        self.keys = keys
        self.through_asgi = False

    async def call(self, key: str, method: str, path: str, body: Any = None) -> WireResponse:
        token = self.keys.tokens[key]
        return await call(self.service, method, path, body, token=token, through_asgi=self.through_asgi)

    async def put(self, topic: str) -> None:
        assert (await self.call("admin", "POST", "/jobs", {"topic": topic})).status == 201

    async def popped(self, key: str, topics: str, query: str = "wait=0&count=10&ttr=3600") -> list[str]:
        response = await self.call(key, "GET", f"/topics/{topics}/pop?{query}")
        assert response.status == 200, response.body
        return sorted(job["topic"] for job in response.json()["jobs"])


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedService]:
    folder = tmp_path_factory.mktemp("keyed")
    keys = keys_of_every_kind(folder / "keys.toml")
    keys.add("orders", "pop", topics=("orders.*", "users.a"))
    keys.add("changing", "pop", topics=("orders.*",))
    keys.add("revoked", "pop")
    with running_service("--keys-file", str(keys.path), data_dir=folder) as service:
        yield KeyedService(service, keys)


@both_entry_points
async def test_a_key_gets_only_topics_that_it_may_pop(keyed: KeyedService, through_asgi: bool) -> None:
    keyed.through_asgi = through_asgi
    for topic in ("orders.a", "orders.b", "users.a", "users.b", "other"):
        await keyed.put(topic)
    assert await keyed.popped("orders", "users.*") == ["users.a"]
    assert await keyed.popped("orders", "*") == ["orders.a", "orders.b"]
    for topics in ("others.*", "users.b*", "*.x,users.b", "orders.a,other"):
        assert (await keyed.call("orders", "GET", f"/topics/{topics}/pop?wait=0")).status == 403
    assert await keyed.popped("pop", "*") == ["other", "users.b"]
    assert (await keyed.call("put", "GET", "/topics/*/pop?wait=0")).status == 403


async def test_a_pop_that_waits_gets_nothing_that_its_key_may_not_pop_any_more(keyed: KeyedService) -> None:
    keyed.through_asgi = False
    popping = [
        asyncio.create_task(keyed.call(key, "GET", "/topics/orders.*/pop?wait=30")) for key in ("changing", "revoked")
    ]
    async with asyncio.timeout(BUSY_S):
        while b"deferd_waiting_pops 2.0" not in (await keyed.call("read", "GET", "/metrics")).body:
            await asyncio.sleep(0.02)
        keyed.keys.remove("revoked")
        keyed.keys.add("changing", "pop", topics=("orders.b",))
        while (await keyed.call("changing", "GET", "/topics/orders.a/pop?wait=0")).status == 200:
            await asyncio.sleep(0.02)
        await keyed.put("orders.a")
        assert [(await one).status for one in popping] == [403, 401]
        assert await keyed.popped("pop", "orders.*", "wait=5") == ["orders.a"]
