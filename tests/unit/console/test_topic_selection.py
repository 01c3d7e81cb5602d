"""A change of many topics: those that refuse are named, and when all would, the others are left alone."""

from __future__ import annotations

from typing import cast

import pytest

from deferd.console.api_calls import ApiRefused
from deferd.console.views.forms import Form
from deferd.console.views.topic_selection import TOPICS, change_each
from deferd.console.visit import Visit

NAMES = [f"t{number}" for number in range(6)]


class VisitWithRoom:
    """As much of a visit as a change of topics needs; `room` is how many requests the key's rate limit allows."""

    def __init__(self, room: int = 100) -> None:
        self.room = room

    def has_room_for(self, requests: int) -> bool:
        return requests <= self.room


async def changed(refusals: dict[str, int], room: int = 100) -> tuple[list[str], int, str]:
    """Which topics were changed or tried, how many the caller hears of, and the errors."""
    form, tried = Form((TOPICS,), {}), []

    async def change(topic: str) -> None:
        tried.append(topic)
        if topic in refusals:
            raise ApiRefused(refusals[topic], {"detail": f"refused with {refusals[topic]}"})

    count = await change_each(cast(Visit, VisitWithRoom(room)), form, NAMES, change)
    return tried, count, form.errors.get("", "")


async def test_a_topic_that_refuses_is_named_and_the_others_are_changed() -> None:
    tried, count, errors = await changed({"t0": 422, "t3": 404, "t5": 503})
    assert (tried, count) == (NAMES, 3)
    assert errors == "t0: refused with 422; t3: refused with 404; t5: refused with 503"


async def test_a_refusal_that_concerns_all_ends_it() -> None:
    tried, count, errors = await changed({"t2": 429})
    assert (tried, count) == (NAMES[:3], 2)
    assert errors == "t2: refused with 429; the 3 after it were not tried"
    with pytest.raises(ApiRefused, match="refused with 403"):
        await changed({"t0": 403})


async def test_a_store_that_is_down_is_not_asked_for_each_topic() -> None:
    tried, count, errors = await changed(dict.fromkeys(NAMES, 503))
    assert (tried, count) == (NAMES[:3], 0)
    assert errors.endswith("t2: refused with 503; the 3 after it were not tried")


async def test_nothing_is_begun_without_room_in_the_rate_limit() -> None:
    assert await changed({}, room=5) == ([], 0, "Your key's rate limit has no room for 6 requests now.")
