"""Putting jobs: POST /jobs and POST /jobs/batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.http_calls import Http, Json, moment, ok, problem, refusal, seconds_from_now


async def test_a_job_with_only_a_topic_gets_an_id_and_is_ready(http: Http) -> None:
    response = await http.post("/jobs", json={"topic": http.topic})
    job = ok(response, 201)
    assert response.headers["location"] == http.job_path(job["id"])
    assert job == {
        "topic": http.topic,
        "id": job["id"],
        "state": "ready",
        "body": None,
        "created_at": job["created_at"],
        "due_at": job["created_at"],
        "ttr": 60,
        "attempts": 0,
        "max_attempts": None,
        "backoff": {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0},
        "ttl": None,
        "retain": 0,
        "durability": "fsync",
    }
    del job["durability"]
    assert ok(await http.get(response.headers["location"])) == job


async def test_a_job_is_shown_as_it_was_put(http: Http) -> None:
    fields = {
        "body": {"n": 1.5, "text": "é\u0000😀", "list": [None, True, 12345678901234567890123]},
        "delay": 100.5,
        "ttr": 0.1,
        "max_attempts": 3,
        "backoff": {"kind": "schedule", "seconds": [120, 600.5], "then": "repeat_last", "jitter": 0.1},
        "ttl": 3600,
        "retain": 60,
        "dead_retain": 0,
        "time_limit": 90.5,
        "deadline": 7200,
    }
    job = await http.put_job("mine", **fields)
    assert job["id"] == "mine"
    assert job["state"] == "delayed"
    assert moment(job["due_at"]) - moment(job["created_at"]) == pytest.approx(100.5, abs=0.0005)
    del fields["delay"]
    assert {name: job[name] for name in fields} == fields
    assert await http.get_job("mine") == job


async def test_whole_seconds_are_written_without_decimals(http: Http) -> None:
    response = await http.post("/jobs", json={"topic": http.topic, "ttr": 60.0, "retain": 1.25})
    assert '"ttr":60,' in response.text
    assert '"retain":1.25' in response.text


async def test_run_at_is_the_instant_at_which_a_job_is_due(http: Http) -> None:
    run_at = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=123_000)
    eastward = run_at + timedelta(hours=2)
    job = await http.put_job(run_at=eastward.replace(tzinfo=None).isoformat() + "+02:00")
    assert moment(job["due_at"]) == run_at.timestamp()
    assert job["state"] == "delayed"


@pytest.mark.parametrize("run_at", ["2030-06-30T23:59:60Z", "2030-06-30T19:59:60-04:00"])
async def test_a_run_at_in_a_leap_second_is_the_second_after_it(http: Http, run_at: str) -> None:
    due_at = "2030-07-01T00:00:00.000Z"
    assert (await http.put_job("put", run_at=run_at))["due_at"] == due_at
    await http.put_job("changed", delay=60)
    changed = ok(await http.patch(http.job_path("changed"), json={"run_at": run_at}))
    assert changed["due_at"] == due_at
    batch = ok(await http.post("/jobs/batch", json={"jobs": [{"topic": http.topic, "id": "batch", "run_at": run_at}]}))
    assert batch["results"][0]["status"] == 201
    assert (await http.get_job("batch"))["due_at"] == due_at


async def test_a_second_60_elsewhere_is_refused(http: Http) -> None:
    response = await http.post("/jobs", json={"topic": http.topic, "run_at": "2030-06-30T12:00:60Z"})
    assert "second 60 must be a leap second" in refusal(response, "body.run_at")


async def test_a_run_at_in_the_past_means_now(http: Http) -> None:
    job = await http.put_job(run_at="2001-01-01T00:00:00Z")
    assert job["state"] == "ready"
    assert (await http.pop_one())["id"] == job["id"]


async def test_a_delayed_job_is_handed_out_when_it_is_due(http: Http) -> None:
    job = await http.put_job(delay=0.3)
    assert await http.pop() == []
    assert (await http.pop_one())["id"] == job["id"]
    assert seconds_from_now(job["due_at"]) <= 0


@pytest.mark.parametrize("body", [None, 0, "text", [], {}, False, [[[]]], 1e308, -0.5])
async def test_a_body_is_any_json_value(http: Http, body: Any) -> None:
    await http.put_job("any", body=body)
    assert (await http.pop_one())["body"] == body


async def test_a_taken_id_is_refused(http: Http) -> None:
    await http.put_job("twice", body=1)
    members = problem(await http.post("/jobs", json={"topic": http.topic, "id": "twice"}), 409, "job_exists")
    assert (members["topic"], members["id"]) == (http.topic, "twice")
    assert (await http.get_job("twice"))["body"] == 1


async def test_the_same_id_in_another_topic_is_another_job(http: Http) -> None:
    await http.put_job("same")
    ok(await http.post("/jobs", json={"topic": f"{http.topic}.b", "id": "same"}), 201)


async def test_keep_leaves_the_old_job_as_it_is(http: Http) -> None:
    old = await http.put_job("kept", body="old", delay=60)
    response = await http.post("/jobs", json={"topic": http.topic, "id": "kept", "body": "new", "on_conflict": "keep"})
    assert ok(response, 200) == {**old, "durability": "fsync"}
    assert "location" not in response.headers


async def test_replace_replaces_the_old_job_by_the_new_one(http: Http) -> None:
    await http.put_job("moved", body="old", delay=60, ttr=5)
    new = {"topic": http.topic, "id": "moved", "body": "new", "on_conflict": "replace"}
    job = ok(await http.post("/jobs", json=new), 200)
    assert (job["body"], job["state"], job["ttr"]) == ("new", "ready", 60)
    assert await http.counts() == {"ready": 1}


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
async def test_without_a_conflict_keep_and_replace_put(http: Http, on_conflict: str) -> None:
    await http.put_job("first", on_conflict=on_conflict)


async def test_a_job_that_a_consumer_holds_is_not_replaced(http: Http) -> None:
    held = await http.reserve("held", body="old")
    new = {"topic": http.topic, "id": "held", "body": "new"}
    problem(await http.post("/jobs", json={**new, "on_conflict": "replace"}), 409, "job_reserved")
    problem(await http.post("/jobs", json={**new, "on_conflict": "reject"}), 409, "job_exists")
    assert ok(await http.post("/jobs", json={**new, "on_conflict": "keep"}), 200)["state"] == "reserved"
    ok(await http.post(http.job_path("held", "finish"), json={"receipt": held["receipt"]}))


async def test_an_id_is_free_again_when_its_job_is_gone(http: Http) -> None:
    for _ in range(2):
        job = await http.reserve("again")
        ok(await http.post(http.job_path("again", "finish"), json={"receipt": job["receipt"]}))


async def test_omitted_fields_of_a_job_come_from_its_topic(http: Http) -> None:
    backoff = {"kind": "fixed", "seconds": 3, "jitter": 0}
    defaults = {"ttr": 5, "max_attempts": 2, "backoff": backoff, "ttl": 100, "retain": 10}
    ok(await http.put(http.topic_path(), json=defaults))
    job = await http.put_job()
    assert {name: job[name] for name in defaults} == defaults
    own = await http.put_job(ttr=7, ttl=None, max_attempts=None)
    assert (own["ttr"], own["ttl"], own["max_attempts"], own["retain"]) == (7, None, None, 10)


async def test_a_full_topic_refuses_until_there_is_room(http: Http) -> None:
    ok(await http.put(http.topic_path(), json={"max_jobs": 2}))
    await http.put_job("one")
    await http.put_job("two", delay=60)
    members = problem(await http.post("/jobs", json={"topic": http.topic, "id": "three"}), 429, "topic_full")
    assert members["max_jobs"] == 2
    assert not await http.has_job("three")
    ok(await http.delete(http.job_path("two")))
    await http.put_job("three")


async def test_a_batch_has_a_result_for_each_job_in_order(http: Http) -> None:
    await http.put_job("old")
    held = f"{http.topic}.held"
    ok(await http.post("/jobs", json={"topic": held, "id": "h"}), 201)
    ok(await http.get(f"/topics/{held}/pop", params={"wait": 0}))
    ok(await http.put(f"/topics/{http.topic}.full", json={"max_jobs": 1}))
    batch: list[Json] = [
        {"topic": http.topic, "id": "new", "delay": 60},
        {"topic": http.topic, "id": "old"},
        {"topic": http.topic, "id": "old", "on_conflict": "keep"},
        {"topic": held, "id": "h", "on_conflict": "replace"},
        {"topic": f"{http.topic}.full", "id": "f1"},
        {"topic": f"{http.topic}.full", "id": "f2"},
        {"topic": http.topic},
    ]
    results = ok(await http.post("/jobs/batch", json={"jobs": batch}))["results"]
    assert [(result["status"], result.get("code")) for result in results] == [
        (201, None),
        (409, "job_exists"),
        (200, None),
        (409, "job_reserved"),
        (201, None),
        (429, "topic_full"),
        (201, None),
    ]
    assert [result["topic"] for result in results] == [job["topic"] for job in batch]
    assert [result["id"] for result in results[:6]] == [job["id"] for job in batch[:6]]
    assert await http.has_job(results[6]["id"])
    assert "code" not in results[0]


async def test_a_batch_may_have_a_thousand_jobs(http: Http) -> None:
    jobs = [{"topic": http.topic, "id": f"j{number}", "delay": 600} for number in range(1000)]
    results = ok(await http.post("/jobs/batch", json={"jobs": jobs}))["results"]
    assert {result["status"] for result in results} == {201}
    assert await http.counts() == {"delayed": 1000}


async def test_one_bad_job_refuses_the_whole_batch(http: Http) -> None:
    jobs = [{"topic": http.topic, "id": "good"}, {"topic": http.topic, "id": "bad", "delay": -1}]
    response = await http.post("/jobs/batch", json={"jobs": jobs})
    assert refusal(response, "body.jobs.1.delay") == "must be at least 0 seconds"
    assert response.json()["errors"][0]["pointer"] == "#/jobs/1/delay"
    assert response.json()["errors"][0]["value"] == -1
    assert await http.counts() == {}
