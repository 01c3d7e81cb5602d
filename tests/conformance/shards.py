"""Topics by the shard of the store."""

from __future__ import annotations

from itertools import count

from deferd.engine.redis_keys import Keys
from tests.conformance.conftest import SHARDS
from tests.conformance.door import Door


def beside(door: Door, *, same_shard: bool = True) -> str:
    """A topic in the shard of the test's, or in another one."""
    keys = Keys(SHARDS)
    names = (f"{door.topic}.{number}" for number in count())
    return next(name for name in names if (keys.shard_of(name) == keys.shard_of(door.topic)) is same_shard)
