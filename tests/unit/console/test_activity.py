"""Changes in words."""

from __future__ import annotations

import pytest

from deferd.console.views.activity import action_words, subject_kind


@pytest.mark.parametrize(
    ("operation", "words"),
    [("pause_topic", "paused topic"), ("redrive_jobs", "redrove dead jobs of"), ("fly_a_kite", "fly a kite")],
)
def test_an_operation_has_words(operation: str, words: str) -> None:
    assert action_words({"operation": operation}) == words


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"operation": "cancel_job", "topic": "t", "subject": "a"}, "job"),
        ({"operation": "cancel_job", "subject": "a"}, None),
        ({"operation": "run_schedule", "topic": "t", "subject": "s"}, "schedule"),
        ({"operation": "put_calendar", "subject": "c"}, None),
        ({"operation": "pause_topic", "topic": "t"}, None),
    ],
)
def test_a_subject_has_a_page_or_not(change: dict[str, str], kind: str | None) -> None:
    assert subject_kind(change) == kind
