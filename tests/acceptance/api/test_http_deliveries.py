"""Operations of the consumer on a job: finish, release, touch, bury, and those on many."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.http_calls import Http, moment, ok, problem, refusal, seconds_from_now

_VERBS = ["finish", "release", "touch", "bury"]


async def test_a_finished_job_is_gone(http: Http) -> None:
    job = await http.reserve("done")
    response = await http.post(http.job_path("done", "finish"), json={"receipt": job["receipt"]})
    assert ok(response) == {"topic": http.topic, "id": "done", "state": "finished"}
    assert not await http.has_job("done")


async def test_a_retained_job_shows_its_result(http: Http) -> None:
    job = await http.reserve("kept", body="b", retain=60)
    result = {"total": 12.5, "items": [1, None]}
    ok(await http.post(http.job_path("kept", "finish"), json={"receipt": job["receipt"], "result": result}))
    kept = await http.get_job("kept")
    assert (kept["state"], kept["result"], kept["body"]) == ("finished", result, "b")
    assert -5 < seconds_from_now(kept["finished_at"]) <= 0
    assert "reserved_until" not in kept


async def test_a_retained_record_ends_with_its_retention(http: Http) -> None:
    await http.reserve("brief", retain=0.1)
    ok(await http.post(http.job_path("brief", "finish")))
    # The next due job is promoted by the first run of the timer after the retention's end.
    await http.put_job("after", delay=0.3)
    await http.pop_one()
    assert not await http.has_job("brief")


async def test_a_retained_record_keeps_its_id_taken(http: Http) -> None:
    await http.reserve("kept", retain=60)
    ok(await http.post(http.job_path("kept", "finish")))
    problem(await http.post("/jobs", json={"topic": http.topic, "id": "kept"}), 409, "job_exists")


async def test_finishing_again_with_the_same_receipt_succeeds_while_the_record_is_kept(http: Http) -> None:
    job = await http.reserve("kept", retain=60)
    for _ in range(2):
        ok(await http.post(http.job_path("kept", "finish"), json={"receipt": job["receipt"]}))


@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("body", [None, {}], ids=["no body", "empty object"])
async def test_without_a_receipt_the_current_delivery_ends(http: Http, verb: str, body: Any) -> None:
    await http.reserve("held")
    ok(await http.post(http.job_path("held", verb), json=body))


@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("receipt", ["nonsense", "", "000000000001.1", "x" * 64])
async def test_a_receipt_of_no_delivery_changes_nothing(http: Http, verb: str, receipt: str) -> None:
    await http.reserve("held")
    before = await http.get_job("held")
    members = problem(await http.post(http.job_path("held", verb), json={"receipt": receipt}), 409, "receipt_stale")
    assert (members["topic"], members["id"]) == (http.topic, "held")
    assert await http.get_job("held") == before


@pytest.mark.parametrize("verb", _VERBS)
async def test_a_job_that_no_consumer_holds_is_refused_with_its_state(http: Http, verb: str) -> None:
    await http.put_job("waits", delay=60)
    members = problem(await http.post(http.job_path("waits", verb)), 409, "receipt_stale")
    assert members["detail"] == f"nobody holds job 'waits' of topic {http.topic!r}: it is delayed"


@pytest.mark.parametrize("verb", _VERBS)
async def test_the_receipt_of_an_earlier_job_with_the_same_id_changes_nothing(http: Http, verb: str) -> None:
    earlier = await http.reserve("again")
    ok(await http.post(http.job_path("again", "finish")))
    await http.reserve("again")
    before = await http.get_job("again")
    problem(await http.post(http.job_path("again", verb), json={"receipt": earlier["receipt"]}), 409, "receipt_stale")
    assert await http.get_job("again") == before


@pytest.mark.parametrize("verb", _VERBS)
async def test_an_unknown_job_is_not_found(http: Http, verb: str) -> None:
    problem(await http.post(http.job_path("none", verb)), 404, "job_not_found")


@pytest.mark.parametrize("verb", _VERBS)
async def test_a_job_that_no_consumer_holds_has_no_current_delivery(http: Http, verb: str) -> None:
    await http.put_job("waiting", delay=60)
    response = await http.post(http.job_path("waiting", verb))
    assert response.status_code in (404, 409), response.text
    assert (await http.get_job("waiting"))["state"] == "delayed"


async def test_a_released_job_waits_its_backoff(http: Http) -> None:
    await http.reserve("again")
    released = ok(await http.post(http.job_path("again", "release"), json={"error": "try later"}))
    assert (released["state"], released["attempts"]) == ("delayed", 1)
    assert 1.5 < seconds_from_now(released["due_at"]) <= 2
    job = await http.get_job("again")
    assert (job["state"], job["last_error"], job["due_at"]) == ("delayed", "try later", released["due_at"])


async def test_a_release_can_set_the_wait(http: Http) -> None:
    await http.reserve("soon")
    ok(await http.post(http.job_path("soon", "release"), json={"delay": 0.2}))
    job = await http.pop_one()
    assert (job["id"], job["attempt"], job["attempts"]) == ("soon", 2, 2)


async def test_a_fixed_backoff_waits_the_same_each_time(http: Http) -> None:
    await http.reserve("fixed", backoff={"kind": "fixed", "seconds": 0.1})
    ok(await http.post(http.job_path("fixed", "release")))
    assert (await http.pop_one())["attempt"] == 2
    released = ok(await http.post(http.job_path("fixed", "release")))
    assert seconds_from_now(released["due_at"]) <= 0.1


async def test_a_schedule_ends_in_dead(http: Http) -> None:
    await http.reserve("plan", backoff={"kind": "schedule", "seconds": [0]})
    assert ok(await http.post(http.job_path("plan", "release")))["state"] == "delayed"
    await http.pop_one()
    assert ok(await http.post(http.job_path("plan", "release"))) == {"state": "dead", "attempts": 2}
    assert (await http.get_job("plan"))["reason"] == "schedule_ended"


async def test_the_last_attempt_ends_in_dead(http: Http) -> None:
    await http.reserve("last", max_attempts=1)
    released = ok(await http.post(http.job_path("last", "release"), json={"error": "no luck"}))
    assert released == {"state": "dead", "attempts": 1}
    job = await http.get_job("last")
    assert (job["reason"], job["last_error"]) == ("attempts_exhausted", "no luck")


async def test_touching_extends_the_lease_by_the_jobs_ttr(http: Http) -> None:
    job = await http.reserve("long", ttr=30)
    touched = ok(await http.post(http.job_path("long", "touch"), json={"receipt": job["receipt"]}))
    assert touched.keys() == {"reserved_until"}
    assert moment(touched["reserved_until"]) >= moment(job["reserved_until"])
    assert (await http.get_job("long"))["reserved_until"] == touched["reserved_until"]


async def test_a_touch_can_set_the_lease(http: Http) -> None:
    await http.reserve("long")
    touched = ok(await http.post(http.job_path("long", "touch"), json={"ttr": 600}))
    assert 590 < seconds_from_now(touched["reserved_until"]) <= 600


async def test_a_buried_job_is_dead_and_not_handed_out(http: Http) -> None:
    job = await http.reserve("bad")
    response = await http.post(http.job_path("bad", "bury"), json={"receipt": job["receipt"], "error": "no such order"})
    assert ok(response) == {"state": "dead"}
    dead = await http.get_job("bad")
    assert (dead["state"], dead["reason"], dead["last_error"]) == ("dead", "buried", "no such order")
    assert await http.pop() == []


async def test_a_batch_finish_has_a_result_for_each_job_in_order(http: Http) -> None:
    for name in ("a", "b", "gone", "held"):
        await http.put_job(name)
    receipts = {job["id"]: job["receipt"] for job in await http.pop(count=4)}
    ok(await http.delete(http.job_path("gone")))
    items = [
        {"id": "a", "receipt": receipts["a"]},
        {"id": "none"},
        {"id": "held", "receipt": "stale"},
        {"id": "gone", "receipt": receipts["gone"]},
        {"id": "b", "result": {"kept": False}},
    ]
    results = ok(await http.post(http.topic_path("finish"), json={"jobs": items}))["results"]
    assert results == [
        {"id": "a", "status": 200},
        {"id": "none", "status": 404, "code": "job_not_found"},
        {"id": "held", "status": 409, "code": "receipt_stale"},
        {"id": "gone", "status": 410, "code": "job_cancelled"},
        {"id": "b", "status": 200},
    ]
    assert await http.counts() == {"reserved": 1}


async def test_a_thousand_jobs_are_put_popped_and_finished_by_three_requests(http: Http) -> None:
    jobs = [{"topic": http.topic, "id": f"j{number}"} for number in range(1000)]
    ok(await http.post("/jobs/batch", json={"jobs": jobs}))
    popped = await http.pop(count=1000, wait=5)
    items = [{"id": job["id"], "receipt": job["receipt"]} for job in popped]
    results = ok(await http.post(http.topic_path("finish"), json={"jobs": items}))["results"]
    assert [result["status"] for result in results] == [200] * 1000
    assert await http.counts() == {}


@pytest.mark.parametrize(
    ("jobs", "field"),
    [([], "body.jobs"), ([{"id": "j"}] * 1001, "body.jobs"), ([{"id": "a"}, {"id": "a/b"}], "body.jobs.1.id")],
    ids=["empty", "1001", "bad id"],
)
async def test_a_bad_batch_finish_is_refused_whole(http: Http, jobs: list[dict[str, str]], field: str) -> None:
    await http.reserve("a")
    refusal(await http.post(http.topic_path("finish"), json={"jobs": jobs}), field)
    assert (await http.get_job("a"))["state"] == "reserved"


async def test_deliveries_are_checked_and_returned_together(http: Http) -> None:
    jobs = [await http.reserve(name, max_attempts=1) for name in ("a", "b", "c")]
    held = {"jobs": [{"id": job["id"], "receipt": job["receipt"]} for job in jobs]}
    ok(await http.delete(http.job_path("b")))
    cancelled = {"id": "b", "status": 410, "code": "job_cancelled"}
    expected = {"results": [{"id": "a", "status": 200}, cancelled, {"id": "c", "status": 200}]}
    assert ok(await http.post(f"/topics/{http.topic}/check", json=held)) == expected
    assert ok(await http.post(f"/topics/{http.topic}/return", json=held)) == expected
    again = [await http.pop_one() for _ in range(2)]
    assert [(job["id"], job["attempt"], job.get("snoozes", 0)) for job in again] == [("a", 1, 0), ("c", 1, 0)]


@pytest.mark.parametrize("verb", ["check", "return"])
async def test_a_delivery_of_many_needs_a_receipt(http: Http, verb: str) -> None:
    refusal(await http.post(f"/topics/{http.topic}/{verb}", json={"jobs": [{"id": "a"}]}), "body.jobs.0.receipt")
