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


def read_settings(stored: dict[str, Any]) -> TopicSettings:
    """Read stored settings. Raises one of UNREADABLE_SETTINGS."""
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
