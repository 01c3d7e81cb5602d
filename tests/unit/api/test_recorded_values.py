"""What the list of changes says of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deferd.api.recorded_values import Unshown, changed_fields, host_of, names_of, size_of


def changed(was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str | None, ...]]:
    return [tuple(one) for one in changed_fields(was, now)]


def test_fields_that_differ_are_recorded_as_json() -> None:
    was = {"ttr": 60.0, "paused": False, "same": [1], "reason": "é", "none": None}
    now = {"ttr": 30.0, "paused": True, "same": [1], "tags": ["a"], "also_none": None}
    assert changed(was, now) == [
        ("ttr", "60", "30"),
        ("paused", "false", "true"),
        ("reason", '"é"', None),
        ("tags", None, '["a"]'),
    ]


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (size_of(b'"secret"'), size_of(b'"secret2"'), ("8 bytes", "9 bytes")),
        (size_of(b'"secret"'), size_of(b'"SECRET"'), ("8 bytes", "8 bytes, changed")),
        (None, names_of({"b": "secret", "a": "secret"}), (None, "a, b")),
        (names_of({"a": "secret"}), names_of({"a": "other"}), ("a", "a, changed")),
        (
            host_of("https://me:secret@hooks.example.com:8443/T0/secret?x=secret"),
            host_of("https://hooks.example.com/"),
            ("https://hooks.example.com:8443/…", "https://hooks.example.com"),
        ),
        (Unshown("1 secret", ["secret"]), Unshown("2 secrets", ["secret", "x"]), ("1 secret", "2 secrets")),
    ],
)
def test_what_may_be_secret_is_compared_and_not_recorded(was: Any, now: Any, said: tuple[str, str]) -> None:
    assert changed({"field": was}, {"field": now}) == [("field", *said)]
    assert changed({"field": was}, {"field": was}) == []


def test_values_are_cut_and_bounded() -> None:
    [(_, was, now)] = changed({"windows": "é" * 1000}, {"windows": "a"})
    assert was is not None
    assert (was.startswith('"éé'), was[-1], len(was.encode()) <= 303, now) == (True, "…", True, '"a"')
    many = changed({}, {f"f{number}": "x" * 90 for number in range(60)})
    assert len(many) == 50
    assert [one for one in many if one[2] is not None] == many[:10]
    assert len(json.dumps(many).encode()) < 3000
