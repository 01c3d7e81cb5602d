"""Operations of the consumer over HTTP: finish, release, touch, bury, and those on many; see tests/conformance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.http_calls import Http, ok, problem, refusal


@pytest.mark.parametrize(
    ("jobs", "field"),
    [([], "body.jobs"), ([{"id": "j"}] * 1001, "body.jobs"), ([{"id": "a"}, {"id": "a/b"}], "body.jobs.1.id")],
    ids=["empty", "1001", "bad id"],
)
async def test_a_bad_batch_finish_is_refused_whole(http: Http, jobs: list[dict[str, str]], field: str) -> None:
    await http.reserve("a")
    refusal(await http.post(http.topic_path("finish"), json={"jobs": jobs}), field)
    assert (await http.get_job("a"))["state"] == "reserved"


@pytest.mark.parametrize("verb", ["check", "return"])
async def test_a_delivery_of_many_needs_a_receipt(http: Http, verb: str) -> None:
    refusal(await http.post(f"/topics/{http.topic}/{verb}", json={"jobs": [{"id": "a"}]}), "body.jobs.0.receipt")


@pytest.mark.parametrize("delay", [{}, {"delay": None}, {"delay": 0}, {"delay": 0.099}])
async def test_a_snooze_needs_a_delay(http: Http, delay: dict[str, Any]) -> None:
    await http.reserve("held")
    response = await http.post(http.job_path("held", "release"), json={"count": False, **delay})
    assert refusal(response, "body.delay") == "must be at least 0.1 seconds when `count` is false"
    assert (await http.get_job("held"))["state"] == "reserved"


async def test_a_change_sets_and_removes_deadline_and_time_limit(http: Http) -> None:
    await http.put_job("a", delay=60)
    bounds = {"deadline": 5, "time_limit": 7, "dead_retain": 9}
    changed = ok(await http.patch(http.job_path("a"), json=bounds))
    assert {name: changed[name] for name in bounds} == bounds
    changed = ok(await http.patch(http.job_path("a"), json={"deadline": None, "time_limit": None}))
    assert not {"deadline", "deadline_at", "time_limit"} & changed.keys()


async def test_a_finish_puts_other_jobs(http: Http) -> None:
    held = await http.reserve("first")
    puts = [{"topic": http.topic, "id": "second", "delay": 60}, {"topic": http.topic, "body": 7}]
    finished = ok(await http.post(http.job_path("first", "finish"), json={"receipt": held["receipt"], "put": puts}))
    [second, third] = finished.pop("put")
    assert finished == {"topic": http.topic, "id": "first", "state": "finished"}
    assert second == {"topic": http.topic, "id": "second", "status": 201, "durability": second["durability"]}
    assert (await http.get_job("second"))["state"] == "delayed"
    assert (await http.get_job(third["id"]))["body"] == 7
    assert not await http.has_job("first")
    again = await http.post(http.job_path("first", "finish"), json={"receipt": held["receipt"], "put": puts})
    problem(again, 404, "job_not_found")


async def test_a_repeated_finish_of_a_retained_job_puts_nothing(http: Http) -> None:
    held = await http.reserve("kept", retain=60)
    finish = {"receipt": held["receipt"], "put": [{"topic": http.topic, "id": "next"}]}
    assert "put" in ok(await http.post(http.job_path("kept", "finish"), json=finish))
    assert "put" not in ok(await http.post(http.job_path("kept", "finish"), json=finish))


@pytest.mark.parametrize(
    ("put", "field"),
    [
        ([], "body.put"),
        ([{"topic": "t"}] * 11, "body.put"),
        ([{"topic": "t"}, {"topic": "t", "delay": -1}], "body.put.1.delay"),
        ([{"topic": "t", "delay": 1, "run_at": "2030-01-01T00:00:00Z"}], "body.put.0"),
        ([{"topic": "-"}], "body.put.0.topic"),
        ([{"id": "a"}], "body.put.0.topic"),
        ({"topic": "t"}, "body.put"),
    ],
)
async def test_a_bad_job_to_put_refuses_the_finish(http: Http, put: Any, field: str) -> None:
    await http.reserve("held")
    refusal(await http.post(http.job_path("held", "finish"), json={"put": put}), field)
    assert (await http.get_job("held"))["state"] == "reserved"
