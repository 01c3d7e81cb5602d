"""Puts over HTTP, POST /jobs and POST /jobs/batch; what every door does is in tests/conformance."""

from __future__ import annotations

from tests.acceptance.http_calls import Http, ok, problem, refusal, seconds_from_now


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


async def test_whole_seconds_are_written_without_decimals(http: Http) -> None:
    response = await http.post("/jobs", json={"topic": http.topic, "ttr": 60.0, "retain": 1.25})
    assert '"ttr":60,' in response.text
    assert '"retain":1.25' in response.text


async def test_keep_leaves_the_old_job_as_it_is(http: Http) -> None:
    old = await http.put_job("kept", body="old", delay=60)
    response = await http.post("/jobs", json={"topic": http.topic, "id": "kept", "body": "new", "on_conflict": "keep"})
    assert ok(response, 200) == {**old, "durability": "fsync"}
    assert "location" not in response.headers


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
