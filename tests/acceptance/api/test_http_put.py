"""Puts over HTTP, POST /jobs and POST /jobs/batch; what every door does is in tests/conformance."""

from __future__ import annotations

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


async def test_keep_leaves_the_old_job_as_it_is(http: Http) -> None:
    old = await http.put_job("kept", body="old", delay=60)
    response = await http.post("/jobs", json={"topic": http.topic, "id": "kept", "body": "new", "on_conflict": "keep"})
    assert ok(response, 200) == {**old, "durability": "fsync"}
    assert "location" not in response.headers


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


async def test_one_bad_job_refuses_the_whole_batch(http: Http) -> None:
    jobs = [{"topic": http.topic, "id": "good"}, {"topic": http.topic, "id": "bad", "delay": -1}]
    response = await http.post("/jobs/batch", json={"jobs": jobs})
    assert refusal(response, "body.jobs.1.delay") == "must be at least 0 seconds"
    assert response.json()["errors"][0]["pointer"] == "#/jobs/1/delay"
    assert response.json()["errors"][0]["value"] == -1
    assert await http.counts() == {}


async def test_a_conflict_shows_the_state_of_the_job_that_has_the_id(http: Http) -> None:
    await http.put_job("a", delay=60)
    conflict = problem(await http.post("/jobs", json={"topic": http.topic, "id": "a"}), 409, "job_exists")
    assert (conflict["topic"], conflict["id"], conflict["state"]) == (http.topic, "a", "delayed")
    assert "until" not in conflict
    await http.bury("dead")
    jobs = [{"topic": http.topic, "id": name, "on_conflict": "keep"} for name in ("a", "dead", "new")]
    results = ok(await http.post("/jobs/batch", json={"jobs": jobs}))["results"]
    assert [(result["status"], result.get("state")) for result in results] == [
        (200, "delayed"),
        (200, "dead"),
        (201, None),
    ]
    [refused] = ok(await http.post("/jobs/batch", json={"jobs": [{"topic": http.topic, "id": "dead"}]}))["results"]
    assert (refused["code"], refused["state"]) == ("job_exists", "dead")
    assert 0 < seconds_from_now(refused["until"])


async def test_a_collection_is_no_larger_than_a_body(http: Http) -> None:
    item = {"topic": http.topic, "id": "a", "on_conflict": "append", "body": "x" * 600_000, "delay": 60}
    ok(await http.post("/jobs", json=item), 201)
    refused = problem(await http.post("/jobs", json=item), 413, "payload_too_large")
    assert refused["limit_bytes"] == 1024 * 1024
    [result] = ok(await http.post("/jobs/batch", json={"jobs": [item]}))["results"]
    assert (result["status"], result["code"]) == (413, "payload_too_large")
    assert (await http.get_job("a"))["items"] == 1
