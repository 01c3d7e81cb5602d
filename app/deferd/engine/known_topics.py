"""The topic names that this process has seen, to list them while their shard of the store cannot be reached."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys

_MOST = 10_000


class KnownTopics:
    """Remembers up to 10,000 names, an equal share for each shard; names beyond a share are not remembered."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._most_of_shard = max(_MOST // keys.shards, 1)
        self._names: dict[int, list[str]] = {}

    def add(self, topic: str) -> None:
        """Remember a topic that is in use, or the topic of that partition."""
        topic = topic_of(topic)
        names = self._names.setdefault(self._keys.shard_of(topic), [])
        at = bisect_left(names, topic)
        if names[at : at + 1] != [topic] and len(names) < self._most_of_shard:
            insort(names, topic)

    def update(self, shard: int, after: str, listed: Sequence[str], *, is_last: bool) -> None:
        """Replace what is remembered by a page of the shard's names from the store, in order.

        The page begins after the name `after`; `is_last`: it is the shard's last page, else it must not be empty.
        """
        names = self._names.setdefault(shard, [])
        begin = bisect_right(names, after)
        end = len(names) if is_last else bisect_right(names, listed[-1])
        names[begin:end] = listed
        del names[self._most_of_shard :]

    def after(self, shard: int, name: str) -> list[str]:
        """The remembered names of a shard after `name`, in order; '' for all."""
        names = self._names.get(shard, [])
        return names[bisect_right(names, name) :]
