"""The names of deferd's keys in the store, and which shard a topic belongs to.

All keys of one topic share a hash tag, the shard's number, so that a cluster keeps them together and one script can
work on them. What each key holds is said in `lua/lib/topic.lua`.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

READY_CHANNEL = b"deferd:ready"
"""Messages: a topic that may have something for a waiting consumer."""
DUE_CHANNEL = b"deferd:due"
"""Messages: the `due` key of a shard whose timer has something sooner to do, or a lock key that became free."""
HEARTBEAT_CHANNEL = "deferd:heartbeat"
"""Messages of each process to itself, on a channel of its own below this name."""

_TOPIC_KEYS = ("pool", "delay", "ready", "reserved", "dead", "finished", "expiry", "holders", "cancelled")
_SHARD_KEYS = ("settings", "topics", "due")


class Keys:
    """Key names for a store whose topics are spread over `shards` shards."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.of_topic = lru_cache(maxsize=4096)(self._of_topic)

    def shard_of(self, topic: str) -> int:
        """The topic's shard: 0 to shards - 1, the same in every process and release."""
        return crc32(topic.encode()) % self.shards

    def _of_topic(self, topic: str) -> tuple[str, ...]:
        """KEYS[1] to KEYS[14] of every script on a topic."""
        shard = self.shard_of(topic)
        *of_topic, tally, requests = (
            f"deferd:{{{shard}}}:{topic}:{name}" for name in (*_TOPIC_KEYS, "tally", "requests")
        )
        return (*of_topic, *(self.of_shard(shard, name) for name in _SHARD_KEYS), tally, requests)

    def of_places(self, topic: str) -> tuple[str, ...]:
        """The keys that count a topic's jobs: delay, ready, reserved, dead, finished. Not cached."""
        shard = self.shard_of(topic)
        return tuple(f"deferd:{{{shard}}}:{topic}:{name}" for name in _TOPIC_KEYS[1:6])

    def of_kept(self, shard: int, topic: str) -> tuple[str, str]:
        """The keys whose sizes say what is kept of the jobs of a topic of `shard`: pool and cancelled. Not cached."""
        prefix = f"deferd:{{{shard}}}:{topic}"
        return f"{prefix}:pool", f"{prefix}:cancelled"

    def of_shard(self, shard: int, name: str) -> str:
        """A key of the whole shard: settings, topics, due, lock, clock, aside, idle, tally."""
        return f"deferd:{{{shard}}}:{name}"

    def of_consistency_check(self, topic: str) -> tuple[str, ...]:
        """KEYS of the audit's scripts: those of the topic, and where a repair puts aside what it takes out."""
        return (*self.of_topic(topic), f"deferd:{{{self.shard_of(topic)}}}:{topic}:aside")
