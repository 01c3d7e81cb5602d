"""Calls on many jobs with keys: scopes, named topics, and topics that the key does not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.service_process import ServiceProcess, running_service


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(Path(tmp_path_factory.mktemp("keys")) / "keys.toml")
    keys.add("admin", "admin")
    keys.add("shop", "cancel", "put", topics=("shop.*",))
    keys.add("putter", "put", topics=("shop.*",))
    keys.add("canceller", "cancel", topics=("shop.*",))
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    data_dir = tmp_path_factory.mktemp("deferd")
    with running_service("--keys-file", str(keys.path), data_dir=data_dir) as service:
        service.wait_ready()
        yield service


@pytest.fixture(autouse=True)
async def jobs(service: ServiceProcess, keys: KeysFile) -> None:
    """One job with the tag in a topic of the shop, and one in another topic."""
    for topic in ("shop.a", "bank.a"):
        body = {"topic": topic, "id": "j", "delay": 3600, "tags": ["t"], "on_conflict": "replace"}
        response = await call(service, "POST", "/jobs", body, token=keys.tokens["admin"])
        assert response.status in {200, 201}


@pytest.mark.parametrize("path", ["/jobs/cancel", "/jobs/reschedule"])
@pytest.mark.parametrize(
    "select",
    [
        {"tag": "t"},
        {"tag": "t", "topics": ["*"]},
        {"state": "delayed", "topics": ["*"]},
        {"state": "delayed", "topics": ["*.a", "shop.a"]},
    ],
)
async def test_jobs_of_other_topics_do_not_match(
    service: ServiceProcess, keys: KeysFile, path: str, select: dict[str, object]
) -> None:
    body = {"select": select, **({} if path.endswith("cancel") else {"by": 5})}
    response = await call(service, "POST", path, body, token=keys.tokens["shop"])
    assert (response.status, response.json()["done"]) == (200, 1)
    response = await call(service, "GET", "/jobs/bank.a/j", token=keys.tokens["admin"])
    assert response.json()["state"] == "delayed"
    response = await call(service, "POST", path, {**body, "select": {"tag": "t"}}, token=keys.tokens["admin"])
    assert response.json()["done"] == (1 if path.endswith("cancel") else 2)


@pytest.mark.parametrize("path", ["/jobs/cancel", "/jobs/reschedule"])
@pytest.mark.parametrize(
    "select",
    [
        {"ids": [{"topic": "shop.a", "id": "j"}, {"topic": "bank.a", "id": "j"}]},
        {"tag": "t", "topics": ["shop.*", "bank.a"]},
        {"state": "delayed", "topics": ["bank.a"]},
    ],
)
async def test_a_named_topic_that_the_key_is_not_for_is_refused(
    service: ServiceProcess, keys: KeysFile, path: str, select: dict[str, object]
) -> None:
    body = {"select": select, **({} if path.endswith("cancel") else {"by": 5})}
    response = await call(service, "POST", path, body, token=keys.tokens["shop"])
    assert (response.status, response.json()["code"]) == (403, "forbidden")
    assert "bank.a" in response.json()["detail"]
    for topic in ("shop.a", "bank.a"):
        found = await call(service, "GET", f"/jobs/{topic}/j", token=keys.tokens["admin"])
        assert found.status == 200


async def test_cancel_and_reschedule_need_the_scopes_of_single_jobs(service: ServiceProcess, keys: KeysFile) -> None:
    select = {"select": {"tag": "t"}}
    putter, canceller = keys.tokens["putter"], keys.tokens["canceller"]
    assert (await call(service, "POST", "/jobs/cancel", select, token=putter)).status == 403
    assert (await call(service, "POST", "/jobs/reschedule", {**select, "by": 5}, token=canceller)).status == 403
    assert (await call(service, "POST", "/jobs/reschedule", {**select, "by": 5}, token=putter)).status == 200
    assert (await call(service, "POST", "/jobs/cancel", select, token=canceller)).status == 200
    assert (await call(service, "POST", "/jobs/cancel", select, token=None)).status == 401


async def test_request_ids_of_two_keys_are_different_ones(service: ServiceProcess, keys: KeysFile) -> None:
    body = {"select": {"tag": "t"}, "by": 5, "request_id": "r"}
    for name, done in (("admin", 2), ("shop", 1), ("putter", 1), ("admin", 2)):
        response = await call(service, "POST", "/jobs/reschedule", body, token=keys.tokens[name])
        assert (response.json()["matched"], response.json()["done"]) == (done, done)
