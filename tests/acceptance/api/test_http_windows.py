"""Opening hours and spread over HTTP: puts by both paths, batches, topics, changes, retries, and calendars."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd.engine.timing.openings import spread_of
from tests.acceptance.http_calls import Http, moment, ok, problem, refusal


def closed_now() -> dict[str, Any]:
    """A window that opens in about two hours, for an hour."""
    begin = datetime.now(UTC) + timedelta(hours=2)
    return {"from": f"{begin:%H:%M}", "to": f"{begin + timedelta(hours=1):%H:%M}"}


def open_now() -> dict[str, Any]:
    begin = datetime.now(UTC) - timedelta(hours=2)
    return {"from": f"{begin:%H:%M}", "to": f"{begin + timedelta(hours=4):%H:%M}"}


def opening(window: dict[str, Any]) -> str:
    return f"T{window['from']}:00.000Z"


@pytest.mark.parametrize("general", [False, True], ids=["direct", "general"])
async def test_a_put_shows_when_it_is_due_and_what_was_asked_for(http: Http, general: bool) -> None:
    window = closed_now()
    fields: dict[str, Any] = {"tags": ["x"]} if general else {}  # only the general path knows tags
    job = await http.put_job("a", window=window, **fields)
    assert job["due_at"].endswith(opening(window))
    assert abs(moment(job["asked_for"]) - moment(job["created_at"])) < 5
    assert job["window"] == window
    assert await http.get_job("a") == {name: value for name, value in job.items() if name != "durability"}
    spread = await http.put_job("b", run_at="2030-01-15T00:00:00Z", spread=3600, **fields)
    assert moment(spread["due_at"]) == moment("2030-01-15T00:00:00.000Z") + spread_of("b", 3_600_000) / 1000
    assert (spread["asked_for"], spread["spread"]) == ("2030-01-15T00:00:00.000Z", 3600)
    ready = await http.put_job("c", window=open_now(), **fields)
    assert ready["state"] == "ready"
    assert "asked_for" not in ready


async def test_batches_and_a_batch_with_jobs_are_placed(http: Http) -> None:
    window = closed_now()
    jobs = [{"topic": http.topic, "id": f"j{each}", "window": window, "spread": 60} for each in range(3)]
    jobs.append({"topic": http.topic, "id": "plain"})
    response = ok(await http.post("/jobs/batch?with_jobs=true", json={"jobs": jobs}))
    for number, result in enumerate(response["results"][:3]):
        due = datetime.fromtimestamp(moment(result["job"]["due_at"]) - spread_of(f"j{number}", 60_000) / 1000, UTC)
        assert f"{due:T%H:%M}:00.000Z" == opening(window)
    assert response["results"][3]["job"]["state"] == "ready"


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


async def test_a_retry_waits_for_the_opening(http: Http) -> None:
    window = closed_now()
    await http.reserve("a")
    ok(await http.post(http.job_path("a", "release"), json={"delay": 60}))
    changed = ok(await http.patch(http.job_path("a"), json={"window": window, "delay": 0}))
    assert changed["due_at"].endswith(opening(window))
    again = ok(await http.patch(http.job_path("a"), json={"window": None, "delay": 0}))
    assert again["state"] == "ready"
    ok(await http.patch(http.job_path("a"), json={"window": window}))
    held = await http.pop_one()
    released = ok(await http.post(http.job_path("a", "release"), json={"receipt": held["receipt"], "delay": 0}))
    assert released["due_at"].endswith(opening(window))
    assert moment((await http.get_job("a"))["asked_for"]) < moment(released["due_at"])


async def test_a_topic_has_defaults_that_a_put_may_override(http: Http) -> None:
    window = closed_now()
    settings = ok(await http.put(http.topic_path(), json={"window": window, "spread": 60}))["settings"]
    assert (settings["window"], settings["spread"]) == (window, 60)
    job = await http.put_job("a")
    due = datetime.fromtimestamp(moment(job["due_at"]) - spread_of("a", 60_000) / 1000, UTC)
    assert f"{due:T%H:%M}:00.000Z" == opening(window)
    free = await http.put_job("b", window=None, spread=None)
    assert free["state"] == "ready"
    assert {"window", "spread", "asked_for"}.isdisjoint(free)
    ok(await http.put(http.topic_path(), json={}))
    assert (await http.put_job("c"))["state"] == "ready"


async def test_calendars_are_put_listed_and_deleted(http: Http) -> None:
    name, window = f"office.{http.topic}", closed_now()
    path = f"/calendars/{name}"
    problem(await http.get(path), 404, "calendar_not_found")
    created = await http.put(path, json={"windows": [window]})
    assert (created.status_code, created.json()) == (201, {"name": name, "windows": [window]})
    assert (await http.put(path, json={"windows": [window]})).status_code == 200
    assert ok(await http.get(path)) == {"name": name, "windows": [window]}
    assert {"name": name, "windows": [window]} in ok(await http.get("/calendars"))["calendars"]
    for fields in ({}, {"tags": ["x"]}):
        job = await http.put_job(f"a{len(fields)}", window=name, **fields)
        assert job["due_at"].endswith(opening(window))
        assert job["window"] == name
    assert ok(await http.delete(path)) == {"name": name, "deleted": True}
    problem(await http.delete(path), 404, "calendar_not_found")
    response = await http.put(path, json={"windows": [{"from": "01:00", "to": "01:00"}]})
    assert "never opens" in refusal(response, "body.windows.0.to")
    refusal(await http.put(path, json={"windows": []}), "body.windows")


async def test_a_put_with_a_calendar_that_was_deleted_elsewhere_is_refused_or_open(http: Http) -> None:
    name = f"brief.{http.topic}"
    ok(await http.put(f"/calendars/{name}", json={"windows": [closed_now()]}), 201)
    await http.put_job("a", window=name)
    ok(await http.delete(f"/calendars/{name}"))
    response = await http.post("/jobs", json={"topic": http.topic, "id": "b", "window": name})
    assert "is not the name of a calendar" in refusal(response, "body.window")
