"""Jobs that consumers hold: since when, and how an operator takes them back."""

from __future__ import annotations

import json

from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, ok, problem, seconds_from_now
from tests.acceptance.service_process import ServiceProcess


async def test_whoever_reads_a_held_job_sees_by_whom_and_since_when(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("a")
    popped = await http.pop_one(consumer="worker-7", ttr=30)
    assert "reserved_since" not in popped
    job = await http.get_job("a")
    assert -10 < seconds_from_now(job["reserved_since"]) <= 1
    shown = {name: job[name] for name in ("reserved_by", "reserved_since", "reserved_until")}
    listed = ok(await http.get(http.topic_path("jobs"), params={"state": "reserved"}))["jobs"]
    found = ok(await http.get(http.topic_path("jobs"), params={"ids": "a"}))["jobs"]
    for [one] in (listed, found):
        assert {name: one[name] for name in shown} == shown
    [leased] = ok(await http.get(http.job_path("a", "why")))["reasons"]
    assert (leased["since"], leased["by"]) == (job["reserved_since"], "worker-7")
    shell = Shell(shared_service.url)
    assert f"held since  {job['reserved_since']}" in shell.good("get", http.topic, "a")
    assert "held by worker-7, handed out " in shell.good("jobs", http.topic)


async def test_an_operator_takes_back_what_a_consumer_holds(http: Http) -> None:
    held = [await http.reserve(job_id, max_attempts=1) for job_id in ("a", "b")]
    await http.put_job("c")
    await http.pop_one(consumer="worker-7")
    jobs = [{"id": job_id} for job_id in "abc"]
    by_one = ok(await http.post(http.topic_path("return"), json={"jobs": jobs, "consumer": "worker-7"}))["results"]
    assert [one["status"] for one in by_one] == [409, 409, 200]
    of_any = ok(await http.post(http.topic_path("return"), json={"jobs": jobs[:2]}))["results"]
    assert [one["status"] for one in of_any] == [200, 200]
    assert await http.counts() == {"ready": 3}
    for verb in ("touch", "finish"):
        response = await http.post(http.job_path("a", verb), json={"receipt": held[0]["receipt"]})
        problem(response, 409, "receipt_stale")
    again = await http.pop_one()
    assert (again["id"], again["attempt"], again["snoozes"]) == ("a", 1, 1)

    jobs = [{"id": "a", "receipt": again["receipt"]}]
    [result] = ok(await http.post(http.topic_path("return"), json={"jobs": jobs}))["results"]
    assert result["status"] == 200
    changes = ok(await http.get("/activity", params={"topics": http.topic}))["activity"]
    last, first = [one for one in changes if one["operation"] == "return_jobs"]  # none of what consumers return
    assert (first["count"], last["count"]) == (1, 2)
    assert json.loads(first["filter"]) == {"jobs": [{"id": "a"}, {"id": "b"}, {"id": "c"}], "consumer": "worker-7"}
