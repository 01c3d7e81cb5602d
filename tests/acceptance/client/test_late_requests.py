"""A request that the client has given up does nothing when it comes to the service later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from deferd import AsyncClient, Client, NoAnswer
from deferd.client.requests import ApiRequest
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.acceptance.http_calls import Http, ok
from tests.acceptance.service_process import ServiceProcess
from tests.held_network import HeldNetwork
from tests.in_thread import in_thread

TIMEOUT_S = 0.3
WAIT_S = 20.0
Call = Callable[..., Any]


@pytest.fixture
async def network(shared_service: ServiceProcess) -> AsyncIterator[HeldNetwork]:
    with in_thread(HeldNetwork("127.0.0.1", shared_service.port)) as network:
        yield network


@pytest.fixture(params=["async", "blocking"])
async def call(request: pytest.FixtureRequest, network: HeldNetwork) -> AsyncIterator[Call]:
    """Calls a method of a client by its name."""
    url = f"http://127.0.0.1:{network.port}"
    if request.param == "async":
        async with AsyncClient(url, timeout=TIMEOUT_S) as client:
            yield lambda name, *args, **more: getattr(client, name)(*args, **more)
    else:
        with Client(url, timeout=TIMEOUT_S) as blocking:
            yield lambda name, *args, **more: asyncio.to_thread(getattr(blocking, name), *args, **more)


async def refused_puts(http: Http) -> int:
    """How many puts the service has refused."""
    text = (await http.client.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("deferd_http_request_seconds_count{")]
    labels = ('route="/jobs"', 'method="POST"', 'status="4xx"')
    return sum(int(float(line.split()[-1])) for line in lines if all(label in line for label in labels))


@pytest.mark.parametrize("is_known", [True, False], ids=["clock known", "clock not known"])
async def test_a_put_without_an_id_runs_once(http: Http, network: HeldNetwork, call: Call, is_known: bool) -> None:
    await (call("put", http.topic) if is_known else call("is_ready"))
    for delivery in await call("pop", http.topic, wait=0) if is_known else ():
        await call("finish", delivery)
    network.hold()
    before = await refused_puts(http)

    job = await call("put", http.topic, {"n": 1})
    [delivery] = await call("pop", http.topic, wait=0)
    await call("finish", delivery)

    assert delivery.id == job.id
    assert f'"id":"{job.id}"'.encode() in await network.deliver()
    assert await call("pop", http.topic, wait=0) == []
    assert await refused_puts(http) == before + 1


async def test_a_cancelled_job_does_not_come_back(http: Http, network: HeldNetwork, call: Call) -> None:
    await call("is_ready")
    network.hold()
    await call("put", http.topic, id="a")
    await call("cancel", http.topic, "a")

    assert b"POST /jobs" in await network.deliver()
    assert await call("pop", http.topic, wait=0) == []


async def test_a_job_that_was_put_again_is_not_cancelled(http: Http, network: HeldNetwork, call: Call) -> None:
    await call("put", http.topic, id="a", delay=60)
    network.hold()
    await call("cancel", http.topic, "a")
    await call("put", http.topic, 2, id="a", delay=60)

    assert b"DELETE /jobs" in await network.deliver()
    assert (await call("get", http.topic, "a")).body == 2


async def test_each_request_that_changes_something_names_an_instant(http: Http, proxy: LossyProxy) -> None:
    """Also those that calls share."""
    async with AsyncClient(proxy.url) as client:
        await asyncio.gather(*(client.put(http.topic, id=f"a-{n}") for n in range(9)))
        deliveries = await client.pop(http.topic, count=2)
        await client.finish_many(http.topic, deliveries)
        waiting = {f"a-{n}" for n in range(9)} - {delivery.id for delivery in deliveries}
        await client.change(http.topic, min(waiting), delay=60)
        await asyncio.gather(*(client.cancel(http.topic, job_id) for job_id in waiting))
        await client.topic(http.topic)
        await client.purge(http.topic)
    named = {head.split("\r\n")[0].split("?")[0]: "\r\ndeferd-not-after: " in head for head in proxy.heads}
    assert named.pop(f"GET /topics/{http.topic} HTTP/1.1") is False
    assert {f"POST /topics/{http.topic}/cancel HTTP/1.1", "POST /jobs/batch"} <= named.keys()
    assert all(named.values())


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
async def test_the_clock_of_the_clients_host_does_not_matter(
    http: Http, shared_service: ServiceProcess, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """Behind, the first request is refused, and sent again with the clock in the refusal."""
    now_s = time.time
    monkeypatch.setattr("deferd.client.http1.epoch_s", lambda: now_s() + ahead_s)
    before = await refused_puts(http)
    async with AsyncClient(shared_service.url, retry_for=0) as client:
        for n in range(3):
            await client.put(http.topic, id=f"a-{n}")
        assert await refused_puts(http) == before + (ahead_s < 0)
        clock = client._transport._settings.clock  # type: ignore[attr-defined]
        assert abs(clock.at(time.monotonic()) / 1000 - now_s()) < 60


async def test_a_pop_does_not_wait_beyond_its_instant(http: Http) -> None:
    """Nobody would receive the jobs."""
    async with asyncio.timeout(WAIT_S):
        for query in ({}, {"request_id": "r"}):  # they take different paths through the service
            until = {"Deferd-Not-After": str(int((time.time() + 0.2) * 1000))}
            response = await http.post(http.topic_path("pop"), params={"wait": 60, **query}, headers=until)
            assert ok(response) == {"jobs": []}


async def test_what_is_too_late_each_time_is_an_error_that_says_so(http: Http, shared_service: ServiceProcess) -> None:
    always = {"deferd-not-after": "1000000000000"}
    async with AsyncClient(shared_service.url, retry_for=0) as client:
        request = ApiRequest("GET", f"/topics/{http.topic}", bytes, headers=always)
        with pytest.raises(Exception, match="Deferd-Not-After has passed; nothing was done") as refused:
            await client.send(request)
    assert not isinstance(refused.value, NoAnswer)
