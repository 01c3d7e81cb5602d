"""How deliveries and jobs end, over HTTP: snoozes, deadlines, time limits, dead jobs that are not kept,
logs of attempts, and jobs that follow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.http_calls import Http, moment, ok, problem, refusal


async def test_a_snoozed_job_comes_back_without_an_attempt(http: Http) -> None:
    job = await http.reserve("later", max_attempts=1)
    assert "snoozes" not in job
    snooze = {"receipt": job["receipt"], "count": False, "delay": 0.1, "error": "not yet"}
    released = ok(await http.post(http.job_path("later", "release"), json=snooze))
    assert (released["state"], released["attempts"]) == ("delayed", 0)
    again = await http.pop_one()
    assert (again["attempt"], again["snoozes"], again["last_error"]) == (1, 1, "not yet")
    assert again["receipt"] != job["receipt"]
    problem(await http.post(http.job_path("later", "finish"), json={"receipt": job["receipt"]}), 409, "receipt_stale")
    ok(await http.post(http.job_path("later", "finish"), json={"receipt": again["receipt"]}))


@pytest.mark.parametrize("delay", [{}, {"delay": None}, {"delay": 0}, {"delay": 0.099}])
async def test_a_snooze_needs_a_delay(http: Http, delay: dict[str, Any]) -> None:
    await http.reserve("held")
    response = await http.post(http.job_path("held", "release"), json={"count": False, **delay})
    assert refusal(response, "body.delay") == "must be at least 0.1 seconds when `count` is false"
    assert (await http.get_job("held"))["state"] == "reserved"


async def test_a_job_past_its_deadline_is_dead(http: Http) -> None:
    job = await http.put_job("late", deadline=0.2)
    assert moment(job["deadline_at"]) == pytest.approx(moment(job["due_at"]) + 0.2, abs=0.0015)
    held = await http.pop_one()
    assert held["reserved_until"] == job["deadline_at"]
    # The next due job is promoted by a run of the timer after the deadline.
    await http.put_job("after", delay=0.5)
    await http.pop_one()
    dead = await http.get_job("late")
    assert (dead["state"], dead["reason"]) == ("dead", "deadline")
    assert ok(await http.post(http.topic_path("redrive"), json={"ids": ["late"]})) == {"redriven": 1}
    assert (await http.get_job("late"))["deadline_at"] > dead["deadline_at"]
    assert 'reason="deadline"' in (await http.get("/metrics")).text


async def test_no_touch_extends_a_lease_beyond_the_time_limit(http: Http) -> None:
    held = await http.reserve("limited", ttr=10, time_limit=30)
    began = moment(held["reserved_until"]) - 10
    touched = ok(await http.post(http.job_path("limited", "touch"), json={"receipt": held["receipt"], "ttr": 3600}))
    assert moment(touched["reserved_until"]) == pytest.approx(began + 30, abs=0.0015)


async def test_a_job_that_is_not_kept_when_dead_is_gone(http: Http) -> None:
    held = await http.reserve("brief", dead_retain=0)
    ok(await http.post(http.job_path("brief", "bury"), json={"receipt": held["receipt"]}))
    assert not await http.has_job("brief")


async def test_a_change_sets_and_removes_deadline_and_time_limit(http: Http) -> None:
    await http.put_job("a", delay=60)
    bounds = {"deadline": 5, "time_limit": 7, "dead_retain": 9}
    changed = ok(await http.patch(http.job_path("a"), json=bounds))
    assert {name: changed[name] for name in bounds} == bounds
    changed = ok(await http.patch(http.job_path("a"), json={"deadline": None, "time_limit": None}))
    assert not {"deadline", "deadline_at", "time_limit"} & changed.keys()


async def test_failed_attempts_are_logged(http: Http) -> None:
    await http.put_job("failing")
    assert "attempts_log" not in await http.get_job("failing")
    for number in (1, 2):
        await http.pop_one(consumer="w1")
        release = {"delay": 0, "error": f"try {number}"}
        ok(await http.post(http.job_path("failing", "release"), json=release))
    job = await http.pop_one()
    [first, second] = job["attempts_log"]
    assert first == {"attempt": 1, "ended_at": first["ended_at"], "how": "released", "by": "w1", "error": "try 1"}
    assert second["error"] == "try 2"
    assert moment(first["ended_at"]) <= moment(second["ended_at"])


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
    ok(await http.delete(http.job_path("next")))
    assert "put" not in ok(await http.post(http.job_path("kept", "finish"), json=finish))
    assert not await http.has_job("next")


async def test_a_put_that_is_refused_leaves_the_job_held(http: Http) -> None:
    held = await http.reserve("first")
    await http.put_job("taken", delay=60)
    puts = [{"topic": http.topic, "id": "second"}, {"topic": http.topic, "id": "taken"}]
    response = await http.post(http.job_path("first", "finish"), json={"receipt": held["receipt"], "put": puts})
    assert problem(response, 409, "job_exists")["id"] == "taken"
    assert (await http.get_job("first"))["state"] == "reserved"
    assert not await http.has_job("second")


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


async def test_a_batch_of_finishes_puts_nothing(http: Http) -> None:
    await http.reserve("held")
    batch = {"jobs": [{"id": "held", "put": [{"topic": http.topic}]}]}
    refusal(await http.post(http.topic_path("finish"), json=batch), "body.jobs.0.put")
