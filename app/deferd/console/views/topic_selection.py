"""Many topics at once: those that are named or match a pattern, and a change of each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from deferd.console.api_calls import ApiRefused, api_path
from deferd.console.views.forms import Form, FormField, comma_separated, read_list
from deferd.console.visit import Visit
from deferd.contract import limits
from deferd.contract.topic_patterns import TopicPatterns

TOPICS = FormField("topics", "Topics", "names and patterns such as tenant.*", read_list, comma_separated)
_TOPICS_MAX = 200
_SEARCHED = limits.PAGE_MAX
_NO_TOPIC, _NOT_VALID, _STORE_DOWN = 404, 422, 503
_STORE_FAILURES_MAX = 3


def chosen_topics(visit: Visit) -> str:
    """The text for `TOPICS` that a URL has: topics selected in a list, or else all that its filter finds."""
    like = visit.query.get("like", "").strip()
    return comma_separated(visit.query_values("topics")) or (f"*{like}*" if like else "")


async def matching_topics(visit: Visit, form: Form, named: Sequence[str]) -> list[str]:
    """The topics, sorted; none, with an error noted, if there are none or too many."""
    found = {name for name in named if "*" not in name}
    for pattern in (name for name in named if "*" in name):
        part = max(pattern.split("*"), key=len)
        listing = await visit.read(api_path("overview"), name=part or None, sort="topic", limit=_SEARCHED)
        if listing["matching"] > _SEARCHED:
            form.add_error("topics", f"{listing['matching']:,} topics have “{part}” in their names: name fewer")
            return []
        patterns = TopicPatterns([pattern])
        found |= {one["topic"] for one in listing["topics"] if patterns.match(one["topic"])}
    if not found:
        form.add_error("topics", "is required" if not named else "matches no topic")
    elif len(found) > _TOPICS_MAX:
        form.add_error("topics", f"are {len(found):,}: at most {_TOPICS_MAX} can be changed at once")
        return []
    return sorted(found)


async def fresh_topic(visit: Visit, topic: str) -> dict[str, Any] | None:
    """A topic as it is now; None if there is none."""
    try:
        view: dict[str, Any] = orjson.loads(await visit.read_fresh(api_path("topics", topic)))
    except ApiRefused as refused:
        if refused.status != _NO_TOPIC:
            raise
        return None
    return view


async def change_each(
    visit: Visit, form: Form, topics: Sequence[str], change: Callable[[str], Awaitable[object]]
) -> int:
    """Change one topic after the other. Returns how many were changed; the form has an error for each other one.

    After a refusal that concerns one topic the next is tried. Any other would be that of all: the rest is left alone.

    Raises:
        ApiRefused: all would be refused, such as for a missing scope.
    """
    if not visit.has_room_for(len(topics)):
        form.add_error("", f"Your key's rate limit has no room for {len(topics)} requests now.")
        return 0
    changed = store_failures = 0
    for place, topic in enumerate(topics):
        try:
            await change(topic)
        except ApiRefused as refused:
            store_failures += refused.status == _STORE_DOWN  # of one shard, or of all
            is_of_topic = refused.status in {_NO_TOPIC, _NOT_VALID, _STORE_DOWN}
            if not is_of_topic and not place:
                raise
            form.add_error("", f"{topic}: {refused}")
            if not is_of_topic or store_failures == _STORE_FAILURES_MAX:
                if place + 1 < len(topics):
                    form.add_error("", f"the {len(topics) - place - 1} after it were not tried")
                break
        else:
            changed += 1
    return changed
