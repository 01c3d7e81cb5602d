"""Gets of a job with `wait`: parameters, long bodies, clients that go; what every door does is in tests/conformance."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.acceptance.http_calls import Http, ok, refusal
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import connected, cut, request
from tests.waiting import BUSY_S


async def waiting(service: ServiceProcess, number: int) -> None:
    await asyncio.to_thread(service.wait_for_job_waits, number)


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ({"wait": "-1"}, "wait", "must be at least 0"),
        ({"wait": "61"}, "wait", "must be at most 60"),
        ({"wait": "soon"}, "wait", "must be a number"),
        ({"wait": "1", "until": "dead"}, "until", "must be 'end' or 'progress'"),
        ({"wait": "1", "until": "progress", "after": "yesterday"}, "after", "RFC 3339"),
    ],
)
async def test_an_invalid_wait_is_named(http: Http, query: dict[str, Any], field: str, message: str) -> None:
    await http.put_job("a")
    assert message in refusal(await http.get(http.job_path("a"), params=query), f"query.{field}")


async def test_a_client_that_disconnects_waits_no_longer(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("a", delay=600)
    async with connected(shared_service.port) as wire:
        wire.send(request("GET", f"{http.job_path('a')}?wait=60"))
        await waiting(shared_service, 1)
        await cut(wire.writer)
        await waiting(shared_service, 0)


async def test_a_long_body_of_a_job_that_is_gone_is_left_out(http: Http, shared_service: ServiceProcess) -> None:
    body = {"text": "x" * 20_000}
    for job_id, retain in (("gone", 0), ("kept", 60)):
        held = await http.reserve(job_id, body=body, retain=retain)
        call = asyncio.create_task(http.get(http.job_path(job_id), params={"wait": 30}))
        await waiting(shared_service, 1)
        await http.post(http.job_path(job_id, "finish"), json={"receipt": held["receipt"], "result": [1]})
        async with asyncio.timeout(BUSY_S):
            job = ok(await call)
        assert job["outcome"] == "finished"
        if retain:
            assert (job["body"], job["result"]) == (body, [1])
        else:
            assert "body" not in job
            assert job["body_bytes"] == len('{"text":""}') + 20_000


async def test_a_wait_without_bodies_has_their_sizes(http: Http) -> None:
    held = await http.reserve("a", body=1, retain=60)
    await http.post(http.job_path("a", "finish"), json={"receipt": held["receipt"], "result": "12"})
    job = ok(await http.get(http.job_path("a"), params={"wait": 30, "bodies": "false"}))
    assert (job["outcome"], job["body_bytes"], job["result_bytes"]) == ("finished", 1, 4)
    assert not {"body", "result"} & job.keys()


async def test_a_process_that_did_not_finish_the_job_learns_of_its_end(
    shared_service: ServiceProcess, http: Http
) -> None:
    """Each request has a connection of its own, and the waits of several are for one job."""
    held = await http.reserve("a", retain=60)
    async with httpx.AsyncClient(base_url=shared_service.url, timeout=60) as other:
        calls = [asyncio.create_task(other.get(http.job_path("a"), params={"wait": 30})) for _ in range(20)]
        await waiting(shared_service, 20)
        await http.post(http.job_path("a", "finish"), json={"receipt": held["receipt"], "result": 7})
        async with asyncio.timeout(BUSY_S):
            assert {ok(response)["result"] for response in await asyncio.gather(*calls)} == {7}
