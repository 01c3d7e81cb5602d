"""Puts of one id over HTTP: what they find there, and how they collapse into one job."""

from __future__ import annotations

from tests.acceptance.http_calls import Http, moment, ok, problem, seconds_from_now


async def test_a_conflict_shows_the_state_of_the_job_that_has_the_id(http: Http) -> None:
    await http.put_job("a", delay=60)
    conflict = problem(await http.post("/jobs", json={"topic": http.topic, "id": "a"}), 409, "job_exists")
    assert conflict["state"] == "delayed"
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


async def test_a_live_put_takes_the_place_of_a_dead_job(http: Http) -> None:
    await http.bury("a")
    put = await http.post("/jobs", json={"topic": http.topic, "id": "a", "conflict_with": "live"})
    assert ok(put, 201)["state"] == "ready"
    assert put.headers["location"] == http.job_path("a")


async def test_the_id_of_a_finished_job_stays_taken_until_it_is_cancelled(http: Http) -> None:
    assert (await http.put_job("a", unique_for=60.5))["unique_for"] == 60.5
    receipt = (await http.pop_one())["receipt"]
    ok(await http.post(http.job_path("a", "finish"), json={"receipt": receipt}))
    again = {"topic": http.topic, "id": "a", "on_conflict": "keep"}
    taken = problem(await http.post("/jobs", json=again), 409, "job_exists")
    assert taken["state"] == "finished"
    assert 50 < seconds_from_now(taken["until"]) < 61
    assert ok(await http.delete(http.job_path("a")))["was"] == "finished"
    ok(await http.post("/jobs", json=again), 201)


async def test_puts_within_the_longest_wait_move_the_due_time(http: Http) -> None:
    options = {"delay": 30, "max_wait": 30, "on_conflict": "replace"}
    first = await http.put_job("a", **options)
    again = {"topic": http.topic, "id": "a", "body": 2, **options}
    second = ok(await http.post("/jobs", json=again), 200)
    assert second["due_at"] == second["due_by"] == first["due_by"] == first["due_at"]
    assert moment(second["created_at"]) >= moment(first["created_at"])
    assert second["body"] == 2
