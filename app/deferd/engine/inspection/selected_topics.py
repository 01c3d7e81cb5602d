"""The topics that a read of several topics covers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deferd.contract.limits import PAGE_MAX
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.redis_keys import Keys
from deferd.engine.topic_list import TopicList

_MOST = 10_000


@dataclass(slots=True)
class SelectedTopics:
    """The partitions of topics, by the shard of each.

    `unreadable` are the shards that cannot be read now; with `is_complete` false there are more topics.
    """

    partitions: dict[int, list[str]] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    is_complete: bool = True

    @property
    def readable(self) -> dict[int, list[str]]:
        """The partitions in shards that could be read just now."""
        return {shard: names for shard, names in self.partitions.items() if shard not in self.unreadable}


async def select_topics(topics: TopicList, keys: Keys, wanted: Iterable[str] | None) -> SelectedTopics:
    """The topics that match one of the names and patterns in `wanted`, or all with None: about 10,000 partitions at
    most.

    Names are included whether the topics exist or not.

    Raises:
        StoreUnavailable: no shard of the store can be reached.
    """
    selected = SelectedTopics()
    names = [] if wanted is None else [name for name in wanted if not is_pattern(name)]
    patterns = None if wanted is None else TopicPatterns(name for name in wanted if is_pattern(name))
    found = dict.fromkeys(names)
    cursor: str | None = None
    while patterns is None or patterns.patterns:
        page = await topics.names(cursor, PAGE_MAX, without=selected.unreadable)
        found |= dict.fromkeys(name for name in page.names if patterns is None or patterns.match(name))
        selected.unreadable |= page.unreadable
        cursor = page.next_cursor
        if cursor is None:
            break
        if sum(map(keys.partitions.count, found)) >= _MOST:
            selected.is_complete = False
            break
    selected.partitions = keys.by_shard(keys.partitions.of_all(found))
    return selected
