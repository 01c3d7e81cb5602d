"""The permission that an operation requires: the scope of its row in the contract, and the topics of a request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from deferd.api.auth.api_keys import Key
from deferd.contract.scopes import Scope
from deferd.contract.topic_patterns import is_pattern

Arguments = Mapping[str, Any]


def topics_of_path(arguments: Arguments) -> Collection[str]:
    """The topics and patterns in the path: several for a pop, none where the path has no topic."""
    topics: str | None = arguments.get("topic")
    return () if topics is None else topics.split(",")


def no_topics(_arguments: Arguments) -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """How the calls of an operation get into the list of changes, `GET /activity`.

    `via`: only calls that come this way, as `api.change_recording` tells them apart. `filter` is the argument that
    selects jobs. `joins`: one entry may stand for many calls of one caller, except in the console.
    """

    via: frozenset[str] = frozenset(("console", "cli", "api"))
    filter: str | None = None
    joins: bool = False


ALL_CALLS = Recorded()


@dataclass(frozen=True, slots=True)
class Permission:
    """The scope and topics that a key must have. `scope` None: the operation is public.

    `topics` gives the topics of a request from its bound arguments; with `all_topics` the key must match every topic
    there can be. `puts_into` gives topics for which the key needs the scope `put` as well. `operation` names the
    operation in the audit log, which records its requests if `is_audited`. `recorded`: see Recorded; an operation whose
    row has `done` has it.
    """

    scope: Scope | None
    topics: Callable[[Arguments], Collection[str]] = topics_of_path
    all_topics: bool = False
    puts_into: Callable[[Arguments], Collection[str]] = no_topics
    operation: str = ""
    is_audited: bool = False
    recorded: Recorded | None = None

    def denied_topic(self, key: Key, arguments: Arguments) -> str | None:
        """The first topic of a request that `key` does not match, `*` for all topics; None when it matches all.

        A pattern is denied when no topic can match both it and the key. Otherwise its topics that the key does not
        match are left out.
        """
        if key.topics.everything:
            return None
        if self.all_topics:
            return "*"
        return next((topic for topic in self.topics(arguments) if not admits(key, topic)), None)


def admits(key: Key, topic: str) -> bool:
    """Whether a key is for a topic; for a pattern, whether some topic can match both."""
    return bool(key.topics.overlapping(topic)) if is_pattern(topic) else key.topics.match(topic)
