"""The store stops, hangs or is full: clients soon get a 503, and the service recovers by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS, Http, Json, ok, problem
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer
from tests.waiting import wait_until

_SOON_S = 4.0
"""The time-out of the store is 1.5 s: three in a row would take longer."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    folder = tmp_path / "store"
    folder.mkdir()
    with StoreServer(folder, appendonly="yes", appendfsync="always") as store:
        yield store.mark_used()


@pytest.fixture
def service(store: StoreServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    with running_service("--redis-url", store.url, data_dir=tmp_path / "service") as service:
        yield service


@pytest.fixture
async def shop(service: ServiceProcess) -> AsyncIterator[Http]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield Http(client, "orders")


async def every_call(http: Http) -> list[tuple[httpx.Response, float]]:
    """The responses of all operations that need the store, sent at the same time, with their durations in seconds."""
    job, topic, body = http.job_path("j"), http.topic_path(), {"topic": http.topic}

    async def timed(method: str, path: str, **options: Json) -> tuple[httpx.Response, float]:
        began = time.monotonic()
        response = await http.client.request(method, path, **options)  # type: ignore[arg-type]  # only json is given
        return response, time.monotonic() - began

    return await asyncio.gather(
        timed("POST", "/jobs", json=body),
        timed("GET", job),
        timed("PATCH", job, json={"delay": 1}),
        timed("DELETE", job),
        timed("GET", f"{topic}/pop?wait=20"),
        timed("POST", f"{topic}/pop?wait=0"),
        timed("POST", f"{job}/finish"),
        timed("POST", f"{job}/release"),
        timed("POST", f"{job}/touch"),
        timed("POST", f"{job}/bury"),
        timed("POST", f"{topic}/finish", json={"jobs": [{"id": "j"}]}),
        timed("GET", "/topics"),
        timed("GET", topic),
        timed("PUT", topic, json={}),
        timed("POST", f"{topic}/pause"),
        timed("POST", f"{topic}/resume"),
        timed("GET", f"{topic}/jobs"),
        timed("POST", f"{topic}/redrive"),
        timed("DELETE", topic),
        timed("GET", "/readyz"),
    )


def assert_all_unavailable(responses: list[tuple[httpx.Response, float]]) -> None:
    for response, took_s in responses:
        problem(response, 503, "store_unavailable")
        assert int(response.headers["retry-after"]) >= 1
        assert "Traceback" not in response.text
        assert took_s < _SOON_S, (response.request.url, took_s)


async def assert_serves_again(http: Http) -> None:
    """The service recovers by itself within a bounded, not a fixed, time."""
    async with asyncio.timeout(20):
        while (await http.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)
        while (await http.post("/jobs", json={"topic": http.topic, "id": "after"})).status_code != 201:
            await asyncio.sleep(0.05)
        while not (jobs := await http.pop(wait=5, count=10)):
            pass
    assert "after" in {job["id"] for job in jobs}


async def test_a_store_that_is_down_is_reported_soon_and_recovers_when_it_is_back(
    shop: Http, store: StoreServer, service: ServiceProcess
) -> None:
    await shop.put_job("before", delay=600)
    store.kill()
    assert_all_unavailable(await every_call(shop))
    assert ok(await shop.get("/healthz")) == {"status": "ok"}
    ready = problem(await shop.get("/readyz"), 503, "store_unavailable")
    assert ready["detail"] == "the store cannot be reached: Connection refused"
    metrics = await shop.get("/metrics")
    assert metrics.status_code == 200
    assert "deferd_store_up 0.0" in metrics.text
    assert "deferd_http_request_seconds_count" in metrics.text
    assert "deferd_jobs{" not in metrics.text
    batch = {"jobs": [{"topic": "orders", "id": "x"}]}
    problem(await shop.post("/jobs/batch", json=batch), 503, "store_unavailable")
    store.start()
    await assert_serves_again(shop)
    assert (await shop.get_job("before"))["state"] == "delayed"
    assert "Traceback" not in service.output()


@pytest.mark.slow
async def test_a_store_that_hangs_is_reported_soon(shop: Http, store: StoreServer) -> None:
    ok(await shop.get("/readyz"))
    os.kill(store.pid, signal.SIGSTOP)
    try:
        assert_all_unavailable(await every_call(shop))
    finally:
        os.kill(store.pid, signal.SIGCONT)
    await assert_serves_again(shop)


async def test_a_full_store_refuses_puts_and_allows_everything_else(
    shop: Http, store: StoreServer, service: ServiceProcess
) -> None:
    await shop.put_job("waiting", delay=600)
    await shop.put_job("held", ttr=600)
    held = await shop.pop_one()
    await shop.put_job("ready")
    store.command("CONFIG", "SET", "maxmemory", "1")
    refused = problem(await shop.post("/jobs", json={"topic": "orders"}), 503, "store_unavailable")
    assert refused["detail"] == "the store is out of memory and refuses to store more (its maxmemory)"
    wait_until(lambda: f"deferd.store.calls: calls fail: {refused['detail']}" in service.output(), 5, "the log says it")
    ok(await shop.post(shop.job_path("held", "touch"), json={"receipt": held["receipt"]}))
    ok(await shop.post(shop.job_path("held", "finish"), json={"receipt": held["receipt"]}))
    assert (await shop.pop_one())["id"] == "ready"
    ok(await shop.post(shop.job_path("ready", "release"), json={"delay": 0}))
    assert (await shop.pop_one())["id"] == "ready"
    ok(await shop.patch(shop.job_path("waiting"), json={"delay": 0}))
    assert (await shop.pop_one())["id"] == "waiting"
    ok(await shop.delete(shop.job_path("ready")))
    assert (await shop.get_job("waiting"))["state"] == "reserved"
    store.command("CONFIG", "SET", "maxmemory", "0")
    await shop.put_job("room")
