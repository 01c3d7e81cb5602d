"""Changes by people and keys in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deferd.contract.operations.all_operations import all_operations

_WORDS = {operation.id: operation.done for operation in all_operations() if operation.done}


def action_words(change: Mapping[str, Any]) -> str:
    """What was done, as `paused topic`. An operation of another version of the service is named by its id."""
    operation: str = change["operation"]
    return _WORDS.get(operation, operation.replace("_", " "))


def subject_kind(change: Mapping[str, Any]) -> str | None:
    """The kind of its `subject`: a `job`, a `schedule`, or None for something without a page."""
    if change.get("subject") is None:
        return None
    noun = change["operation"].rpartition("_")[2]
    return noun if noun == "schedule" or (noun == "job" and change.get("topic")) else None
