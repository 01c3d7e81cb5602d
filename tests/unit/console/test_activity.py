"""Changes in words."""

from __future__ import annotations

import pytest

from deferd.console.views.activity import action_words, subject_page


@pytest.mark.parametrize(
    ("operation", "words"),
    [("pause_topic", "paused topic"), ("redrive_jobs", "redrove dead jobs of"), ("fly_a_kite", "fly a kite")],
)
def test_an_operation_has_words(operation: str, words: str) -> None:
    assert action_words({"operation": operation}) == words


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("change", "page"),
    [
        ({"operation": "cancel_job", "topic": "t", "subject": "a:1"}, "console/topics/t/jobs/a:1"),
        ({"operation": "cancel_job", "subject": "a"}, None),
        ({"operation": "run_schedule", "topic": "t", "subject": "s"}, "console/schedules/s"),
        ({"operation": "delete_schedule", "topic": "t", "subject": "s"}, None),
        ({"operation": "put_calendar", "subject": "c"}, "console/calendars/c"),
        ({"operation": "redrive_jobs", "topic": "t", "subject": "5f0c"}, "console/tasks/5f0c"),
        ({"operation": "stop_task", "topic": "t", "subject": "5f0c"}, "console/tasks/5f0c"),
        ({"operation": "redrive_jobs", "topic": "t"}, None),
        ({"operation": "pause_topic", "topic": "t"}, None),
    ],
)
def test_a_subject_has_a_page_or_not(change: dict[str, str], page: str | None) -> None:
    assert subject_page({**change, "at": "1970-01-02T00:00:00.000Z"}, 2 * DAY_MS) == page


def test_a_task_has_a_page_as_long_as_it_is_kept() -> None:
    change = {"operation": "purge_topic", "subject": "5f0c", "at": "1970-01-01T00:00:00.000Z"}
    assert subject_page(change, 7 * DAY_MS - 1) == "console/tasks/5f0c"
    assert subject_page(change, 7 * DAY_MS) is None
