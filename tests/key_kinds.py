"""All kinds of keys that deferd has in a store. docs/authentication.md says of each what bounds it."""

from __future__ import annotations

_TOPIC_KEYS = ("pool", "delay", "ready", "reserved", "dead", "finished", "expiry", "holders", "cancelled")
_LATER_TOPIC_KEYS = ("tally", "requests", "tagged", "taken")
_MORE_OF_TOPICS = (
    "follow",
    "items",
    "items/ID",
    "runs",
    "ends",
    "shelf",
    "request/ID",
    "touches/ID",
    "aside",
    "aside/KEY",
)
_OF_TOPICS_BY_SETTING = ("events/seq", "events/log", "push/state", "push/rate", "history/10s", "history/5m")
_OF_GROUPS = ("groups", "flows", "flows/free", "turns", "turns/newest", "limited", "rate/GROUP")
_OF_SCHEDULES = ("schedules", "schedule_due", "earlier_runs", "schedule/NAME", "schedules/missed", "schedules/zones")
_OF_BATCHES = ("batches", "batches/completed", "batch/NAME")
_OF_CALLS = ("of_key/KEY", "bulk/CALL", "tasks", "tasks/running", "task/ID", "undo/CALL", "undos")
_OF_SERVICE = ("lock", "clock", "idle", "partitioned", "tally", "aside", "push", "calendars", "events/topics")
_OF_OPERATORS = (
    *("acknowledged", "activity", "activity/admin", "relays"),
    *("history/topics", "history/process/PROCESS", "history/10s", "history/5m"),
)
_OF_CONSUMERS = ("consumers/reports", "consumers/reported", "consumers/topics", "request/ID")
_OF_CONSOLE = ("console/sessions",)
TOPIC_KINDS = frozenset(_TOPIC_KEYS + _LATER_TOPIC_KEYS + _MORE_OF_TOPICS + _OF_TOPICS_BY_SETTING + _OF_GROUPS)
"""All kinds of keys of a topic, after its name; a word in capitals stands for what differs."""
SHARD_KINDS = frozenset(
    (
        "settings",
        "topics",
        "due",
        "tag/TAG",
        *_OF_BATCHES,
        *_OF_SCHEDULES,
        *_OF_CALLS,
        *_OF_SERVICE,
        *_OF_OPERATORS,
        *_OF_CONSUMERS,
        *_OF_CONSOLE,
    )
)
"""The same of the whole shard."""


def kind_of(topic: str, part: str) -> str | None:
    """The kind of a key of a topic, '' for one of the whole shard; None for one that is not deferd's."""
    kinds = TOPIC_KINDS if topic else SHARD_KINDS
    if part in kinds:
        return part
    return next((kind for kind in kinds if kind[-1].isupper() and part.startswith(kind[: kind.rindex("/") + 1])), None)
