"""A topic's settings as the store holds them: a JSON object with the short keys of `lua/lib/topic.lua`."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from deferd.contract.model import TopicSettings
from deferd.contract.windows import read_window
from deferd.engine.placement import read_defaults
from deferd.engine.record import json_bytes, policy_extra
from deferd.store.durability_levels import level_named, name_of

UNREADABLE_SETTINGS = (ValueError, TypeError, AttributeError, ValidationError)
"""What `read_settings` raises for settings that something other than deferd has written."""

_AS_THEY_ARE = {"j": "max_jobs", "ev": "events", "n": "partitions"}


def read_settings(stored: dict[str, Any]) -> TopicSettings:
    """Read stored settings. Raises one of UNREADABLE_SETTINGS."""
    fields: dict[str, Any] = {}
    if "t" in stored:
        fields["ttr"] = stored["t"] / 1000
    if "m" in stored:
        fields["max_attempts"] = stored["m"] or None
    if "b" in stored:
        fields["backoff"] = stored["b"]
    if "x" in stored:
        fields["ttl"] = stored["x"] / 1000 if stored["x"] else None
    if "r" in stored:
        fields["retain"] = stored["r"] / 1000
    if "q" in stored:
        fields["dead_retain"] = stored["q"] / 1000
    if "i" in stored:
        fields["time_limit"] = stored["i"] / 1000 if stored["i"] else None
    if "d" in stored:
        fields["deadline"] = stored["d"] / 1000 if stored["d"] else None
    if "w" in stored:
        window, spread_ms = read_defaults(stored["w"])
        fields["window"] = read_window(window) if window else None
        fields["spread"] = spread_ms / 1000 if spread_ms else None
    if "l" in stored:
        fields["durability"] = name_of(stored["l"])
    fields |= {field: stored[key] for key, field in _AS_THEY_ARE.items() if key in stored}
    return TopicSettings.model_validate(fields)


def settings_to_store(settings: TopicSettings) -> dict[str, Any]:
    """The object to store; empty for settings without a value."""
    stored = policy_extra(settings)
    if "l" in stored:  # in settings this key is the durability
        stored["d"] = stored.pop("l")
    window, spread_ms = stored.pop("wi", ""), stored.pop("sp", 0)
    if window or spread_ms:
        stored["w"] = json_bytes([window, spread_ms]).decode()
    if settings.max_jobs is not None:
        stored["j"] = settings.max_jobs
    if settings.durability is not None:
        stored["l"] = level_named(settings.durability)
    if settings.events:
        stored["ev"] = settings.events
    if settings.partitions is not None:
        stored["n"] = settings.partitions
    return stored
