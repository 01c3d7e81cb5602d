"""The lines of what needs a person on the first page of the console."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.console.rendering import Renderer
from deferd.console.views.now import cause_words, lines_of
from deferd.contract.operations.now import ALERT_CODES


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
        (
            {"code": "outbox_stopped", "database": "db:5432/shop", "text": "no relay"},
            "outbox_stopped|db:5432/shop",
            "console/system",
            "no relay",
        ),
        ({"code": "shelf_behind", "text": "it is away"}, "shelf_behind|", "console/system", "it is away"),
    ],
)
def test_each_alert_has_a_line_whether_it_is_of_a_topic_or_not(
    alert: dict[str, Any], row: str, link: str, line: str
) -> None:
    attention = {"left_out": 0, "complete": True, "next_due_at": None}
    lines = lines_of([{"severity": "critical", **alert}], None)
    values = {"attention": attention, "lines": lines, "acknowledged": [], "region": lambda *_, **__: ""}
    page = Renderer().render_regions("now.html", ["attention"], values)
    assert f'data-row="{row}"' in page
    assert f'<a href="{link}">{line}</a>' in page


def no_consumer(topic: str, severity: str = "critical", **facts: Any) -> dict[str, Any]:
    text = f"{topic}: 10 ready, no consumer"
    return {"severity": severity, "code": "no_consumer", "topic": topic, "text": text, **facts}


def test_many_alerts_of_one_cause_are_one_line() -> None:
    alerts = [no_consumer(f"t{number}", ready=10, oldest_age=number) for number in range(848)]
    for error in ("SMTP 421", "KeyError: 'email'"):
        dying = {"severity": "warning", "code": "dying", "dead": 3, "top_error": error}
        alerts += [{**dying, "topic": f"d{number}", "text": f"d{number}: 3 dead"} for number in range(5)]
    alerts += [{"severity": "warning", "code": "overload", "topic": f"o{number}", "text": "x"} for number in range(3)]
    lines = lines_of(alerts, None)
    assert [line.get("text") for line in lines] == [
        "848 topics have no consumer: 8,480 jobs are ready, the oldest for 14 min 7 s",
        "15 jobs died in 5 topics in the last hour: SMTP 421",
        "15 jobs died in 5 topics in the last hour: KeyError: 'email'",
        None, None, None,
    ]  # fmt: skip
    assert [len(line["shown"]) for line in lines] == [20, 5, 5, 1, 1, 1]
    assert len(lines_of(alerts, lines[0]["cause"])[0]["shown"]) == 848


def test_alerts_are_acknowledged_together_only_as_they_were() -> None:
    by_ops, by_other = ({"reason": "moved", "by": by, "until": "x"} for by in ("ops", "other"))
    alerts = [no_consumer(f"t{number}", acknowledged=by_ops if number else by_other) for number in range(6)]
    assert [(line["count"], len(line["shown"])) for line in lines_of(alerts, None)] == [(1, 1), (5, 5)]


def test_the_most_urgent_of_equal_alerts_counts() -> None:
    alerts = [no_consumer("a"), *(no_consumer(f"b{number}", "warning") for number in range(9))]
    [line] = lines_of(alerts, None)
    assert (line["severity"], line["equal"]) == ("critical", 10)


@pytest.mark.parametrize("code", ALERT_CODES)
def test_each_kind_of_alert_has_words_for_many(code: str) -> None:
    words = cause_words([{"code": code}] * 12)
    assert "12 " in words
    assert "None" not in words
