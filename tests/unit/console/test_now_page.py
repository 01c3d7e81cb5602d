"""The lines of what needs a person on the first page of the console."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.console.rendering import Renderer


@pytest.mark.parametrize(
    ("alert", "row", "link", "line"),
    [
        (
            {"code": "late", "topic": "a<b", "text": "a<b: 3 delayed and due"},
            "late|a&lt;b",
            "console/topics/a%3Cb",
            "<b>a&lt;b</b>: 3 delayed and due",
        ),
        (
            {"code": "timer", "shard": 3, "text": "shard 3: no timer runs"},
            "timer|3",
            "console/system",
            "shard 3: no timer runs",
        ),
        (
            {"code": "shard_unavailable", "shards": [1], "text": "shard 1 is away"},
            "shard_unavailable|",
            "console/system",
            "shard 1 is away",
        ),
        ({"code": "shelf_behind", "text": "it is away"}, "shelf_behind|", "console/system", "it is away"),
    ],
)
def test_each_alert_has_a_line_whether_it_is_of_a_topic_or_not(
    alert: dict[str, Any], row: str, link: str, line: str
) -> None:
    attention = {"alerts": [{"severity": "critical", **alert}], "left_out": 0, "complete": True, "next_due_at": None}
    page = Renderer().render_regions("now.html", ["attention"], {"attention": attention, "region": lambda *_, **__: ""})
    assert f'data-row="{row}"' in page
    assert f'<a href="{link}">{line}</a>' in page
