"""The names of deferd's keys in the store, and the shard of a topic.

All keys of one topic share a hash tag, the shard's number, so that a cluster keeps them on one node and one script can
use them. `lua/lib/topic.lua` documents what each key holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

from deferd.engine.partitions import Partitions, number_of, topic_of

READY_CHANNEL = b"deferd:ready"
"""Messages: a topic that may have something for a waiting consumer."""
DUE_CHANNEL = b"deferd:due"
"""Messages: the `due` key of a shard whose timer has earlier work, or a lock key that became free."""
PARTITIONS_CHANNEL = b"deferd:partitions"
"""Messages: a topic that has another number of partitions."""
PUSH_CHANNEL = b"deferd:push"
"""Messages: a topic whose push was set or removed; or a pushed topic and the id of a held job that was removed."""
ENDED_CHANNEL = b"deferd:ended"
"""Messages: topic, id, ms at which it was put, and the outcome or `progress` of a job that somebody waits for."""
HEARTBEAT_CHANNEL = "deferd:heartbeat"
"""Prefix of each process's own channel, on which it sends messages to itself."""

TAG_PREFIX = "tag/"
"""The beginning of a key of the tag index, after the shard."""
PATTERN_REQUEST = "*"
"""Precedes the request id of a pop by patterns in the store; see lib/topic.lua."""
BATCH_PREFIX = "batch/"
"""The beginning of the key of a batch, after the shard; see lib/batches.lua."""
SCHEDULE_PREFIX = "schedule/"
"""The beginning of the key of a schedule, after the shard."""
SCHEDULES_MEMBER = ":schedules"
"""The member of a shard's `due` that stands for its schedules; no topic has such a name."""
EVENTS_PREFIX = "events/"
"""The beginning of the last word of the keys of a topic's events, and of the list of topics that have some."""
ITEMS_PREFIX = "items/"
"""The beginning of the last word of a list of the items collected under an id."""

CONSOLE_PREFIX = "console/"
"""The beginning of the keys of the console, after the shard."""
HISTORY_PREFIX = "history/"
"""The beginning of the last word of the keys of histories."""

UNDO_PREFIX = "undo"
"""The beginning of the keys of what calls on many jobs have cancelled and can be put back; see lib/undo.lua."""
OF_KEY_PREFIX = "of_key/"
"""The beginning of the keys that list what is remembered for a key of the API; see lib/of_key.lua."""

RATE_PREFIX = "rate/"
"""The beginning of the last word of the deliveries of the last time that rates limit; see lib/rate.lua."""
FLOW_KEYS = {
    **dict.fromkeys(("groups", "flows", "turns/newest"), "hash"),
    **dict.fromkeys(("turns", "flows/free", "limited"), "zset"),
}
"""The types of the keys that give the groups of a topic their turns; see lib/flows.lua."""

PUSH_PREFIX = "push/"
"""The beginning of the last word of what is known of the target of a pushed topic."""

_TOPIC_KEYS = ("pool", "delay", "ready", "reserved", "dead", "finished", "expiry", "holders", "cancelled")
_SHARD_KEYS = ("settings", "topics", "due")
_LATER_TOPIC_KEYS = ("tally", "requests", "tagged", "taken")
"""They follow the keys of the shard in the order of KEYS."""


class Keys:
    """Key names for a store whose topics are spread over `shards` shards. `topic` is the name of a partition, too."""

    def __init__(self, shards: int, partitions: Partitions | None = None) -> None:
        self.shards = shards
        self.partitions = Partitions() if partitions is None else partitions
        self.of_topic = lru_cache(maxsize=4096)(self._of_topic)

    def shard_of(self, topic: str) -> int:
        """The shard of a topic or partition: 0 to shards - 1, the same in every process and release."""
        return (crc32(topic_of(topic).encode()) + number_of(topic)) % self.shards

    def by_shard(self, topics: Iterable[str]) -> dict[int, list[str]]:
        """Topics or partitions by their shards, in order."""
        by_shard: dict[int, list[str]] = {}
        for topic in topics:
            by_shard.setdefault(self.shard_of(topic), []).append(topic)
        return by_shard

    def _of_topic(self, topic: str) -> tuple[str, ...]:
        """KEYS[1] to KEYS[16] of every script on a topic."""
        shard = self.shard_of(topic)
        names = [f"deferd:{{{shard}}}:{topic}:{name}" for name in (*_TOPIC_KEYS, *_LATER_TOPIC_KEYS)]
        at = len(_TOPIC_KEYS)
        return (*names[:at], *(self.of_shard(shard, name) for name in _SHARD_KEYS), *names[at:])

    def of_ids(self, topic: str) -> tuple[str, str, str]:
        """The keys of a topic that name ids for themselves: pool, cancelled, taken."""
        keys = self.of_topic(topic)
        return keys[0], keys[_TOPIC_KEYS.index("cancelled")], keys[-1]

    def of_totals(self, topic: str) -> tuple[str, ...]:
        """The sorted sets of a topic's jobs by state, delay, ready, reserved, dead, finished; then three hashes.

        Those are follow, items and shelf. Not cached.
        """
        shard = self.shard_of(topic)
        return tuple(f"deferd:{{{shard}}}:{topic}:{name}" for name in (*_TOPIC_KEYS[1:6], "follow", "items", "shelf"))

    def named(self, topic: str, name: str) -> str:
        """One key of a topic, such as its `pool` or its `ready`. Not cached."""
        return f"deferd:{{{self.shard_of(topic)}}}:{topic}:{name}"

    def of_history(self, shard: int, topic: str) -> tuple[str, str]:
        """The records of a topic's history by 10 s and by 5 min; with '' the sums over the shard. Not cached."""
        return self.of_shard(shard, f"{topic}:history/10s"), self.of_shard(shard, f"{topic}:history/5m")

    def of_events(self, topic: str) -> tuple[str, str]:
        """The keys of a topic's events, seq and log; see `lua/lib/events.lua`. Not cached."""
        return self.named(topic, f"{EVENTS_PREFIX}seq"), self.named(topic, f"{EVENTS_PREFIX}log")

    def of_kept(self, shard: int, topic: str) -> tuple[str, ...]:
        """The keys that count what is kept of a topic's jobs: pool, cancelled, taken, follow, shelf. Not cached."""
        return tuple(f"deferd:{{{shard}}}:{topic}:{name}" for name in ("pool", "cancelled", "taken", "follow", "shelf"))

    def of_schedule(self, shard: int, name: str) -> str:
        """The key of a schedule in a shard; see `lua/lib/schedules.lua`."""
        return self.of_shard(shard, SCHEDULE_PREFIX + name)

    def of_shard(self, shard: int, name: str) -> str:
        """A key of the whole shard."""
        return f"deferd:{{{shard}}}:{name}"

    def of_caller(self, shard: int, key_name: str | None) -> tuple[str, ...]:
        """The key that lists what is remembered for a key of the API in a shard; none for a caller without a key."""
        return () if key_name is None else (self.of_shard(shard, OF_KEY_PREFIX + key_name),)

    def of_pattern_request(self, shard: int, request_id: str) -> str:
        """The key that names the topics of a shard which served a pop by patterns with this request id."""
        return f"deferd:{{{shard}}}::request/{PATTERN_REQUEST}{request_id}"

    def of_consistency_check(self, topic: str) -> tuple[str, ...]:
        """KEYS of the scripts `audit_*`: all of the topic, and last `aside` for what a repair takes out."""
        return (
            *self.of_topic(topic),
            *(self.named(topic, name) for name in (*FLOW_KEYS, "follow", "items", "runs", "shelf", "aside")),
        )
