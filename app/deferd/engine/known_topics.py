"""The names of topics that this process has met, for the time when their shard of the store cannot be reached."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from deferd.engine.redis_keys import Keys

_MOST = 10_000


class KnownTopics:
    """Remembers up to 10,000 names, an equal part for each shard; those beyond it are not remembered."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._most_of_shard = max(_MOST // keys.shards, 1)
        self._names: dict[int, list[str]] = {}

    def met(self, topic: str) -> None:
        """A job of the topic was put or handed out."""
        names = self._names.setdefault(self._keys.shard_of(topic), [])
        at = bisect_left(names, topic)
        if names[at : at + 1] != [topic] and len(names) < self._most_of_shard:
            insort(names, topic)

    def listed(self, shard: int, behind: str, found: Sequence[str], *, is_end: bool) -> None:
        """The store was asked for the shard's names behind one, and has `found`; `is_end`: there are no more."""
        names = self._names.setdefault(shard, [])
        begin = bisect_right(names, behind)
        end = len(names) if is_end else bisect_right(names, found[-1])
        names[begin:end] = found
        del names[self._most_of_shard :]

    def behind(self, shard: int, name: str) -> list[str]:
        """The names of a shard that come behind `name` in the alphabet; all behind ''."""
        names = self._names.get(shard, [])
        return names[bisect_right(names, name) :]
