"""The life of a job as a list."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.console.views.job import predicted_retries, timeline, timeline_of_gone, wait_after

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
    handed_out = timeline(reserved | {"reserved_since": "2026-01-01T01:00:00.000Z"})[1]
    assert (handed_out["title"], handed_out["text"]) == ("Attempt 1 handed out", "to w")
    dead = timeline(job("dead", dead_at="2026-01-01T03:00:00.000Z", reason="buried", last_error="bad"))
    assert (dead[-1]["title"], dead[-1]["text"], dead[-1]["error"]) == ("Dead", "buried by a consumer", "bad")
    assert timeline(job("dead"))[-1]["title"] == "Dead"  # died before its instant was kept
    assert titles(job("finished", finished_at="2026-01-01T02:00:00.000Z"))[-1] == "Finished"
    limits = job("delayed", ttl=60, deadline_at="2026-01-01T05:00:00.000Z")
    assert {"Deadline", "Expires"} <= set(titles(limits))


def test_the_attempt_that_succeeded_is_not_an_earlier_one() -> None:
    finished = {"finished_at": "2026-01-01T02:00:00.000Z", "finished_by": "w1"}
    entries = timeline(job("finished", attempts=1, **finished))
    assert [(entry["title"], entry["text"]) for entry in entries] == [("Put", ""), ("Finished", "in attempt 1 by w1")]
    assert titles(job("finished", attempts=3, **finished)) == ["Put", "2 earlier attempts", "Finished"]
    assert titles(job("reserved", attempts=3))[:3] == ["Put", "2 earlier attempts", "Attempt 3 is running"]


EVENTS: list[dict[str, Any]] = [
    {"event": "put", "at": "2026-01-01T00:00:00.000Z"},
    {"event": "popped", "at": "2026-01-01T00:10:00.000Z", "attempt": 1, "consumer": "w1"},
    {"event": "released", "at": "2026-01-01T00:10:02.500Z", "attempt": 1, "error": "SMTP 421"},
    {"event": "popped", "at": "2026-01-01T00:20:00.000Z", "attempt": 2},
]


def test_events_tell_when_and_to_whom_a_job_was_handed_out() -> None:
    log = [{"attempt": 1, "ended_at": "2026-01-01T00:10:02.500Z", "how": "released", "by": "w1", "error": "SMTP 421"}]
    entries = timeline(
        job("finished", attempts=2, attempts_log=log, finished_at="2026-01-01T00:20:00.250Z", finished_by="w2"), EVENTS
    )
    assert [(entry["title"], entry["text"]) for entry in entries] == [
        ("Put", ""),
        ("Attempt 1 handed out", "to w1"),
        ("Attempt 1 failed", "by w1 after 2.5 s"),
        ("Attempt 2 handed out", ""),
        ("Finished", "in attempt 2 by w2 after 250 ms"),
    ]


@pytest.mark.parametrize(
    ("end", "entry"),
    [
        ({"event": "finished", "attempt": 2}, ("Finished", "in attempt 2 after 1.0 s", None)),
        ({"event": "dead", "reason": "buried", "error": "bad"}, ("Dead", "buried by a consumer", "bad")),
        ({"event": "cancelled", "was": "reserved"}, ("Cancelled", "it was reserved", None)),
        (
            {"event": "lease_ended", "attempt": 2, "reason": "time_limit"},
            ("Attempt 2 took longer than its time limit", "after 1.0 s", None),
        ),
    ],
)
def test_events_tell_what_became_of_a_job_that_is_gone(end: dict[str, Any], entry: tuple[str, str, str | None]) -> None:
    entries = timeline_of_gone([*EVENTS, {**end, "at": "2026-01-01T00:20:01.000Z"}])
    assert [one["title"] for one in entries[:-1]] == [
        "Put", "Attempt 1 handed out", "Attempt 1 failed", "Attempt 2 handed out"
    ]  # fmt: skip
    assert (entries[-1]["title"], entries[-1]["text"], entries[-1]["error"]) == entry
    assert timeline_of_gone([]) == []
