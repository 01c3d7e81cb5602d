"""Patterns of topic names, such as `orders.*`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class TopicPatterns:
    """Topics by names and patterns; `*` in a pattern stands for any number of characters."""

    __slots__ = ("_pieces", "everything")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._pieces = [pattern.split("*") for pattern in patterns]
        self.everything = any(len(pieces) > 1 and not any(pieces) for pieces in self._pieces)

    @property
    def prefixes(self) -> list[str]:
        """The prefix of each pattern, up to its first `*`."""
        return [pieces[0] for pieces in self._pieces]

    def match(self, topic: str) -> bool:
        """Whether a pattern matches `topic`, in time linear in the topic's length for each pattern."""
        return self.everything or any(_matches(pieces, topic) for pieces in self._pieces)


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
