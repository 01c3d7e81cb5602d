"""Patterns of topic names, against regular expressions and against all short names."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.topic_search import TopicSelection
from tests.drawn_input import drawn

patterns = st.text("ab*", min_size=1, max_size=5)
SHORT_NAMES = ["".join(letters) for size in range(9) for letters in itertools.product("ab", repeat=size)]


def matched_by(pattern: str) -> set[str]:
    """All names of up to eight letters that match, by a regular expression."""
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    return {name for name in SHORT_NAMES if expression.fullmatch(name)}


@drawn(200)
@given(pattern=patterns, other=patterns)
def test_patterns_match_include_and_overlap_as_their_topics_do(pattern: str, other: str) -> None:
    one, two = matched_by(pattern), matched_by(other)
    assert one == {name for name in SHORT_NAMES if TopicPatterns([pattern]).match(name)}
    assert TopicPatterns([other]).overlapping(pattern) == ([other] if one & two else [])
    if TopicPatterns([other]).include(pattern):
        assert one <= two


@drawn(300)
@given(
    wanted=st.lists(patterns, min_size=1, max_size=3, unique=True),
    names=st.lists(st.sampled_from(SHORT_NAMES[:15]), max_size=2),
    allowed=st.none() | st.lists(patterns, min_size=1, max_size=3),
)
def test_a_selection_is_what_matches_both_and_lies_in_its_ranges(
    wanted: list[str], names: list[str], allowed: list[str] | None
) -> None:
    selection = TopicSelection(wanted, names, None if allowed is None else TopicPatterns(allowed))
    expected = set().union(*map(matched_by, wanted)) - set(names)
    if allowed is not None:
        expected &= set().union(*map(matched_by, allowed))
    assert expected == {name for name in SHORT_NAMES if selection.match(name)}
    ranges = selection.ranges()
    assert all(sum(name.startswith(prefix) for prefix in ranges) == 1 for name in expected)


def test_a_key_that_includes_the_patterns_costs_no_checks() -> None:
    assert TopicSelection(["orders.*"], (), TopicPatterns(["*"])).key == TopicSelection(["orders.*"]).key
    assert TopicSelection(["orders.eu.*"], (), TopicPatterns(["o*", "x"])).key == TopicSelection(["orders.eu.*"]).key
    limited = TopicSelection(["*"], ("named",), TopicPatterns(["orders.*", "users"]))
    assert limited.key == (("*",), ("orders.*", "users"), frozenset({"named"}))
    assert limited.ranges() == ["orders.", "users"]


@pytest.mark.parametrize(("name", "expected"), [("orders", False), ("orders.*", True), ("*", True), ("", False)])
def test_a_name_with_an_asterisk_is_a_pattern(name: str, expected: bool) -> None:
    assert is_pattern(name) is expected
