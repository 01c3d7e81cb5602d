"""Batches over HTTP: puts that return the stored jobs, and cancels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.http_calls import Http, problem


async def test_a_batch_with_jobs_returns_what_single_puts_return(http: Http) -> None:
    await http.put_job("taken", delay=60, body="taken")
    jobs: list[dict[str, Any]] = [
        {"id": "new", "body": {"text": '"\u2028'}, "ttr": 5, "backoff": {"kind": "fixed", "seconds": 3}},
        {"id": "later", "delay": 7.5, "ttl": 3, "retain": 60, "max_attempts": 2},
        {"id": "taken", "on_conflict": "keep"},
        {"id": "taken"},
    ]
    batch = {"jobs": [{"topic": http.topic, **job} for job in jobs]}
    response = await http.post("/jobs/batch", params={"with_jobs": "true"}, json=batch)
    assert response.status_code == 200
    new, later, kept, refused = response.json()["results"]
    for result, status in ((new, 201), (later, 201), (kept, 200)):
        shown = (await http.get(http.job_path(result["id"]))).json()
        assert result.pop("job") == shown
        assert result == {
            "topic": http.topic,
            "id": shown["id"],
            "status": status,
            "durability": result["durability"],
            **({"state": "delayed"} if result is kept else {}),
        }
    assert (refused["status"], refused["code"]) == (409, "job_exists")
    assert "job" not in refused


async def test_without_the_parameter_a_batch_returns_no_jobs(http: Http) -> None:
    for params in ({}, {"with_jobs": "false"}):
        response = await http.post("/jobs/batch", params=params, json={"jobs": [{"topic": http.topic}]})
        [result] = response.json()["results"]
        assert set(result) == {"topic", "id", "status", "durability"}
    response = await http.post("/jobs/batch", params={"with_jobs": "perhaps"}, json={"jobs": [{"topic": http.topic}]})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "query.with_jobs")


async def test_jobs_of_a_topic_are_cancelled_together(http: Http) -> None:
    await http.reserve("held")
    await http.put_job("delayed", delay=60)
    await http.put_job("ready")
    jobs = [{"id": "held", "if_reserved": "refuse"}, {"id": "held"}, {"id": "ready"}, {"id": "delayed"}, {"id": "gone"}]
    response = await http.post(http.topic_path("cancel"), json={"jobs": jobs})
    assert response.status_code == 200
    assert response.json() == {
        "results": [
            {"id": "held", "status": 409, "code": "job_reserved"},
            {"id": "held", "status": 200, "was": "reserved"},
            {"id": "ready", "status": 200, "was": "ready"},
            {"id": "delayed", "status": 200, "was": "delayed"},
            {"id": "gone", "status": 404, "code": "job_not_found"},
        ]
    }
    response = await http.post(http.topic_path("cancel"), json={"jobs": [{"id": "no id!"}]})
    assert (response.status_code, response.json()["code"]) == (422, "validation")


@pytest.mark.parametrize("where", ["body.jobs.1.put", "body.put"])
async def test_a_batch_finish_takes_no_puts(http: Http, where: str) -> None:
    jobs: list[dict[str, Any]] = [{"id": job_id, "receipt": (await http.reserve(job_id))["receipt"]} for job_id in "ab"]
    body: dict[str, Any] = {"jobs": jobs}
    put = [{"topic": http.topic, "id": "next"}]
    (jobs[1] if "jobs" in where else body)["put"] = put
    refused = problem(await http.post(http.topic_path("finish"), json=body), 422, "validation")
    [error] = refused["errors"]
    assert (error["field"], error["value"]) == (where, put)
    assert error["message"] == "is not a known field"
    assert await http.counts() == {"reserved": 2}
