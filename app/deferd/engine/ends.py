"""Checks that the end of a job can put its job (`on_end`) in the same step of the store."""

from __future__ import annotations

from collections.abc import Iterable

from deferd.contract.errors import DifferentShard, FieldError, InvalidInput
from deferd.engine.partitions import number_of, topic_of
from deferd.engine.redis_keys import Keys


def check_end_topic(keys: Keys, places: Iterable[str], end_topic: str, path: tuple[str | int, ...] = ("body",)) -> None:
    """Check that jobs in the partitions `places` may put a job into `end_topic` when they end.

    `path` leads to the object that has `on_end`, for errors.

    Raises:
        DifferentShard: the topics are in different shards of the store.
        InvalidInput: `end_topic` has several partitions.
    """
    partitions = keys.partitions.count(end_topic)
    if partitions > 1:
        message = f"must be a topic with one partition: {end_topic!r} has {partitions}"
        raise InvalidInput([FieldError((*path, "on_end", "topic"), message, end_topic)])
    shard = keys.shard_of(end_topic)
    for place in places:
        if keys.shard_of(place) != shard:
            raise other_shard(end_topic, _named(keys, place))


def other_shard(end_topic: str, of_job: str) -> DifferentShard:
    """The error for a job of `of_job`, a topic or partition in words, that is in another shard than `end_topic`."""
    text = f"topic {end_topic!r} of `on_end` is in another shard of the store than {of_job}"
    return DifferentShard(end_topic, f"{text}; nothing was done")


def _named(keys: Keys, place: str) -> str:
    """A partition in words. Of a topic with one, people know the topic only."""
    topic = topic_of(place)
    of = "" if keys.partitions.count(topic) == 1 else f"partition {number_of(place)} of "
    return f"{of}topic {topic!r}"
