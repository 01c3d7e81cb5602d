"""Settings of a topic as the store holds them."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.model import TopicSettings
from deferd.engine.topics import UNREADABLE_SETTINGS, read_settings, settings_to_store


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
        }
    )
    assert read_settings(settings_to_store(settings)) == settings


@pytest.mark.parametrize(
    "damaged",
    [
        *({"j": {}}, {"du": None}, {"du": -5}, {"du": 99}, {"pl": "[1]"}, {"po": None}, {"po": 5}),
        *({"po": {"m": []}}, {"po": {"l": ""}}, {"po": {"x": {}}}, {"po": {"b": 1}}),
    ],
    ids=str,
)
def test_what_another_program_has_damaged_is_not_taken_for_none(damaged: dict[str, Any]) -> None:
    with pytest.raises(UNREADABLE_SETTINGS):
        read_settings(damaged)
