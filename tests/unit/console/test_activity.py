"""Changes in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from deferd.console.api_calls import ApiRefused
from deferd.console.rendering import Renderer
from deferd.console.views.activity import action_words, subject_page, task
from deferd.console.visit import Visit


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


class VisitWithoutAShard:
    """A visit while the store can't be reached for the jobs of a task."""

    now_ms = 0

    def wants(self, *_regions: str) -> bool:
        return True

    async def read(self, _path: str, became: str | None = None) -> Any:
        if became is not None:
            raise ApiRefused(503, {"detail": "down"})
        return {"id": "5f0c", "kind": "redrive", "done": 2, "total": 9}

    async def read_or_none(self, missing: Collection[int], path: str, became: str) -> Any:
        return None if 503 in missing else await self.read(path, became)

    def render(self, template: str, **values: Any) -> str:
        context = {**values, "region": lambda *_: "", "may": lambda _: True, "static": ""}
        return Renderer().render_regions(template, ["became"], context)


async def test_a_task_has_a_page_while_its_jobs_cannot_be_looked_up() -> None:
    page = cast("str", await task(cast("Visit", VisitWithoutAShard()), "5f0c"))
    assert "That can&#39;t be looked up now." in page
