"""The list of topics for a key that is not for all of them: as if the others were not there."""

from __future__ import annotations

from deferd import limits
from deferd.api.keys import TopicPatterns
from deferd.engine.topics import Topics, TopicView
from deferd.errors import StoreUnavailable

_TRIES = 5


async def list_visible(
    topics: Topics, visible: TopicPatterns, cursor: str | None, limit: int
) -> tuple[list[TopicView], str | None]:
    """Up to `limit` topics that match `visible`, and where the next page begins; see Topics.list_topics.

    The store is read in steps of 1000 names, so what is asked of it at once is bounded. A cursor names the topic that
    it stands behind, so it must stand behind one that is visible.

    Raises:
        InvalidInput: the cursor is not one that was given out.
        StoreUnavailable: topics came and went too fast.
    """
    names, next_cursor = await _visible_names(topics, visible, cursor, limit)
    return await topics.views(names), next_cursor


async def _visible_names(
    topics: Topics, visible: TopicPatterns, cursor: str | None, limit: int
) -> tuple[list[str], str | None]:
    seen: list[str] = []
    while True:
        step, behind_step = await topics.names(cursor, limits.PAGE_MAX)
        places = [place for place, name in enumerate(step, 1) if visible.match(name)][: limit - len(seen)]
        seen += [step[place - 1] for place in places]
        if len(seen) == limit:
            return seen, await _cursor_behind(topics, cursor, places[-1], seen[-1])
        if behind_step is None:
            return seen, None
        cursor = behind_step


async def _cursor_behind(topics: Topics, cursor: str | None, place: int, name: str) -> str | None:
    """The cursor of a page that ends with `name`, which was at `place` behind `cursor` just now."""
    for _ in range(_TRIES):
        page, behind_page = await topics.names(cursor, place)
        if page[-1:] == [name]:
            return behind_page
        # Topics have come or gone before it: look for its new place, if it is still there.
        step, _ = await topics.names(cursor, limits.PAGE_MAX)
        if name not in step:
            break
        place = step.index(name) + 1
    raise StoreUnavailable("the list of topics changes too fast to be read page by page")
