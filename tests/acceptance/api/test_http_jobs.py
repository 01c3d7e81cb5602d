"""Jobs over HTTP: puts, batches, one job by its id, deliveries; what every door does is in tests/conformance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.http_calls import Http, ok, problem, refusal, seconds_from_now
from tests.openapi_document import openapi_document


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


# One job by its id


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


async def test_an_empty_change_changes_nothing(http: Http) -> None:
    job = await http.put_job("same", delay=60)
    assert ok(await http.patch(http.job_path("same"), json={})) == job


# Batches that return jobs, and cancels of many


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


# Deliveries


@pytest.mark.parametrize(
    ("jobs", "field"),
    [([], "body.jobs"), ([{"id": "j"}] * 1001, "body.jobs"), ([{"id": "a"}, {"id": "a/b"}], "body.jobs.1.id")],
    ids=["empty", "1001", "bad id"],
)
async def test_a_bad_batch_finish_is_refused_whole(http: Http, jobs: list[dict[str, str]], field: str) -> None:
    await http.reserve("a")
    refusal(await http.post(http.topic_path("finish"), json={"jobs": jobs}), field)
    assert (await http.get_job("a"))["state"] == "reserved"


async def test_a_check_needs_receipts(http: Http) -> None:
    refusal(await http.post(f"/topics/{http.topic}/check", json={"jobs": [{"id": "a"}]}), "body.jobs.0.receipt")


@pytest.mark.parametrize("delay", [{}, {"delay": None}, {"delay": 0}, {"delay": 0.099}])
async def test_a_snooze_needs_a_delay(http: Http, delay: dict[str, Any]) -> None:
    await http.reserve("held")
    response = await http.post(http.job_path("held", "release"), json={"count": False, **delay})
    assert refusal(response, "body.delay") == "must be at least 0.1 seconds when `count` is false"
    assert (await http.get_job("held"))["state"] == "reserved"


async def test_a_finish_shows_the_jobs_that_it_has_put(http: Http) -> None:
    held = await http.reserve("kept", retain=60)
    puts = [{"topic": http.topic, "id": "second", "delay": 60}, {"topic": http.topic, "body": 7}]
    finish = {"receipt": held["receipt"], "put": puts}
    finished = ok(await http.post(http.job_path("kept", "finish"), json=finish))
    [second, third] = finished.pop("put")
    assert finished == {"topic": http.topic, "id": "kept", "state": "finished"}
    assert second == {"topic": http.topic, "id": "second", "status": 201, "durability": second["durability"]}
    assert (await http.get_job(third["id"]))["body"] == 7
    assert "put" not in ok(await http.post(http.job_path("kept", "finish"), json=finish))


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


# Calls whose body is optional

OPTIONAL = [
    pytest.param(path, id=operation["operationId"])
    for path, operations in openapi_document()["paths"].items()
    for operation in operations.values()
    if "requestBody" in operation and not operation["requestBody"].get("required", False)
]
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", OPTIONAL)
async def test_no_body_null_and_an_empty_object_are_the_same(http: Http, path: str) -> None:
    for number, body in enumerate([b"", b"null", b" \r\n\tnull ", b"{}"]):
        each = Http(http.client, f"{http.topic}.{number}")
        await each.reserve("held")
        await each.client.put(f"/schedules/{each.topic}", json={"topic": each.topic, "cron": "0 0 1 1 *"})
        url = path.format(topic=each.topic, id="held", name=each.topic, group="acme")
        response = await each.post(url, content=body, headers=JSON, params=no_wait(path))
        is_accepted = response.is_success or response.json()["code"] == "push_not_found"  # nothing is pushed here
        assert is_accepted, (body, response.text)


@pytest.mark.parametrize("path", OPTIONAL)
async def test_no_other_value_stands_for_no_body(http: Http, path: str) -> None:
    url = path.format(topic=http.topic, id="held", name="held", group="acme")
    for body in (b" ", b"nul", b"null null", b"[]", b"0", b"false", b'""'):
        refusal(await http.post(url, content=body, headers=JSON, params=no_wait(path)), "body")


def no_wait(path: str) -> dict[str, int]:
    """The query with which a pop does not wait."""
    return {"wait": 0} if path.endswith("/pop") else {}
