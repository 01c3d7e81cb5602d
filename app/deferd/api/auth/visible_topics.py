"""The list of topics for a key that is not for all of them: as if the others were not there."""

from __future__ import annotations

from deferd.api.auth.api_keys import TopicPatterns
from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.engine.topic_list import TopicList, TopicNames, TopicPage

_TRIES = 5


async def list_visible(topics: TopicList, visible: TopicPatterns, cursor: str | None, limit: int) -> TopicPage:
    """Up to `limit` topics that match `visible`; see TopicList.page.

    The store is read in steps of 1000 names, so what is asked of it at once is bounded. A cursor names the topic that
    it stands behind, so it must stand behind one that is visible.

    Raises:
        InvalidInput: the cursor is not one that was given out.
        StoreUnavailable: topics came and went too fast, or no shard of the store can be reached.
    """
    return await topics.views(await _visible_names(topics, visible, cursor, limit))


async def _visible_names(topics: TopicList, visible: TopicPatterns, cursor: str | None, limit: int) -> TopicNames:
    page = TopicNames()
    while True:
        step = await topics.names(cursor, limits.PAGE_MAX, without=page.unreadable)
        places = [place for place, name in enumerate(step.names, 1) if visible.match(name)][: limit - len(page.names)]
        page.names += [step.names[place - 1] for place in places]
        unavailable = filter(visible.match, [*page.unavailable, *step.unavailable])
        page.unavailable = list(dict.fromkeys(unavailable))
        page.unreadable |= step.unreadable
        if len(page.names) == limit:
            page.next_cursor = await _cursor_behind(topics, cursor, places[-1], page.names[-1])
            return page
        if step.next_cursor is None:
            return page
        cursor = step.next_cursor


async def _cursor_behind(topics: TopicList, cursor: str | None, place: int, name: str) -> str | None:
    """The cursor of a page that ends with `name`, which was at `place` behind `cursor` just now."""
    for _ in range(_TRIES):
        page = await topics.names(cursor, place)
        if page.names[-1:] == [name]:
            return page.next_cursor
        # Topics have come or gone before it: look for its new place, if it is still there.
        step = await topics.names(cursor, limits.PAGE_MAX)
        if name not in step.names:
            break
        place = step.names.index(name) + 1
    raise StoreUnavailable("the list of topics changes too fast to be read page by page")
