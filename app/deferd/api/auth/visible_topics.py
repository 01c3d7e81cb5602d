"""The list of topics for a key that is not for all of them: the others are hidden."""

from __future__ import annotations

from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.topic_list import TopicList, TopicNames, TopicPage

_TRIES = 5


async def list_visible(topics: TopicList, visible: TopicPatterns, cursor: str | None, limit: int) -> TopicPage:
    """Up to `limit` topics that match `visible`; see TopicList.page.

    The store is read in steps of 1000 names, which bounds each read. A cursor reveals the name of the topic before it,
    so that topic must be visible.

    Raises:
        InvalidInput: the cursor is invalid.
        StoreUnavailable: the list changes too fast, or no shard of the store can be reached.
    """
    return await topics.views(await _visible_names(topics, visible, cursor, limit))


async def _visible_names(topics: TopicList, visible: TopicPatterns, cursor: str | None, limit: int) -> TopicNames:
    page = TopicNames()
    while True:
        step = await topics.names(cursor, limits.PAGE_MAX, without=page.unreadable)
        positions = [at for at, name in enumerate(step.names, 1) if visible.match(name)][: limit - len(page.names)]
        page.names += [step.names[at - 1] for at in positions]
        unavailable = filter(visible.match, [*page.unavailable, *step.unavailable])
        page.unavailable = list(dict.fromkeys(unavailable))
        page.unreadable |= step.unreadable
        if len(page.names) == limit:
            page.next_cursor = await _cursor_after(topics, cursor, positions[-1], page.names[-1])
            return page
        if step.next_cursor is None:
            return page
        cursor = step.next_cursor


async def _cursor_after(topics: TopicList, cursor: str | None, position: int, name: str) -> str | None:
    """The cursor of a page that ends with `name`, which was at `position` after `cursor` just now."""
    for _ in range(_TRIES):
        page = await topics.names(cursor, position)
        if page.names[-1:] == [name]:
            return page.next_cursor
        # Topics before it were added or removed: find its new position, if it still exists.
        step = await topics.names(cursor, limits.PAGE_MAX)
        if name not in step.names:
            break
        position = step.names.index(name) + 1
    raise StoreUnavailable("the list of topics changes too fast to be read page by page")
