"""Settings of a topic as the store holds them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from deferd.contract.model import TopicSettings
from deferd.engine.topics import UNREADABLE_SETTINGS, read_settings, settings_to_store

LIMITS: dict[str, Any] = {
    "max_in_flight": 50,
    "rate": {"count": 100, "per": 0.5, "burst": 10},
    "per_group": {"max_in_flight": 1, "rate": {"count": 5}},
    "groups": {"1": {"weight": 3}, "customer:7": {"max_in_flight": 5, "rate": {"count": 7, "per": 60}, "weight": 1}},
}


def stored_limits(limits: dict[str, Any]) -> Any:
    return settings_to_store(TopicSettings.model_validate({"limits": limits})).get("li")


def test_settings_are_read_as_they_were_stored() -> None:
    settings = TopicSettings.model_validate(
        {
            "ttr": 7,
            "max_attempts": 3,
            "backoff": {"kind": "fixed", "seconds": 5},
            "ttl": None,
            "deadline": 60,
            "window": {"from": "09:00"},
            "spread": 4,
            "max_jobs": 100,
            "durability": "memory",
            "events": 10,
            "limits": LIMITS,
        }
    )
    assert read_settings(settings_to_store(settings)) == settings


@pytest.mark.parametrize(
    "damaged",
    [
        *({"j": {}}, {"du": None}, {"du": -5}, {"du": 99}, {"pl": "[1]"}, {"po": None}, {"po": 5}),
        *({"li": None}, {"li": []}, {"li": {"r": {}}}, {"li": {"n": "x"}}, {"li": {"s": {"a": 1}}}),
        *({"po": {"m": []}}, {"po": {"l": ""}}, {"po": {"x": {}}}, {"po": {"b": 1}}),
    ],
    ids=str,
)
def test_what_another_program_has_damaged_is_not_taken_for_none(damaged: dict[str, Any]) -> None:
    with pytest.raises(UNREADABLE_SETTINGS):
        read_settings(damaged)


def test_limits_are_stored_as_the_scripts_read_them() -> None:
    assert stored_limits(LIMITS) == {
        "n": 50,
        "r": {"c": 10, "p": 50, "k": [100, 500, 10]},
        "g": {"n": 1, "r": {"c": 5, "p": 1000}},
        "s": {"1": {"w": 3}, "customer:7": {"n": 5, "r": {"c": 7, "p": 60_000}, "w": 1}},
    }
    empty: list[dict[str, Any]] = [{}, {"per_group": {}}, {"groups": {}}, {"groups": {"a": {}}}, {"rate": None}]
    for nothing in empty:
        assert stored_limits(nothing) is None


def test_a_burst_keeps_below_the_rate_in_any_span_and_close_to_it() -> None:
    chance = Random(7)
    for _ in range(2000):
        count, per_ms = chance.randint(1, 10 ** chance.randint(1, 6)), chance.randint(100, 10 ** chance.randint(3, 7))
        least = -(-count // per_ms)
        burst = chance.randint(least, min(count, least * 10 ** chance.randint(1, 6)))
        rate = stored_limits({"rate": {"count": count, "per": per_ms / 1000, "burst": burst}})["r"]
        at_once, span_ms = rate["c"], rate["p"]
        assert 1 <= at_once <= burst
        assert at_once * -(-per_ms // span_ms) <= count, "so many spans cover one of `per`"
        assert at_once / span_ms > count / per_ms / 2.01, (count, per_ms, burst)
