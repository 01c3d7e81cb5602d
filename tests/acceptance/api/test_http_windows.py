"""What HTTP says of wrong opening hours and spreads, and how it shows calendars; tests/conformance has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.http_calls import Http, ok, refusal


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
