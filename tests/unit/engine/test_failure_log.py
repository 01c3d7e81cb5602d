"""Reasons of failed calls in the log: each once, and a bounded number."""

from __future__ import annotations

import pytest

from deferd.engine.scripts import FailureLog


def test_a_reason_is_logged_once_and_their_number_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog()
    for number in range(100):
        log.note("put", f"reason {number}")
        log.note("pop", "reason 0")
    assert caplog.text.count("calls fail: reason 0\n") == 1
    assert len(caplog.records) == 20
