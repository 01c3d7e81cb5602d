"""JSON as the console shows it."""

from __future__ import annotations

import time

import pytest

from deferd.console.json_text import Members, compact, member_text, parse, plain, pretty


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "true",
        '""',
        "[]",
        "{}",
        "12345678901234567890123456789",
        "0.1000000000000000055511151231257827",
        "1E400",
        "-0",
        '{"a":1,"a":2}',
        '[{"b":[[],{}]},"\\u0000\\n\\"\\\\","é ☃"]',
    ],
)
def test_compact_json_is_what_it_was(text: str) -> None:
    assert compact(parse(text)) == text
    shown, is_all = pretty(parse(text))
    assert is_all
    assert compact(parse(shown)) == text


def test_half_a_surrogate_pair_can_be_sent() -> None:
    shown = compact(parse('"\\ud83d"'))
    assert (shown, shown.encode()) == ('"\\ud83d"', b'"\\ud83d"')


def test_pretty_json_is_indented() -> None:
    shown, _ = pretty(parse('{"a":[1,{"b":null}],"c":{}}'))
    assert shown == '{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ],\n  "c": {}\n}'


def test_long_json_is_cut_at_its_limit() -> None:
    shown, is_all = pretty(parse("[" + ",".join(["1"] * 100_000) + "]"), 100)
    assert (len(shown), is_all) == (100, False)
    assert pretty(parse('"' + "x" * 98 + '"'), 100) == ('"' + "x" * 98 + '"', True)
    assert pretty(parse('"' + "x" * 500 + '"'), 100) == ('"' + "x" * 99, False)


def test_deep_json_is_shown() -> None:
    text = "[" * 200 + "]" * 200
    assert compact(parse(text)) == text


def test_members_are_found_by_name() -> None:
    value = parse('{"a":1,"b":{"c":[1.5,"x"]},"a":2}')
    assert isinstance(value, Members)
    assert (value.get("a"), value.get("none", 7)) == ("2", 7)
    assert plain(value) == {"a": 2, "b": {"c": [1.5, "x"]}}


def cpu_s(value: object) -> float:
    """The least of a few."""
    taken = []
    for _ in range(3):
        began_s = time.thread_time()
        compact(value)
        taken.append(time.thread_time() - began_s)
    return min(taken)


def test_the_depth_of_a_value_costs_nothing() -> None:
    flat = "[" + ",".join(["[1]"] * 20_000) + "]"
    nested = '{"a":[' * 45 + flat + "]}" * 45
    assert compact(parse(nested)) == nested
    assert cpu_s(parse(nested)) < 2 * cpu_s(parse(flat))


def test_json_that_is_too_deep_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse("[" * 200_000 + "]" * 200_000)


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ('{"id":"a","body":{"body":1.10, "x":[]},"n":12345678901234567890}', '{"body":1.10, "x":[]}'),
        ('{"body":1,"body":"\\u00e9 }"}', '"\\u00e9 }"'),
        (' { "body" : [ 1 ] } ', "[ 1 ]"),
        ('{"body":null}', "null"),
        ('{"id":"body"}', None),
        ("{}", None),
    ],
)
def test_a_member_is_found_as_it_was_written(text: str, member: str | None) -> None:
    assert member_text(text.encode(), "body") == member
