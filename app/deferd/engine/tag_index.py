"""Reads the tag index: the jobs that have a tag, in the order of their topics and ids."""

from __future__ import annotations

from collections.abc import AsyncIterator

from deferd.engine.redis_keys import TAG_PREFIX, Keys
from deferd.engine.scripts import Scripts

IDS_PER_PAGE = 1000


async def ids_with_tag(
    scripts: Scripts, keys: Keys, topic: str, tag: str, after: str = "", *, reverse: bool = False
) -> AsyncIterator[list[str]]:
    """The ids after `after`, page by page. A job may be gone, or without the tag, when it is acted upon.

    `reverse`: the last id first; `after` is then followed by smaller ones.
    """
    key = keys.of_shard(keys.shard_of(topic), TAG_PREFIX + tag)
    start, end = f"({topic} {after}", f"({topic}!"  # the character after the space
    if reverse:
        start, end = f"({topic} {after}" if after else end, f"({topic} "
    async for page in scripts.pages_by_name(key, start, end, IDS_PER_PAGE, reverse=reverse):
        yield [member.partition(" ")[2] for member in page]


async def jobs_with_tag(scripts: Scripts, keys: Keys, shard: int, tag: str) -> AsyncIterator[dict[str, list[str]]]:
    """The ids of the jobs of a shard that have the tag, page by page: by partition, in order."""
    async for page in scripts.pages_by_name(keys.of_shard(shard, TAG_PREFIX + tag), "-", "+", IDS_PER_PAGE):
        by_topic: dict[str, list[str]] = {}
        for member in page:
            topic, _, job_id = member.partition(" ")
            by_topic.setdefault(topic, []).append(job_id)
        yield by_topic
