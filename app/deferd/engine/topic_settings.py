"""A topic's settings as the store holds them: a JSON object with the short keys of `lua/lib/topic.lua`."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from deferd.contract.fields import POLICY, TOPIC
from deferd.contract.model import TopicSettings
from deferd.engine.placement import read_defaults
from deferd.engine.record import json_bytes
from deferd.engine.stored_fields import from_store, policy_extra, to_store

UNREADABLE_SETTINGS = (ValueError, TypeError, AttributeError, LookupError, ValidationError)
"""What `read_settings` raises for settings that something other than deferd has written."""

_POLICY_BEFORE = {**{key: key for key in "tmbxrqi"}, "d": "l"}
"""The keys of the policy beside the rest, as it was stored before version 0.2, and what they are now."""
_OTHERS_BEFORE = {"l": "du", "w": "pl"}


def present_settings(stored: dict[str, Any]) -> dict[str, Any]:
    """Stored settings of any version as they are stored now; see lua/lib/settings.lua, which does the same."""
    if "po" in stored:
        return stored
    policy = {now: stored[before] for before, now in _POLICY_BEFORE.items() if before in stored}
    others = {now: stored[before] for before, now in _OTHERS_BEFORE.items() if before in stored}
    return {**({"po": policy} if policy else {}), **others, **stored}


def read_settings(stored: dict[str, Any]) -> TopicSettings:
    """Read stored settings. Raises one of UNREADABLE_SETTINGS."""
    stored = present_settings(stored)
    policy = stored.get("po", {})
    if "pl" in stored:
        window, spread_ms = read_defaults(stored["pl"])
        policy = {**policy, "wi": window, "sp": spread_ms}
    fields = {field.name: from_store(field, policy[field.key]) for field in POLICY if field.key in policy}
    fields |= {field.name: from_store(field, stored[field.key]) for field in TOPIC if field.key in stored}
    return TopicSettings.model_validate(fields)


def settings_to_store(settings: TopicSettings) -> dict[str, Any]:
    """The object to store; empty for settings without a value."""
    stored: dict[str, Any] = {}
    policy = policy_extra(settings)
    window, spread_ms = policy.pop("wi", ""), policy.pop("sp", 0)
    if policy:
        stored["po"] = policy
    if window or spread_ms:
        stored["pl"] = json_bytes([window, spread_ms]).decode()
    for field in TOPIC:
        value = getattr(settings, field.name)
        if value not in {None, field.default}:
            stored[field.key] = to_store(field, value)
    return stored
