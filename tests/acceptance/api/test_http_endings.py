"""How deliveries and jobs end, over HTTP: snoozes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.http_calls import Http, ok, problem, refusal


async def test_a_snoozed_job_comes_back_without_an_attempt(http: Http) -> None:
    job = await http.reserve("later", max_attempts=1)
    assert "snoozes" not in job
    snooze = {"receipt": job["receipt"], "count": False, "delay": 0.1, "error": "not yet"}
    released = ok(await http.post(http.job_path("later", "release"), json=snooze))
    assert (released["state"], released["attempts"]) == ("delayed", 0)
    again = await http.pop_one()
    assert (again["attempt"], again["snoozes"], again["last_error"]) == (1, 1, "not yet")
    assert again["receipt"] != job["receipt"]
    problem(await http.post(http.job_path("later", "finish"), json={"receipt": job["receipt"]}), 409, "receipt_stale")
    ok(await http.post(http.job_path("later", "finish"), json={"receipt": again["receipt"]}))


@pytest.mark.parametrize("delay", [{}, {"delay": None}, {"delay": 0}, {"delay": 0.099}])
async def test_a_snooze_needs_a_delay(http: Http, delay: dict[str, Any]) -> None:
    await http.reserve("held")
    response = await http.post(http.job_path("held", "release"), json={"count": False, **delay})
    assert refusal(response, "body.delay") == "must be at least 0.1 seconds when `count` is false"
    assert (await http.get_job("held"))["state"] == "reserved"
