"""The jobs that a finish puts: the key needs the scope and the topics for them, and its limits hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import WireResponse


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("all", "put", "pop", "read")
    keys.add("pop", "pop")
    keys.add("own", "put", "pop", topics=("own.*",))
    keys.add("batch", "put", "pop", more="max_batch = 2")
    keys.add("times", "put", "pop", more="max_retain = 60\nmax_ttl = 30")
    keys.add("few", "put", "pop", more="max_jobs = 1")
    keys.add("quota", "put", "pop", topics=("quota.*",), more="max_jobs_total = 3")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service("--keys-file", str(keys.path), data_dir=tmp_path_factory.mktemp("chained")) as service:
        yield service
        assert "Traceback" not in service.output()


async def finish(service: ServiceProcess, keys: KeysFile, key: str, topic: str, *puts: dict[str, Any]) -> WireResponse:
    """Put and pop job `a` of the topic, and finish it with these puts by the key."""
    token = keys.tokens["all"]
    await call(service, "POST", "/jobs", {"topic": topic, "id": "a"}, token=token)
    await call(service, "POST", f"/topics/{topic}/pop?wait=1", token=token)
    return await call(service, "POST", f"/jobs/{topic}/a/finish", {"put": list(puts)}, token=keys.tokens[key])


async def exists(service: ServiceProcess, keys: KeysFile, topic: str, job_id: str) -> bool:
    return (await call(service, "GET", f"/jobs/{topic}/{job_id}", token=keys.tokens["all"])).status == 200


async def test_a_key_needs_the_scope_put_for_the_topics(service: ServiceProcess, keys: KeysFile) -> None:
    response = await finish(service, keys, "pop", "own.a", {"topic": "own.b", "id": "x"})
    assert (response.status, response.json()["code"]) == (403, "forbidden")
    assert response.json()["detail"] == "key 'pop' does not have scope put for topic 'own.b'"
    response = await finish(service, keys, "own", "own.a", {"topic": "own.b", "id": "x"}, {"topic": "other"})
    assert response.json()["detail"] == "key 'own' does not have scope put for topic 'other'"
    assert not await exists(service, keys, "own.b", "x")
    assert await exists(service, keys, "own.a", "a")
    assert (await finish(service, keys, "own", "own.a", {"topic": "own.b", "id": "x"})).status == 200
    assert await exists(service, keys, "own.b", "x")
    assert (await call(service, "POST", "/jobs/own.b/x/finish", {}, token=keys.tokens["pop"])).status == 409


@pytest.mark.parametrize(
    ("key", "puts", "field"),
    [
        ("batch", [{"topic": "t"}] * 3, "body.put"),
        ("times", [{"topic": "t"}, {"topic": "t", "retain": 61}], "body.put.1.retain"),
        ("times", [{"topic": "t", "ttl": None}], "body.put.0.ttl"),
    ],
)
async def test_the_limits_of_a_key_on_its_requests_hold(
    service: ServiceProcess, keys: KeysFile, key: str, puts: list[dict[str, Any]], field: str
) -> None:
    response = await finish(service, keys, key, f"limits.{key}", *puts)
    assert response.status == 422
    [error] = response.json()["errors"]
    assert error["field"] == field
    assert f"the limit of key {key!r}" in error["message"]
    assert await exists(service, keys, f"limits.{key}", "a")


@pytest.mark.slow
async def test_the_most_live_jobs_and_the_quota_of_a_key_hold(service: ServiceProcess, keys: KeysFile) -> None:
    response = await finish(service, keys, "few", "few", {"topic": "few.next"}, {"topic": "few.next"})
    assert (response.status, response.json()["code"]) == (429, "topic_full")
    assert (await finish(service, keys, "few", "few", {"topic": "few.next"})).status == 200
    response = await finish(service, keys, "quota", "quota.a", *[{"topic": "quota.b"}] * 4)
    assert response.status in {422, 429}
    assert "max_jobs_total" in response.json()["detail"]
    assert await exists(service, keys, "quota.a", "a")
