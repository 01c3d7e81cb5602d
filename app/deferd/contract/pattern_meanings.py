"""The patterns of names and texts in words, for error texts."""

from __future__ import annotations

from typing import Final

from deferd.contract import limits, model
from deferd.contract.windows import END_PATTERN, TIME_PATTERN

_MEANINGS: Final = {
    limits.TOPIC_PATTERN: f"1 to {limits.TOPIC_LENGTH} of A-Z a-z 0-9 . _ : -, the first a letter or digit",
    model.TRACEPARENT_PATTERN: "four lower-case hexadecimal numbers separated by -: version, trace, span, flags",
    limits.DURABILITY_PATTERN: f"memory, fsync, or replicated:N with N from 1 to {limits.REPLICAS_MAX}",
    limits.TAG_PATTERN: f"1 to {limits.TAG_LENGTH} of A-Z a-z 0-9 . _ : -, the first a letter or digit",
    limits.BATCH_NAME_PATTERN: f"1 to {limits.BATCH_NAME_LENGTH} of A-Z a-z 0-9 . _ : -, the first a letter or digit",
    limits.TOPIC_SELECTOR_PATTERN: f"a topic, or a pattern of 1 to {limits.TOPIC_LENGTH} characters with *",
    limits.HEADER_TEXT_PATTERN: "no control characters",
    TIME_PATTERN: "a time of day, HH:MM",
    END_PATTERN: "a time of day, HH:MM, or 24:00",
    limits.END_ID_PATTERN: "an id, in which there may be {topic}, {id} and {outcome}",
    limits.ID_PATTERN: f"1 to {limits.ID_LENGTH} of A-Z a-z 0-9 . _ : -, the first a letter or digit",
}


def must_match(pattern: str) -> str:
    """What is wrong with a text that does not match."""
    meaning = _MEANINGS.get(pattern)
    return f"must match {pattern}" + (f" ({meaning})" if meaning else "")
