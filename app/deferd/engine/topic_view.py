"""One topic as it is now: the jobs in each state, ages, settings.

The partitions of a topic are read at about the same time, not at the same instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from deferd.contract.errors import TopicNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine.inspection.standing import Pause, pause_of
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import names_of
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


async def get_topic(scripts: Scripts, keys: Keys, topic: str) -> TopicView:
    """Read one topic: the sums over its partitions, the oldest and the next job of all, the settings of the first.

    Raises:
        TopicNotFound.
        StoreUnavailable: also when one of its partitions cannot be reached.
        One of UNREADABLE_SETTINGS.
    """
    known = keys.partitions.of(topic)
    if len(known) == 1:
        replies = [await _read(scripts, keys, topic)]
    else:
        replies = list(await asyncio.gather(*(_read(scripts, keys, partition) for partition in known)))
    first = replies[0]
    if first is None:
        raise TopicNotFound(topic)
    view = _view(topic, first)
    count = view.settings.partitions or 1
    if count > len(known):  # this process has not been told yet
        more = names_of(topic, count)[len(known) :]
        replies += await asyncio.gather(*(_read(scripts, keys, partition) for partition in more))
    # A partition to which the settings are still to be copied is not known yet.
    others = [_view(topic, reply) for reply in replies[1:] if reply is not None]
    return _sum_of([view, *others]) if others else view


async def partitions_of(scripts: Scripts, keys: Keys, partitions: PartitionStore, topic: str) -> tuple[str, ...]:
    """The partitions of a topic, also when this process has not been told yet that it has more. Raises as get_topic.

    One call of the store, unless there are more.
    """
    reply = await _read(scripts, keys, topic)
    if reply is None:
        raise TopicNotFound(topic)
    if (_view(topic, reply).settings.partitions or 1) != partitions.known.count(topic):
        await partitions.refresh(topic)
    return partitions.known.of(topic)


async def _read(scripts: Scripts, keys: Keys, partition: str) -> list[Any] | None:
    reply: list[Any] | None = await scripts.run("topic_get", keys.of_topic(partition), (partition,))
    return reply


def _view(topic: str, reply: list[Any]) -> TopicView:
    """What was read of one partition."""
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


def _sum_of(views: Sequence[TopicView]) -> TopicView:
    """The view of a topic, by those of its partitions."""
    ages = [view.oldest_ready_age_ms for view in views if view.oldest_ready_age_ms is not None]
    oldest = [view.oldest_ready_due_at_ms for view in views if view.oldest_ready_due_at_ms is not None]
    next_due = [view.next_due_at_ms for view in views if view.next_due_at_ms is not None]
    return replace(
        views[0],
        counts={state: sum(view.counts[state] for view in views) for state in STATES},
        oldest_ready_age_ms=max(ages, default=None),
        next_due_at_ms=min(next_due, default=None),
        oldest_ready_due_at_ms=min(oldest, default=None),
        follow_ups=sum(view.follow_ups for view in views),
        collections=sum(view.collections for view in views),
    )


def _texts(fields: Sequence[bytes]) -> dict[str, str]:
    names = (name.decode() for name in fields[::2])
    return dict(zip(names, (value.decode(errors="replace") for value in fields[1::2]), strict=True))
