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


async def test_a_put_waits_while_a_consumer_holds_the_job(http: Http) -> None:
    receipt = (await http.reserve("a", retain=60))["receipt"]
    after = {"topic": http.topic, "id": "a", "on_conflict": "replace", "if_reserved": "after"}
    first = ok(await http.post("/jobs", json={**after, "body": 1}), 201)
    assert (first["follow_up"], first["state"], first["body"]) == (True, "delayed", 1)
    again = ok(await http.post("/jobs", json={**after, "body": [2]}), 200)
    assert again["follow_up"] is True
    shown = await http.get_job("a")
    assert (shown["state"], shown["followed_by"]["body"]) == ("reserved", [2])
    [result] = ok(await http.post("/jobs/batch?with_jobs=true", json={"jobs": [{**after, "body": 3}]}))["results"]
    assert (result["status"], result["follow_up"], result["job"]["body"]) == (200, True, 3)
    ok(await http.post(http.job_path("a", "finish"), json={"receipt": receipt}))
    following = await http.pop_one(wait=5)
    assert (following["body"], following["attempt"]) == (3, 1)
    assert "followed_by" not in await http.get_job("a")


async def test_a_cancel_takes_a_follow_up_along_or_keeps_it(http: Http) -> None:
    after = {"topic": http.topic, "on_conflict": "keep", "if_reserved": "after"}
    for job_id in ("a", "b"):
        await http.reserve(job_id)
        ok(await http.post("/jobs", json={**after, "id": job_id}), 201)
    assert ok(await http.delete(http.job_path("a")))["was"] == "reserved"
    assert ok(await http.delete(http.job_path("b") + "?follow_up=keep"))["was"] == "reserved"
    assert not await http.has_job("a")
    kept = await http.get_job("b")
    assert kept["state"] == "delayed"
    assert 50 < seconds_from_now(kept["due_at"]) <= 60


async def test_bodies_are_collected_in_an_array(http: Http) -> None:
    item = {"topic": http.topic, "id": "a", "on_conflict": "append", "delay": 60, "max_wait": 60, "max_items": 3}
    first = ok(await http.post("/jobs", json={**item, "body": {"n": 1}}), 201)
    assert (first["body"], first["items"], first["state"]) == ([{"n": 1}], 1, "delayed")
    second = ok(await http.post("/jobs", json={**item, "body": 2}), 200)
    assert (second["body"], second["items"], second["due_at"]) == ([2], 2, first["due_by"])
    assert (await http.get_job("a"))["body"] == [{"n": 1}, 2]
    [result] = ok(await http.post("/jobs/batch", json={"jobs": [{**item, "body": "x" * 10}]}))["results"]
    assert result["status"] == 200
    popped = await http.pop_one(wait=5)
    assert (popped["body"], popped["items"]) == ([{"n": 1}, 2, "x" * 10], 3)


async def test_a_collection_is_no_larger_than_a_body(http: Http) -> None:
    item = {"topic": http.topic, "id": "a", "on_conflict": "append", "body": "x" * 600_000, "delay": 60}
    ok(await http.post("/jobs", json=item), 201)
    refused = problem(await http.post("/jobs", json=item), 413, "payload_too_large")
    assert refused["limit_bytes"] == 1024 * 1024
    [result] = ok(await http.post("/jobs/batch", json={"jobs": [item]}))["results"]
    assert (result["status"], result["code"]) == (413, "payload_too_large")
    assert (await http.get_job("a"))["items"] == 1
