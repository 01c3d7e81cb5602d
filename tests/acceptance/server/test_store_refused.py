"""A store that revokes a permission, or was emptied, under real services: a 503 that explains it, never a 500."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.api.test_http_store_errors import assert_serves_again, every_call
from tests.acceptance.cli.preloaded_shell import PreloadedShell
from tests.acceptance.http_calls import NO_TLS, Http, ok, problem
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_rights import USER, as_user, user_line
from tests.integration.store.store_servers import StoreServer
from tests.preloaded import run_preloaded
from tests.waiting import until, wait_until

START_S = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "store", lines=[user_line()]) as store:
        yield store


@pytest.fixture
def service(store: StoreServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    store.mark_used()
    with running_service("--redis-url", as_user(store.url), data_dir=tmp_path / "service") as service:
        yield service


@pytest.fixture
async def shop(service: ServiceProcess) -> AsyncIterator[Http]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield Http(client, "orders")


async def test_the_permissions_of_the_readme_are_enough_for_every_call(
    shop: Http, service: ServiceProcess, store: StoreServer
) -> None:
    await shop.put_job("a", retain=60)
    await shop.pop_one(request_id="r1", consumer="c")
    for response, _ in await every_call(shop):
        assert response.status_code < 500, response.text
    await shop.put_job("b")
    ok(await shop.post("/repair"))
    ok(await shop.post(shop.topic_path("repair")))
    assert ok(await shop.post("/jobs", json={"topic": "orders", "durability": "memory"}), 201)["durability"] == "memory"
    assert "Traceback" not in service.output()
    assert store.command("ACL", "LOG") == []


async def test_without_a_permission_every_call_is_a_503_that_names_it(
    shop: Http, store: StoreServer, service: ServiceProcess
) -> None:
    await shop.put_job("before", delay=600)
    for times, command in enumerate(("time", "hset", "fcall"), 1):
        store.command("ACL", "SETUSER", USER, f"-{command}")
        # The first call may not need the permission; those after it are refused.
        problem(await shop.post("/jobs", json={"topic": "new"}), 503, "store_unavailable")
        for response, _ in await every_call(shop):
            assert f"+{command}" in problem(response, 503, "store_unavailable")["detail"]
        store.command("ACL", "SETUSER", USER, f"+{command}")
        await assert_serves_again(shop)
        assert "Traceback" not in service.output()
        assert service.output().count("CRITICAL") == times
        done = PreloadedShell(service.url).run("audit", "--repair")
        assert done.returncode in {0, 6}, done.stderr
        assert PreloadedShell(service.url).run("audit").returncode == 0
        assert (await shop.get_job("before"))["state"] == "delayed"
        ok(await shop.delete(shop.job_path("after")))  # assert_serves_again has put it


@pytest.mark.slow
def test_after_a_flushall_only_services_with_the_same_number_of_shards_start(
    store: StoreServer, service: ServiceProcess, tmp_path: Path
) -> None:
    store.command("FLUSHALL")
    other = ("serve", "--port", "0", "--redis-url", store.url, "--shards", "4")
    done = run_preloaded(*other, environment=os.environ, timeout=START_S)
    assert done.returncode == 1
    assert "was set up with --shards 1, not 4" in done.stderr
    service.wait_logged("deferd:shards was gone from the store and was written again")
    with running_service("--redis-url", store.url, data_dir=tmp_path / "second") as second:
        job = {"topic": "orders", "id": "once"}
        assert [httpx.post(f"{one.url}/jobs", json=job, verify=NO_TLS).status_code for one in (service, second)] == [
            201,
            409,
        ]


@pytest.mark.slow
async def test_calls_are_refused_while_the_guard_has_another_number_of_shards(
    shop: Http, store: StoreServer, service: ServiceProcess
) -> None:
    store.command("SET", "deferd:shards", "4 format 1")
    await until(lambda: "Calls are refused" in service.output(), "the change is logged", within_s=10)
    for response, _ in await every_call(shop):
        assert "--shards 4, not 1" in problem(response, 503, "store_unavailable")["detail"]
    assert service.output().count("CRITICAL") == 1
    store.command("SET", "deferd:shards", "1 format 1")
    await assert_serves_again(shop)


@pytest.mark.slow
def test_a_service_on_an_empty_store_starts_and_writes_the_guard(store: StoreServer, service: ServiceProcess) -> None:
    wait_until(lambda: store.command("GET", "deferd:shards") == b"1 format 1", 5, "the guard exists")
