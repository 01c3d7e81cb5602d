"""One job by its id: GET, PATCH and DELETE /jobs/{topic}/{id}."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.http_calls import Http, moment, ok, problem, seconds_from_now


async def test_getting_a_job_changes_nothing(http: Http) -> None:
    job = await http.put_job("seen", delay=60)
    assert await http.get_job("seen") == job
    assert await http.get_job("seen") == job


async def test_a_job_can_be_read_without_its_body_and_its_result(http: Http) -> None:
    job = await http.put_job("long", body={"text": "x" * 100}, retain=60, headers={"a": "b"})
    shown = ok(await http.get(http.job_path("long"), params={"bodies": "false"}))
    assert shown == {
        **{name: value for name, value in job.items() if name not in {"body", "durability"}},
        "body_bytes": 111,
    }
    popped = await http.pop_one()
    ok(await http.post(http.job_path("long", "finish"), json={"receipt": popped["receipt"], "result": [1, 2]}))
    [listed] = ok(await http.get(http.topic_path("jobs"), params={"bodies": "false"}))["jobs"]
    assert (listed["body_bytes"], listed["result_bytes"], listed["state"]) == (111, 5, "finished")
    assert listed == ok(await http.get(http.job_path("long"), params={"bodies": "false"}))
    assert not {"body", "result"} & listed.keys()


async def test_an_unknown_job_is_not_found(http: Http) -> None:
    await http.put_job("other")
    for call in (http.get, http.delete):
        members = problem(await call(http.job_path("none")), 404, "job_not_found")
        assert (members["topic"], members["id"]) == (http.topic, "none")
    problem(await http.patch(http.job_path("none"), json={"delay": 1}), 404, "job_not_found")


async def test_a_reserved_job_shows_its_consumer_and_lease(http: Http) -> None:
    await http.put_job("held", ttr=30)
    await http.pop_one(consumer="worker-1")
    job = await http.get_job("held")
    assert (job["state"], job["reserved_by"], job["attempts"]) == ("reserved", "worker-1", 1)
    assert 25 < seconds_from_now(job["reserved_until"]) <= 30
    assert "receipt" not in job


async def test_a_job_shows_only_what_it_has(http: Http) -> None:
    job = await http.put_job("plain")
    extras = {"last_error", "reason", "reserved_until", "reserved_by", "finished_at", "result"}
    assert not extras & job.keys()


async def test_rescheduling_moves_the_due_time_and_keeps_the_rest(http: Http) -> None:
    job = await http.put_job("moved", body={"n": 1}, delay=60, ttr=5)
    changed = ok(await http.patch(http.job_path("moved"), json={"delay": 3600}))
    assert 3590 < seconds_from_now(changed["due_at"]) <= 3600
    assert {**changed, "due_at": None} == {**job, "due_at": None}


async def test_a_job_can_be_rescheduled_to_an_instant(http: Http) -> None:
    await http.put_job("moved", delay=60)
    run_at = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
    changed = ok(await http.patch(http.job_path("moved"), json={"run_at": run_at.isoformat()}))
    assert moment(changed["due_at"]) == run_at.timestamp()


async def test_a_job_rescheduled_to_now_is_handed_out_at_once(http: Http) -> None:
    await http.put_job("sooner", delay=600)
    assert ok(await http.patch(http.job_path("sooner"), json={"delay": 0}))["state"] == "ready"
    assert (await http.pop_one())["id"] == "sooner"


async def test_a_ready_job_given_a_delay_is_delayed_again(http: Http) -> None:
    await http.put_job("later")
    assert ok(await http.patch(http.job_path("later"), json={"delay": 600}))["state"] == "delayed"
    assert await http.pop() == []


@pytest.mark.parametrize(
    "change",
    [
        {"body": [1, 2]},
        {"body": None},
        {"ttr": 7},
        {"max_attempts": 9},
        {"backoff": {"kind": "fixed", "seconds": 1, "jitter": 0}},
        {"ttl": 50},
        {"retain": 3.5},
    ],
)
@pytest.mark.parametrize("delay", [0, 600], ids=["ready", "delayed"])
async def test_each_field_of_a_waiting_job_can_change(http: Http, change: dict[str, Any], delay: int) -> None:
    before = await http.put_job("job", body="old", delay=delay)
    assert ok(await http.patch(http.job_path("job"), json=change)) == before | change
    assert await http.get_job("job") == before | change


async def test_null_removes_limits(http: Http) -> None:
    await http.put_job("bounded", ttl=100, max_attempts=3)
    changed = ok(await http.patch(http.job_path("bounded"), json={"ttl": None, "max_attempts": None}))
    assert (changed["ttl"], changed["max_attempts"]) == (None, None)


async def test_an_empty_change_changes_nothing(http: Http) -> None:
    job = await http.put_job("same", delay=60)
    assert ok(await http.patch(http.job_path("same"), json={})) == job


async def test_a_job_that_a_consumer_holds_cannot_change(http: Http) -> None:
    await http.reserve("held", body=1)
    problem(await http.patch(http.job_path("held"), json={"body": 2}), 409, "job_reserved")
    assert (await http.get_job("held"))["body"] == 1


async def test_a_dead_or_finished_job_cannot_change(http: Http) -> None:
    await http.bury("dead")
    problem(await http.patch(http.job_path("dead"), json={"delay": 1}), 404, "job_not_found")
    await http.reserve("done", retain=60)
    ok(await http.post(http.job_path("done", "finish")))
    problem(await http.patch(http.job_path("done"), json={"delay": 1}), 404, "job_not_found")


@pytest.mark.parametrize(("delay", "was"), [(600, "delayed"), (0, "ready")])
async def test_a_cancel_returns_the_former_state(http: Http, delay: int, was: str) -> None:
    await http.put_job("gone", delay=delay)
    cancelled = ok(await http.delete(http.job_path("gone")))
    assert cancelled == {"topic": http.topic, "id": "gone", "state": "cancelled", "was": was}
    assert not await http.has_job("gone")
    assert await http.pop() == []
    problem(await http.delete(http.job_path("gone")), 404, "job_not_found")


@pytest.mark.parametrize("query", [{}, {"if_reserved": "cancel"}])
async def test_the_consumer_of_a_cancelled_job_gets_a_410(http: Http, query: dict[str, str]) -> None:
    held = await http.reserve("held")
    assert ok(await http.delete(http.job_path("held"), params=query))["was"] == "reserved"
    for verb in ("touch", "finish", "release", "bury"):
        response = await http.post(http.job_path("held", verb), json={"receipt": held["receipt"]})
        members = problem(response, 410, "job_cancelled")
        assert (members["topic"], members["id"]) == (http.topic, "held")


async def test_cancelling_can_be_refused_while_a_consumer_holds_the_job(http: Http) -> None:
    held = await http.reserve("held")
    refuse = {"if_reserved": "refuse"}
    problem(await http.delete(http.job_path("held"), params=refuse), 409, "job_reserved")
    ok(await http.post(http.job_path("held", "finish"), json={"receipt": held["receipt"]}))
    await http.put_job("free")
    assert ok(await http.delete(http.job_path("free"), params=refuse))["was"] == "ready"


async def test_dead_and_finished_jobs_can_be_deleted(http: Http) -> None:
    await http.bury("dead")
    assert ok(await http.delete(http.job_path("dead")))["was"] == "dead"
    await http.reserve("done", retain=60)
    ok(await http.post(http.job_path("done", "finish")))
    assert ok(await http.delete(http.job_path("done")))["was"] == "finished"
    assert await http.counts() == {}
