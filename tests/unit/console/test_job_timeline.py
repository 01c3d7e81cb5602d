"""The life of a job as a list."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.console.views.job import predicted_retries, timeline, wait_after

EXPONENTIAL = {"kind": "exponential", "base": 2, "cap": 60, "jitter": 0}


def job(state: str, **fields: Any) -> dict[str, Any]:
    return {
        "state": state,
        "created_at": "2026-01-01T00:00:00.000Z",
        "due_at": "2026-01-01T01:00:00.000Z",
        "attempts": 0,
        "max_attempts": None,
        "backoff": EXPONENTIAL,
        "ttl": None,
        **fields,
    }


def titles(shown: dict[str, Any]) -> list[str]:
    return [entry["title"] for entry in timeline(shown)]


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (EXPONENTIAL, [2, 4, 8, 16, 32, 60, 60]),
        ({"kind": "fixed", "seconds": 10, "jitter": 0}, [10, 10, 10]),
        ({"kind": "schedule", "seconds": [1, 5], "then": "dead"}, [1, 5, None]),
        ({"kind": "schedule", "seconds": [1, 5], "then": "repeat_last"}, [1, 5, 5, 5]),
    ],
)
def test_waits_are_those_of_the_service(backoff: dict[str, Any], waits: list[float | None]) -> None:
    assert [wait_after(backoff, number) for number in range(1, len(waits) + 1)] == waits
    assert wait_after({"kind": "exponential", "base": 1000, "cap": 212}, 1_000_000) == 212


def test_a_delayed_job_shows_when_its_next_attempts_would_be() -> None:
    entries = timeline(job("delayed", max_attempts=3))
    assert [(entry["title"], entry["at"][11:19], entry["kind"]) for entry in entries] == [
        ("Put", "00:00:00", "past"),
        ("Due", "01:00:00", "predicted"),
        ("Attempt 2", "01:00:02", "predicted"),
        ("Attempt 3", "01:00:06", "predicted"),
        ("If attempt 3 fails", "01:00:06", "predicted"),
    ]
    assert entries[2]["text"] == "if attempt 1 fails at once: 2 s later"
    assert entries[-1]["text"] == "dead: no attempts left"


def test_attempts_that_failed_are_shown_with_their_errors() -> None:
    log = [
        {"attempt": 2, "ended_at": "2026-01-01T00:30:00.000Z", "how": "released", "by": "w1", "error": "SMTP 421"},
        {"attempt": 3, "ended_at": "2026-01-01T00:40:00.000Z", "how": "lease_ended"},
    ]
    entries = timeline(job("delayed", attempts=3, attempts_log=log))
    assert [entry["title"] for entry in entries[:5]] == [
        "Put", "1 earlier attempt", "Attempt 2 failed", "Attempt 3 ran out of its lease", "Next attempt due"
    ]  # fmt: skip
    assert (entries[2]["text"], entries[2]["error"]) == ("by w1", "SMTP 421")


def test_of_a_job_that_may_run_at_any_time_only_the_wait_is_predicted() -> None:
    [entry] = predicted_retries(job("reserved", attempts=2))
    assert (entry["title"], entry["text"], entry["at"]) == ("If attempt 2 fails", "again after 4 s", None)
    [entry] = predicted_retries(job("ready", backoff={**EXPONENTIAL, "jitter": 0.25}))
    assert entry["text"] == "again after 2 s ±25%"


def test_each_state_has_its_entry() -> None:
    assert titles(job("ready"))[:2] == ["Put", "Due"]
    reserved = job("reserved", attempts=1, reserved_by="w", reserved_until="2026-01-01T02:00:00.000Z")
    assert titles(reserved)[:3] == ["Put", "Attempt 1 is running", "Lease ends"]
    dead = timeline(job("dead", dead_at="2026-01-01T03:00:00.000Z", reason="buried", last_error="bad"))
    assert (dead[-1]["title"], dead[-1]["text"], dead[-1]["error"]) == ("Dead", "buried by a consumer", "bad")
    assert timeline(job("dead"))[-1]["title"] == "Dead"  # died before its instant was kept
    assert titles(job("finished", finished_at="2026-01-01T02:00:00.000Z"))[-1] == "Finished"
    limits = job("delayed", ttl=60, deadline_at="2026-01-01T05:00:00.000Z")
    assert {"Deadline", "Expires"} <= set(titles(limits))
