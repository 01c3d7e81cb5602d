"""The order of topics at a glance, and when the shelf needs a person."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.engine.inspection.attention import SORTS, Attention, TopicState, _alerts_of, overview_of
from deferd.engine.shelf import OPENING, Status


def state(topic: str, **known: int) -> TopicState:
    unknown: dict[str, Any] = dict.fromkeys(TopicState._fields, 0)
    times = dict.fromkeys(("first_due_ms", "next_due_ms", "oldest_ready_due_ms"), -1)
    facts = {**unknown, **times, **known, "topic": topic, "pause": None}
    return TopicState._make(facts[name] for name in TopicState._fields)


FOUND = Attention(
    now_ms=1000,
    names=["b", "empty", "a", "c"],
    topics={
        "a": state("a", delayed=1, ready=5, first_due_ms=300, oldest_ready_due_ms=90),
        "b": state("b", delayed=2, dead=1, first_due_ms=200),
        "c": state("c", delayed=2, ready=5, reserved=7, first_due_ms=400, oldest_ready_due_ms=80),
    },
    popped={"b": 2.5},
)


def order(sort: str, offset: int = 0, limit: int = 10) -> str:
    found = overview_of(FOUND, lambda _: True, sort=sort, offset=offset, limit=limit)
    return " ".join(row.topic for row in found.rows)


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("topic", "a b c empty"),
        ("delayed", "b c a empty"),
        ("ready", "a c b empty"),
        ("reserved", "c a b empty"),
        ("dead", "b a c empty"),
        ("oldest", "c a b empty"),
        ("due", "b a c empty"),
        ("rate", "b a c empty"),
    ],
)
def test_topics_are_in_the_order_that_is_asked_for(sort: str, names: str) -> None:
    assert order(sort) == names
    assert order(sort, offset=1, limit=2) == " ".join(names.split()[1:3])


def test_every_order_is_tested() -> None:
    marks = test_topics_are_in_the_order_that_is_asked_for.pytestmark  # type: ignore[attr-defined]
    assert {sort for sort, _ in marks[0].args[1]} == set(SORTS)


def test_sums_are_over_all_that_match_and_an_unknown_rate_is_none() -> None:
    found = overview_of(FOUND, lambda name: name != "a", sort="topic", offset=0, limit=1)
    assert (found.matching, found.totals, [row.rate for row in found.rows]) == (3, (4, 5, 7, 1), [2.5])
    without_consumers = Attention(names=["b"], topics=FOUND.topics, is_complete=False)
    unknown = overview_of(without_consumers, lambda _: True, sort="rate", offset=0, limit=1)
    assert ([row.rate for row in unknown.rows], unknown.is_complete) == ([None], False)


@pytest.mark.parametrize(
    ("shelf", "severities"),
    [
        (None, []),
        (Status(1, jobs=5, ahead_s=3600), []),
        (Status(1, jobs=5, ahead_s=3600, jobs_behind=2, behind_s=0.5), []),
        (Status(1, jobs=5, ahead_s=3600, jobs_behind=2, behind_s=5), ["warning"]),
        (Status(1, jobs=5, ahead_s=3600, jobs_behind=2, behind_s=1439), ["warning"]),
        (Status(1, jobs=5, ahead_s=3600, jobs_behind=2, behind_s=1440), ["critical"]),
        (Status(1, jobs=5, ahead_s=3600, jobs_behind=2, behind_s=9000), ["critical"]),
        (Status(1, jobs=5, jobs_behind=2, behind_s=0.9), []),
        (Status(1, jobs=5, jobs_behind=2, behind_s=1.1), ["critical"]),
        (Status(1, "the shelf's files cannot be used: No space left on device"), ["critical"]),
        (Status(1, OPENING), ["warning"]),
        (Status(1, jobs=5, ahead_s=3600, unreadable=2), ["critical"]),
        (Status(1, jobs=5, ahead_s=3600, jobs_behind=2, behind_s=5, unreadable=2), ["critical"]),
    ],
)
async def test_the_shelf_needs_somebody_before_a_job_is_late(shelf: Status | None, severities: list[str]) -> None:
    """Jobs are loaded an hour ahead: half an hour ahead is a warning, and six minutes are critical."""
    alerts = await _alerts_of(Attention(now_ms=1_000_000, shelf=shelf))
    assert [(one.code, one.severity) for one in alerts] == [("shelf_behind", severity) for severity in severities]
    for one in alerts:
        assert shelf is not None
        if shelf.unreadable:
            assert one.facts == {
                "why": "2 jobs on the shelf or more cannot be read, as a file is damaged; see `deferd audit`"
            }
        elif shelf.fault is None:
            assert one.facts["jobs"] == one.jobs == 2
            assert one.facts["first_due_at_ms"] == 1_000_000 + round((shelf.ahead_s / 2 - shelf.behind_s) * 1000)
        else:
            assert one.facts == {"why": shelf.fault}
