"""Where the topic of an `on_end` may be."""

from __future__ import annotations

import pytest

from deferd.contract.errors import DifferentShard
from deferd.engine.ends import check_end_topic
from deferd.engine.partitions import Layout
from deferd.engine.redis_keys import Keys


def test_the_partition_that_is_in_another_shard_is_named() -> None:
    keys = Keys(4)
    keys.partitions.note("orders", Layout((2,)))
    first, second = keys.partitions.of("orders")
    target = next(name for name in map(str, range(100)) if keys.shard_of(name) == keys.shard_of(first))
    check_end_topic(keys, [first], target)
    with pytest.raises(DifferentShard, match="than partition 1 of topic 'orders'; nothing was done"):
        check_end_topic(keys, [first, second], target)
    keys.partitions.note("orders", None)
    with pytest.raises(DifferentShard, match="than topic 'orders'; nothing was done"):
        check_end_topic(
            keys, ["orders"], next(n for n in map(str, range(9)) if keys.shard_of(n) != keys.shard_of(first))
        )
