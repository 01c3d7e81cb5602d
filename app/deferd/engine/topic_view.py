"""One topic as it is now: the jobs in each state, ages, settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from deferd.contract.errors import TopicNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine.inspection.standing import Pause, pause_of
from deferd.engine.push.push_definition import TargetState
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_settings import read_settings

STATES = (JobState.DELAYED, JobState.READY, JobState.RESERVED, JobState.DEAD, JobState.FINISHED)
"""The order in which scripts return counts by state."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic: how many jobs in each state, ages in ms, settings.

    `collections` are the jobs, and follow-ups, whose items are being collected. `target` is that of a pushed topic.
    """

    topic: str
    counts: dict[JobState, int]
    oldest_ready_age_ms: int | None
    next_due_at_ms: int | None
    paused: bool
    settings: TopicSettings
    follow_ups: int = 0
    collections: int = 0
    pause: Pause | None = None
    oldest_ready_due_at_ms: int | None = None
    target: TargetState | None = None


async def view_topic(scripts: Scripts, keys: Keys, topic: str) -> TopicView:
    """Read one topic.

    Raises:
        TopicNotFound, StoreUnavailable, and one of UNREADABLE_SETTINGS.
    """
    reply = await scripts.run("view", keys.of_topic(topic), (topic,))
    if reply is None:
        raise TopicNotFound(topic)
    raw_settings, *counts, oldest_due_ms, next_due_ms, now_ms, follow_ups, collections, of_target = reply
    settings = orjson.loads(raw_settings) if raw_settings else {}
    return TopicView(
        topic=topic,
        counts=dict(zip(STATES, counts, strict=True)),
        oldest_ready_age_ms=None if oldest_due_ms < 0 else max(now_ms - oldest_due_ms, 0),
        next_due_at_ms=None if next_due_ms < 0 else next_due_ms,
        paused=settings.get("p") == 1,
        settings=read_settings(settings),
        follow_ups=follow_ups,
        collections=collections,
        pause=pause_of(settings),
        oldest_ready_due_at_ms=None if oldest_due_ms < 0 else oldest_due_ms,
        target=TargetState.read(_texts(of_target), now_ms) if "pu" in settings else None,
    )


def _texts(fields: Sequence[bytes]) -> dict[str, str]:
    names = (name.decode() for name in fields[::2])
    return dict(zip(names, (value.decode(errors="replace") for value in fields[1::2]), strict=True))
