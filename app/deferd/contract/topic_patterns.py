"""Patterns of topic names: `*` stands for any characters, also for none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WILDCARD = "*"


def is_pattern(name: str) -> bool:
    """Whether this is a pattern; otherwise it is the name of one topic."""
    return WILDCARD in name


class TopicPatterns:
    """Topic names and patterns: what a key is for, a pop takes, or a worker handles."""

    __slots__ = ("_pieces", "everything", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._pieces = [pattern.split(WILDCARD) for pattern in self.patterns]
        self.everything = any(len(pieces) > 1 and not any(pieces) for pieces in self._pieces)

    @property
    def prefixes(self) -> list[str]:
        """The prefix of each pattern, up to its first `*`."""
        return [pieces[0] for pieces in self._pieces]

    def match(self, topic: str) -> bool:
        """Whether a pattern matches `topic`, in time linear in the topic's length for each pattern."""
        return self.everything or any(_matches(pieces, topic) for pieces in self._pieces)

    def include(self, pattern: str) -> bool:
        """Whether one of these patterns matches every topic that `pattern` matches."""
        return self.match(pattern)  # a `*` in it can only be matched by a `*` here

    def overlapping(self, pattern: str) -> list[str]:
        """The patterns that can match a topic which `pattern` matches too."""
        other = pattern.split(WILDCARD)
        return [one for one, pieces in zip(self.patterns, self._pieces, strict=True) if _overlap(pieces, other)]


def _matches(pieces: Sequence[str], topic: str) -> bool:
    if len(pieces) == 1:
        return topic == pieces[0]
    first, *between, last = pieces
    at, end = len(first), len(topic) - len(last)
    if at > end or not topic.startswith(first) or not topic.endswith(last):
        return False
    for piece in between:  # the leftmost match leaves most room for the next pieces
        found = topic.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a name can match both. What lies between the first and the last `*` of each can always be joined."""
    if len(one) == 1:
        return _matches(other, one[0])
    if len(other) == 1:
        return _matches(one, other[0])
    starts = one[0].startswith(other[0]) or other[0].startswith(one[0])
    return starts and (one[-1].endswith(other[-1]) or other[-1].endswith(one[-1]))
