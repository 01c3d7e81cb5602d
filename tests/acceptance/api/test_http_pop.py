"""Popping: GET and POST /topics/{topic}/pop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS, Http, ok, problem, refusal, seconds_from_now
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import BUSY_S


async def test_a_popped_job_carries_its_delivery(http: Http) -> None:
    put = await http.put_job("mine", body={"n": 1}, ttr=30)
    job = await http.pop_one(consumer="worker-1")
    assert job == {
        **put,
        "state": "reserved",
        "attempts": 1,
        "reserved_by": "worker-1",
        "reserved_until": job["reserved_until"],
        "receipt": job["receipt"],
        "attempt": 1,
    }
    assert 25 < seconds_from_now(job["reserved_until"]) <= 30
    assert await http.pop() == []


@pytest.mark.parametrize("body", [None, {}], ids=["no body", "empty object"])
async def test_post_does_the_same_as_get(http: Http, body: dict[str, str] | None) -> None:
    await http.put_job("mine")
    response = await http.post(http.topic_path("pop"), params={"wait": 0, "consumer": "me"}, json=body)
    (job,) = ok(response)["jobs"]
    assert (job["id"], job["reserved_by"]) == ("mine", "me")
    assert response.headers["cache-control"] == "no-store"


async def test_post_accepts_no_fields(http: Http) -> None:
    await http.put_job("mine")
    response = await http.post(http.topic_path("pop"), params={"wait": 0}, json={"count": 1})
    assert refusal(response, "body.count") == "is not a known field"
    assert (await http.get_job("mine"))["state"] == "ready"


async def test_the_response_is_never_cached(http: Http) -> None:
    response = await http.get(http.topic_path("pop"), params={"wait": 0})
    assert response.headers["cache-control"] == "no-store"


async def test_head_does_not_pop(http: Http) -> None:
    await http.put_job("mine")
    response = await http.client.head(http.topic_path("pop"))
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, POST"
    assert (await http.get_job("mine"))["state"] == "ready"


async def test_jobs_come_in_the_order_in_which_they_became_due(http: Http) -> None:
    for name in ("a", "b", "c"):
        await http.put_job(name)
    assert [job["id"] for job in await http.pop(count=2)] == ["a", "b"]
    assert [job["id"] for job in await http.pop(count=1000)] == ["c"]


async def test_one_job_is_handed_out_when_no_count_is_given(http: Http) -> None:
    await http.put_job("a")
    await http.put_job("b")
    assert [job["id"] for job in await http.pop()] == ["a"]


async def test_a_pop_waits_for_a_job(http: Http, shared_service: ServiceProcess) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(http.pop_one(wait=20))
        await asyncio.to_thread(shared_service.wait_for_waiting_pops, 1)
        await http.put_job("late")
    assert waiting.result()["id"] == "late"


async def test_a_pop_without_a_job_is_empty_after_its_wait(http: Http) -> None:
    began = time.monotonic()
    assert await http.pop(wait=0.3) == []
    assert 0.29 < time.monotonic() - began < 0.3 + BUSY_S


async def test_waiting_consumers_are_served_in_the_order_they_came(http: Http, shared_service: ServiceProcess) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = []
        for number in range(3):
            waiting.append(group.create_task(http.pop_one(wait=20, consumer=f"c{number}")))
            await asyncio.to_thread(shared_service.wait_for_waiting_pops, number + 1)
        for name in ("a", "b", "c"):
            await http.put_job(name)
    assert [(task.result()["id"], task.result()["reserved_by"]) for task in waiting] == [
        ("a", "c0"),
        ("b", "c1"),
        ("c", "c2"),
    ]


async def test_topics_are_served_in_strict_priority(http: Http) -> None:
    low, high = f"{http.topic}.low", f"{http.topic}.high"
    for topic in (low, high, low, high):
        ok(await http.post("/jobs", json={"topic": topic}), 201)
    path = f"/topics/{high},{low}/pop"
    popped = [ok(await http.get(path, params={"wait": 0}))["jobs"][0]["topic"] for _ in range(4)]
    assert popped == [high, high, low, low]


async def test_one_pop_fills_up_from_the_next_topic(http: Http) -> None:
    low, high = f"{http.topic}.low", f"{http.topic}.high"
    for topic in (low, high):
        ok(await http.post("/jobs", json={"topic": topic}), 201)
    jobs = ok(await http.get(f"/topics/{high},{low}/pop", params={"wait": 0, "count": 5}))["jobs"]
    assert [job["topic"] for job in jobs] == [high, low]


async def test_a_pop_waits_on_all_its_topics(http: Http, shared_service: ServiceProcess) -> None:
    path = f"/topics/{http.topic}.never,{http.topic}/pop"
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(http.get(path, params={"wait": 20}))
        await asyncio.to_thread(shared_service.wait_for_waiting_pops, 1)
        await http.put_job("late")
    assert ok(waiting.result())["jobs"][0]["id"] == "late"


async def test_a_pop_can_set_the_lease(http: Http) -> None:
    await http.put_job("short", ttr=600)
    job = await http.pop_one(ttr=5)
    assert 2 < seconds_from_now(job["reserved_until"]) <= 5


async def test_a_job_whose_lease_ends_comes_back_with_a_new_receipt(http: Http) -> None:
    first = await http.reserve("back", ttr=0.1)
    second = await http.pop_one(wait=10)
    assert (second["id"], second["attempt"]) == ("back", 2)
    problem(await http.post(http.job_path("back", "finish"), json={"receipt": first["receipt"]}), 409, "receipt_stale")
    ok(await http.post(http.job_path("back", "finish"), json={"receipt": second["receipt"]}))


async def test_a_job_not_delivered_within_its_ttl_is_dead(http: Http) -> None:
    await http.put_job("old", ttl=0.001)
    assert await http.pop(wait=0.2) == []
    job = await http.get_job("old")
    assert (job["state"], job["reason"], job["attempts"]) == ("dead", "expired", 0)


async def test_a_repeated_request_gets_the_same_jobs_again(http: Http) -> None:
    for name in ("a", "b", "c"):
        await http.put_job(name)
    first = await http.pop(count=2, request_id="r-1")
    assert [job["id"] for job in first] == ["a", "b"]
    assert await http.pop(count=2, request_id="r-1") == first
    assert [job["id"] for job in await http.pop(count=2, request_id="r-2")] == ["c"]


async def test_a_repeated_request_does_not_get_what_it_has_finished(http: Http) -> None:
    await http.put_job("a")
    await http.pop(request_id="r-1")
    ok(await http.post(http.job_path("a", "finish")))
    await http.put_job("b")
    assert [job["id"] for job in await http.pop(request_id="r-1")] == ["b"]


async def test_a_consumer_that_disconnects_strands_no_job(http: Http, shared_service: ServiceProcess) -> None:
    async with httpx.AsyncClient(base_url=shared_service.url, timeout=30, trust_env=False, verify=NO_TLS) as impatient:
        pop = asyncio.create_task(impatient.get(http.topic_path("pop"), params={"wait": 20}))
        await asyncio.to_thread(shared_service.wait_for_waiting_pops, 1)
        pop.cancel()
        await asyncio.wait([pop])
    await asyncio.to_thread(shared_service.wait_for_waiting_pops, 0)
    await http.put_job("mine")
    job = await http.pop_one()
    assert (job["id"], job["attempt"]) == ("mine", 1)


BAD_PARAMETERS: list[tuple[dict[str, Any], str, str]] = [
    ({"wait": "61"}, "query.wait", "must be at most 60 seconds"),
    ({"wait": "-1"}, "query.wait", "must be at least 0 seconds"),
    ({"wait": "nan"}, "query.wait", "must be a finite number"),
    ({"wait": "soon"}, "query.wait", "must be a number"),
    ({"wait": ""}, "query.wait", "must be a number"),
    ({"wait": ["1", "2"]}, "query.wait", "is given more than once"),
    ({"count": "0"}, "query.count", "must be at least 1"),
    ({"count": "1001"}, "query.count", "must be at most 1000"),
    ({"count": "1.5"}, "query.count", "must be a whole number"),
    *(({"count": form}, "query.count", "must be a whole number") for form in ("1_0", "+1", " 1", "1.0", "01", "٣")),
    *(({"wait": form}, "query.wait", "must be a number") for form in ("1_0", "+0", "0 ", "01", ".5", "1.")),
    ({"ttr": "1_0.5"}, "query.ttr", "must be a number"),
    ({"ttr": "0.05"}, "query.ttr", "must be at least 0.1 seconds"),
    ({"ttr": "86401"}, "query.ttr", "must be at most 86400 seconds"),
    ({"limit": "3"}, "query.limit", "is not a known parameter"),
]


async def test_a_bad_parameter_is_refused(http: Http) -> None:
    await http.put_job("untouched")
    for query, field, message in BAD_PARAMETERS:
        assert refusal(await http.get(http.topic_path("pop"), params=query), field) == message, query
    assert (await http.get_job("untouched"))["state"] == "ready"


@pytest.mark.parametrize("name", ["consumer", "request_id"])
@pytest.mark.parametrize("value", ["", "a b", "x" * 256, "ä"])
async def test_consumer_and_request_id_are_shaped_like_ids(http: Http, name: str, value: str) -> None:
    assert "1 to 255" in refusal(await http.get(http.topic_path("pop"), params={name: value}), f"query.{name}")


@pytest.mark.parametrize(
    "topics", ["a,", ",a", "a,,b", "a,b c", ",".join(f"t{number}" for number in range(33)), "x" * 129]
)
async def test_a_bad_list_of_topics_is_refused(http: Http, topics: str) -> None:
    assert "must match" in refusal(await http.get(f"/topics/{topics}/pop"), "path.topic")


async def test_a_topic_named_twice_is_refused(http: Http) -> None:
    assert refusal(await http.get("/topics/a,b,a/pop"), "path.topic") == "must name each topic once"


async def test_32_topics_are_accepted(http: Http) -> None:
    topics = ",".join(f"{http.topic}.{number}" for number in range(32))
    assert ok(await http.get(f"/topics/{topics}/pop", params={"wait": 0})) == {"jobs": []}
