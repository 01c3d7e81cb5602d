"""The audit log's lines about refused requests: each is written, and their number is bounded."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from deferd.api.auth import audit_log
from deferd.api.auth.audit_log import DISTINCT_MAX, AuditedRequest, AuditLog
from tests.waiting import until


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="deferd.audit")
    return caplog


def lines_of(log: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """Key, operation and number of repeats of each line; clears the log."""
    lines = [
        (getattr(record, "key", None), getattr(record, "call", None), getattr(record, "count", None))
        for record in log.records
    ]
    log.clear()
    return lines


async def test_a_refusal_is_written_at_once_and_repeats_are_counted(log: pytest.LogCaptureFixture) -> None:
    audit = AuditLog()
    for _ in range(1000):
        audit.refused("shop", AuditedRequest("GET /topics", None, "10.0.0.1"), "forbidden")
    audit.refused(None, AuditedRequest("GET /topics", None, "10.0.0.1"), "unauthorized")
    assert [("shop", "GET /topics", None), (None, "GET /topics", None)] == lines_of(log)
    audit.close()
    assert "forbidden: GET /topics by key shop from 10.0.0.1, 999 times more" in log.text
    assert [("shop", "GET /topics", 999)] == lines_of(log)


async def test_the_number_of_different_refusals_is_bounded(log: pytest.LogCaptureFixture) -> None:
    audit = AuditLog()
    for number in range(DISTINCT_MAX + 70):
        audit.refused(None, AuditedRequest(f"GET /{number}", None, "10.0.0.1"), "unauthorized")
    assert DISTINCT_MAX == len(lines_of(log))
    audit.close()
    assert "70 more refusals are not logged one by one" in log.text
    assert [(None, None, 70)] == lines_of(log)


async def test_repeats_are_written_when_the_window_ends_and_then_a_new_one_begins(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "WINDOW_S", 0.01)
    audit = AuditLog()
    request = AuditedRequest("POST /jobs", "orders", None)
    for _ in range(2):
        audit.refused("shop", request, "forbidden")
        audit.refused("shop", request, "forbidden")
        await until(lambda: len(log.records) >= 2, "the repeats are written")
        assert [("shop", "POST /jobs", None), ("shop", "POST /jobs", 1)] == lines_of(log)


async def test_a_topic_of_any_length_is_cut(log: pytest.LogCaptureFixture) -> None:
    audit = AuditLog()
    audit.refused(None, AuditedRequest("GET /topics/{topic}", "x" * 5000, None), "unauthorized")
    assert len(log.text) < 500
    audit.close()
