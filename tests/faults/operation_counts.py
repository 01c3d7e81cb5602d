"""Counts of the operations of a run, for its report: by kind, and by the options that few calls have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.faults.history import History

Line = dict[str, Any]
_RESP_KINDS = ("put", "pop", "finish", "release", "snooze", "touch", "bury", "cancel", "change", "look")


def _is_over_resp(kind: str, line: Line) -> bool:
    return line["kind"] == kind and line.get("via") == "resp"


_VERBS: dict[str, Callable[[Line], bool]] = {
    "append": lambda line: line.get("on_conflict") == "append",
    "follow-up": lambda line: bool(line.get("follows")),
    "max_wait": lambda line: "max_wait_ms" in line,
    "max_items": lambda line: "max_items" in line,
    "unique_for": lambda line: "unique_for_ms" in line,
    "conflict_with live": lambda line: bool(line.get("only_live")),
    "spread": lambda line: "spread_ms" in line,
    "deadline": lambda line: "deadline_ms" in line and line["kind"] == "put",
    "time limit": lambda line: "time_limit_ms" in line,
    "on_end": lambda line: "on_end" in line,
    "dead_retain": lambda line: "dead_retain_ms" in line,
    "snooze": lambda line: line["kind"] == "snooze",
    "finish with put": lambda line: line["kind"] == "finish" and "chain" in line,
    "cancel that keeps the follow-up": lambda line: bool(line.get("keeps_follow_up")),
    "bulk cancel by ids": lambda line: line["kind"] == "cancel" and line.get("by") == "ids",
    "bulk cancel by tag": lambda line: line["kind"] == "cancel" and line.get("by") == "tag",
    "bulk cancel by state": lambda line: line["kind"] == "cancel" and line.get("by") == "state",
    "bulk reschedule by ids": lambda line: line["kind"] == "change" and line.get("by") == "ids",
    "bulk reschedule by tag": lambda line: line["kind"] == "change" and line.get("by") == "tag",
    "bulk reschedule by state": lambda line: line["kind"] == "change" and line.get("by") == "state",
    "pop by patterns": lambda line: line["kind"] == "pop" and "," in line["topic"],
    **{f"{kind} over the Redis protocol": partial(_is_over_resp, kind) for kind in _RESP_KINDS},
}
"""The lines of a history that make use of a verb or option."""


def count_verbs(history: History) -> dict[str, Counter[str]]:
    """For each verb and option of `_VERBS`, also those without a call, the outcomes of the calls that used it."""
    return {verb: Counter(line["outcome"] for line in history.lines if uses(line)) for verb, uses in _VERBS.items()} | {
        "delivered collections": count_items(history)
    }


def count_items(history: History) -> Counter[str]:
    """Deliveries of collections by how many items they had."""
    bodies = [job["tag"] for line in history.lines for job in line.get("jobs", ()) if job["tag"].startswith("[")]
    sizes = Counter(body.count(",") + 1 for body in bodies)
    return Counter({f"of {size}": count for size, count in sorted(sizes.items())})


def count_outcomes(history: History) -> Counter[tuple[str, str]]:
    """Operations by kind and outcome, where a pop is one operation; looks by the state that they showed."""
    counts = Counter(_counted_as(line) for line in history.lines)
    counts["deliver", "done"] = sum(len(line.get("jobs", ())) for line in history.lines)
    return counts


def _counted_as(line: dict[str, Any]) -> tuple[str, str]:
    kind, outcome = line["kind"], line["outcome"]
    if kind == "pop" and "," in line["topic"]:
        return "pop by patterns", outcome
    if kind == "finish" and "receipt" not in line:
        return "finish any", outcome
    if kind == "finish" and "chain" in line:
        return "finish, put", outcome
    if line.get("by"):
        return f"{kind} by {line['by']}", outcome
    return (kind, line["state"]) if kind == "look" and "state" in line else (kind, outcome)
