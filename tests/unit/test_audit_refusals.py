"""The audit log's lines about refused keys: each told, and none told without end."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from deferd.api.auth import audit_log
from deferd.api.auth.audit_log import DISTINCT_MAX, Asked, Refusals
from tests.waiting import until


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="deferd.audit")
    return caplog


def told(log: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """Key, call and how often it came again, of each line; then the lines are forgotten."""
    lines = [
        (getattr(record, "key", None), getattr(record, "call", None), getattr(record, "count", None))
        for record in log.records
    ]
    log.clear()
    return lines


async def test_the_same_refusal_is_told_at_once_and_then_counted(log: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for _ in range(1000):
        refusals.note("shop", Asked("GET /topics", None, "10.0.0.1"), "forbidden")
    refusals.note(None, Asked("GET /topics", None, "10.0.0.1"), "unauthorized")
    assert [("shop", "GET /topics", None), (None, "GET /topics", None)] == told(log)
    refusals.close()
    assert "forbidden: GET /topics by key shop from 10.0.0.1, 999 times more" in log.text
    assert [("shop", "GET /topics", 999)] == told(log)


async def test_refusals_that_all_differ_are_told_up_to_a_number(log: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for number in range(DISTINCT_MAX + 70):
        refusals.note(None, Asked(f"GET /{number}", None, "10.0.0.1"), "unauthorized")
    assert DISTINCT_MAX == len(told(log))
    refusals.close()
    assert "70 more refusals are not told one by one" in log.text
    assert [(None, None, 70)] == told(log)


async def test_what_came_again_is_told_by_itself_and_then_begins_anew(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "WINDOW_S", 0.01)
    refusals = Refusals()
    asked = Asked("POST /jobs", "orders", None)
    for _ in range(2):
        refusals.note("shop", asked, "forbidden")
        refusals.note("shop", asked, "forbidden")
        await until(lambda: len(log.records) >= 2, "what came again is told")
        assert [("shop", "POST /jobs", None), ("shop", "POST /jobs", 1)] == told(log)


async def test_a_topic_of_any_length_is_cut(log: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    refusals.note(None, Asked("GET /topics/{topic}", "x" * 5000, None), "unauthorized")
    assert len(log.text) < 500
    refusals.close()
