"""Reads the tag index: the jobs of a topic, or of one of its partitions, that have a tag, in the order of their ids."""

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
    command, start, end = "ZRANGEBYLEX", f"({topic} {after}", f"({topic}!"  # the character after the space
    if reverse:
        command, start, end = "ZREVRANGEBYLEX", f"({topic} {after}" if after else end, f"({topic} "
    while True:
        page = await scripts.command(command, key, start, end, "LIMIT", 0, IDS_PER_PAGE)
        yield [member.decode().partition(" ")[2] for member in page]
        if len(page) < IDS_PER_PAGE:
            return
        start = f"({page[-1].decode()}"
