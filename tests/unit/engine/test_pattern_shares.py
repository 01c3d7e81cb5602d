"""How a pop by patterns shares what it wants among topics, and whose turn it is."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.engine.pattern_waits import PatternGroup, _shares
from deferd.engine.topic_search import TopicSelection
from tests.drawn_input import drawn


@pytest.mark.parametrize(
    ("wanted", "ready", "shares"),
    [
        (1, [0], [1]),
        (10, [0, 0, 0], [4, 3, 3]),
        (10, [50, 2, 50], [4, 2, 4]),
        (10, [1, 1], [1, 1]),
        (3, [9, 0, 1], [1, 1, 1]),
    ],
)
def test_topics_get_equal_shares_and_leave_what_they_cannot_use(
    wanted: int, ready: list[int], shares: list[int]
) -> None:
    assert _shares(wanted, ready) == shares


@drawn(300)
@given(ready=st.lists(st.integers(0, 20), min_size=1, max_size=8), more=st.integers(0, 50))
def test_shares_never_exceed_what_is_wanted_nor_leave_out_a_topic(ready: list[int], more: int) -> None:
    wanted = len(ready) + more
    shares = _shares(wanted, ready)
    assert all(share >= 1 for share in shares)
    assert all(share <= known for share, known in zip(shares, ready, strict=True) if known)
    assert sum(shares) == wanted or (0 not in ready and shares == ready)


def test_topics_take_turns_by_name_and_polled_ones_wait() -> None:
    group = PatternGroup(TopicSelection(["*"]), last="b")
    for topic in ("c", "a", "b", "d"):
        group.report(topic)
    assert list(group.topics_to_poll()) == ["c", "d", "a", "b"]
    group.last = "d"
    group.polls["a"] = 1
    assert list(islice(group.topics_to_poll(), 2)) == ["b", "c"]


def test_a_topic_reported_during_its_poll_is_not_dropped() -> None:
    group = PatternGroup(TopicSelection(["*"]), last="")
    group.report("a", 3)
    before = group.report_of("a").number
    group.took("a", 2)
    assert group.report_of("a").jobs == 1
    group.report("a")
    group.drop("a", before)
    assert list(group.topics_to_poll()) == ["a"]
    group.drop("a", group.report_of("a").number)
    assert list(group.topics_to_poll()) == []
