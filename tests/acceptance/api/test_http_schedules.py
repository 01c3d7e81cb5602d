"""Schedules over HTTP: every URL, what it returns, and what it refuses."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from deferd.engine.zones import TZDATA_VERSION
from tests.acceptance.http_calls import Http, Json, moment, ok, problem, refusal


@pytest.fixture
def name() -> str:
    return f"s-{uuid.uuid4().hex}"


async def put_schedule(http: Http, name: str, status: int = 201, **fields: Any) -> Json:
    timing = {} if {"cron", "every", "at"} & fields.keys() else {"cron": "0 3 * * *"}
    body = {"topic": http.topic, **timing, **fields}
    return ok(await http.put(f"/schedules/{name}", json=body), status)


async def test_a_schedule_is_put_shown_and_deleted(http: Http, name: str) -> None:
    fields = {
        "job": {"body": {"n": 1}, "ttr": 5, "tags": ["x"], "ttl": None},
        "zone": "Europe/Berlin",
        "spread": 30,
        "max_runs": 3,
        "overlap": "skip",
        "catch_up": "all",
        "start_at": "2020-01-01T00:00:00+01:00",
    }
    body = {"topic": http.topic, "cron": "0 3 * * *", **fields}
    response = await http.put(f"/schedules/{name}", json=body)
    assert response.headers["location"] == f"/schedules/{name}"
    shown = ok(response, 201)
    assert {key: shown[key] for key in fields if key != "start_at"} == {
        k: v for k, v in fields.items() if k != "start_at"
    }
    assert moment(shown["next_run_at"]) > 0
    assert shown["next_job"].startswith(f"{name}:")
    assert (shown["last_run_at"], shown["last_job"], shown["runs"], shown["ended"]) == (None, None, 0, False)
    assert ok(await http.get(f"/schedules/{name}")) == shown
    assert ok(await http.put(f"/schedules/{name}", json=body, headers={"If-None-Match": '"etag"'})) == shown
    job = await http.get_job(shown["next_job"])
    assert (job["state"], job["due_at"], job["body"], job["ttr"]) == ("delayed", shown["next_run_at"], {"n": 1}, 5)
    response = await http.post(f"/schedules/{name}/run", json={})
    job = ok(response, 201)
    assert response.headers["location"] == f"/jobs/{http.topic}/{job['id']}"
    assert "durability" in job
    assert ok(await http.delete(f"/schedules/{name}")) == shown
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")):
        missing = problem(await http.client.request(method, f"/schedules/{name}{path}"), 404, "schedule_not_found")
        assert missing["schedule"] == name
    problem(await http.get(f"/schedules/{name}/preview"), 404, "schedule_not_found")


async def test_a_run_fires_in_real_time(http: Http, name: str) -> None:
    shown = await put_schedule(http, name, every=1, job={"body": [1]})
    popped = await http.pop_one(wait=10)
    assert popped["id"] == shown["next_job"]
    assert popped["body"] == [1]
    second = await http.pop_one(wait=10)
    assert moment(second["due_at"]) == moment(popped["due_at"]) + 1
    after = ok(await http.get(f"/schedules/{name}"))
    assert after["runs"] >= 2
    assert after["last_job"] >= second["id"]
    metrics = (await http.get("/metrics")).text
    assert 'deferd_schedule_runs_total{outcome="run",topic="' in metrics
    await http.delete(f"/schedules/{name}")


async def test_the_list_has_pages_and_filters(http: Http, name: str) -> None:
    names = [f"{name}-{number}" for number in range(5)]
    for one in names:
        await put_schedule(http, one, job={"body": one})
    ok(await http.post(f"/schedules/{names[1]}/pause"))

    async def listed(**query: Any) -> list[str]:
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = ok(await http.get("/schedules", params={"limit": 2, **query, **cursor}))
            assert len(page["schedules"]) <= 2
            found += [one["name"] for one in page["schedules"]]
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    assert await listed(prefix=name) == names
    assert await listed(topic=http.topic) == names
    assert await listed(prefix=name, paused="true") == names[1:2]
    assert await listed(topic=http.topic, paused="false", prefix=f"{name}-") == [names[0], *names[2:]]
    assert await listed(prefix=f"{name}-9") == []
    page = ok(await http.get("/schedules", params={"prefix": name, "jobs": "false"}))
    assert [one["name"] for one in page["schedules"] if "job" not in one] == names
    page = ok(await http.get("/schedules", params={"prefix": name}))
    assert [one["job"]["body"] for one in page["schedules"]] == names
    for one in names:
        ok(await http.delete(f"/schedules/{one}"))


async def test_a_preview_shows_runs_with_the_offset_of_the_zone(http: Http) -> None:
    body: Json = {"topic": http.topic, "cron": "30 2 * * *", "zone": "Europe/Berlin"}
    body["start_at"] = "2027-03-27T12:00:00Z"
    preview = ok(await http.post("/schedules/preview", params={"count": 1}, json=body))
    [run] = preview["runs"]
    assert run == {"at": "2027-03-28T03:00:00+02:00", "utc": "2027-03-28T01:00:00Z"}
    assert preview["tzdata"] == TZDATA_VERSION
    assert len(ok(await http.post("/schedules/preview", json=body))["runs"]) == 20


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"cron": "61 * * * *"}, "cron", ""),
        ({"cron": "0 0 30 2 *"}, "cron", ""),
        ({"every": 0}, "every", "at least 1"),
        ({"every": 60, "zone": "Mars/Base"}, "zone", "time zone"),
        ({"at": ["25:00"]}, "at.0", "HH:MM"),
        ({"at": ["09:00"], "days": ["monday"]}, "days.0", "mon"),
        ({"every": 60, "overlap": "perhaps"}, "overlap", "allow"),
        ({"every": 60, "catch_up": "some"}, "catch_up", "none"),
        ({"every": 60, "max_runs": 0}, "max_runs", "at least 1"),
        ({"every": 60, "spread": -1}, "spread", "at least 0 seconds"),
        ({"every": 60, "jitter": 5}, "jitter", "not a known field"),
        ({"every": 60, "job": {"delay": 5}}, "job.delay", "not a known field"),
        ({"every": 60, "job": {"ttr": 0}}, "job.ttr", "at least"),
        ({"every": 60, "paused": "yes"}, "paused", "true or false"),
        ({"every": 60, "more": 1}, "more", "not a known field"),
    ],
)
async def test_invalid_values_are_named(http: Http, name: str, fields: Json, field: str, words: str) -> None:
    body = {"topic": http.topic, **fields}
    for response in (
        await http.put(f"/schedules/{name}", json=body),
        await http.post("/schedules/preview", json=body),
    ):
        assert words in refusal(response, f"body.{field}")
    problem(await http.get(f"/schedules/{name}"), 404, "schedule_not_found")


async def test_what_contradicts_itself_is_refused(http: Http, name: str) -> None:
    for fields in ({}, {"every": 5, "cron": "@daily"}, {"every": 5, "days": ["mon"]}):
        problem(await http.put(f"/schedules/{name}", json={"topic": http.topic, **fields}), 422, "validation")
    assert "must match" in refusal(await http.put("/schedules/-x", json={"topic": http.topic, "every": 5}), "path.name")
    assert "1000" in refusal(await http.post("/schedules/preview?count=1001", json={}), "query.count")
    assert "cursor" in refusal(await http.get("/schedules?cursor=AAAA"), "query.cursor")
    assert "known parameter" in refusal(await http.get(f"/schedules/{name}?x=1"), "query.x")
    problem(
        await http.put(f"/schedules/{name}", content=b"{", headers={"content-type": "application/json"}),
        422,
        "validation",
    )
    problem(
        await http.put(f"/schedules/{name}", content=b"x", headers={"content-type": "text/plain"}),
        415,
        "unsupported_media_type",
    )
    problem(await http.post(f"/schedules/{name}"), 405, "method_not_allowed")


# Windows, spread and calendars


@pytest.mark.parametrize(
    ("window", "field", "message"),
    [
        ({"from": "9:00"}, "body.window.from", "HH:MM"),
        ({"from": "09:00", "to": "09:00"}, "body.window.to", "never opens"),
        ({"zone": "Europe/Atlantis"}, "body.window.zone", "not a time zone"),
        ({"days": ["monday"]}, "body.window.days.0", "must be 'mon'"),
        ({"except": ["24.12.2026"]}, "body.window.except.0", "must be a date, YYYY-MM-DD"),
        ({"except": [1]}, "body.window.except.0", "must be a date, YYYY-MM-DD"),
        ({"except": ["2026-W52-4"]}, "body.window.except.0", "must be a date, YYYY-MM-DD"),
        ({"except": ["20261224"]}, "body.window.except.0", "must be a date, YYYY-MM-DD"),
        ({"untill": "09:00"}, "body.window.untill", "is not a known field"),
        ([], "body.window", "at least 1 items"),
        ([{}, {"to": "25:00"}], "body.window.1.to", "24:00"),
        ("no such", "body.window", "must match"),
        ("unknown", "body.window", "is not the name of a calendar"),
        (5, "body.window", "must be a JSON object"),
    ],
)
async def test_a_wrong_window_is_named(http: Http, window: Any, field: str, message: str) -> None:
    assert message in refusal(await http.post("/jobs", json={"topic": http.topic, "id": "a", "window": window}), field)
    assert not await http.has_job("a")


@pytest.mark.parametrize(
    ("window", "field", "message"),
    [
        ({"days": ["monday"]}, "body.window.days.0", "must be 'mon'"),
        ([{}, {"zone": "Nowhere"}], "body.window.1.zone", "not a time zone"),
        ("unknown", "body.window", "is not the name of a calendar"),
    ],
)
async def test_the_path_of_a_wrong_window_is_that_of_its_place(
    http: Http, window: Any, field: str, message: str
) -> None:
    batch = {"jobs": [{"topic": http.topic}, {"topic": http.topic, "id": "a", "window": window}]}
    of_job = field.replace("body", "body.jobs.1")
    assert message in refusal(await http.post("/jobs/batch", json=batch), of_job)
    assert message in refusal(await http.put(http.topic_path(), json={"window": window}), field)
    await http.put_job("b", delay=60)
    assert message in refusal(await http.patch(http.job_path("b"), json={"window": window}), field)
    await http.reserve("held")
    chain = {"put": [{"topic": http.topic, "window": window}]}
    of_put = field.replace("body", "body.put.0")
    assert message in refusal(await http.post(http.job_path("held", "finish"), json=chain), of_put)
    assert not await http.has_job("a")


async def test_a_wrong_spread_is_named(http: Http) -> None:
    response = await http.post("/jobs", json={"topic": http.topic, "spread": 86_401})
    assert refusal(response, "body.spread") == "must be at most 86400 seconds"


async def test_calendars_are_put_listed_and_deleted(http: Http) -> None:
    name, window = f"office.{http.topic}", {"days": ["mon"], "to": "12:00"}
    path = f"/calendars/{name}"
    created = await http.put(path, json={"windows": [window]})
    assert (created.status_code, created.json()) == (201, {"name": name, "windows": [window]})
    assert (await http.put(path, json={"windows": [window]})).status_code == 200
    assert ok(await http.get(path)) == {"name": name, "windows": [window]}
    assert {"name": name, "windows": [window]} in ok(await http.get("/calendars"))["calendars"]
    assert ok(await http.delete(path)) == {"name": name, "deleted": True}
    response = await http.put(path, json={"windows": [{"from": "01:00", "to": "01:00"}]})
    assert "never opens" in refusal(response, "body.windows.0.to")
    refusal(await http.put(path, json={"windows": []}), "body.windows")
