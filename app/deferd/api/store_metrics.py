"""The metrics of the store's state: jobs and consumers by topic, and facts about the store. Read once a scrape."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from deferd.api.openapi.document import VERSION
from deferd.contract.errors import DeferdError, StoreUnavailable
from deferd.engine.engine import Engine
from deferd.engine.metrics import OTHER_TOPICS
from deferd.engine.topic_list import Totals
from deferd.engine.topic_view import TopicView
from deferd.store.durability_levels import level_named
from deferd.store.store_facts import UNKNOWN, StoreFacts

STORE_READ_TIMEOUT_S = 5.0
OTHERS_TIMEOUT_S = 2.0
"""How long a scrape waits for the sums over the other topics; it omits them then."""

_log = logging.getLogger(__name__)


class StoreState(NamedTuple):
    """The topics with their own labels, and the sums over all others, None for none; without `unreadable` shards.

    `consumers` were seen within a minute, by topic; only topics for which that is known.
    """

    facts: StoreFacts
    topics: list[TopicView]
    others: Totals | None
    unreadable: set[int]
    consumers: dict[str, int]


async def read_store_state(engine: Engine, max_topic_labels: int) -> StoreState | None:
    """The state of the store, or None when it does not respond in time."""
    try:
        async with asyncio.timeout(STORE_READ_TIMEOUT_S):
            facts = await engine.store_facts()
            views: list[TopicView] = []
            names: list[str] = []
            cursor: str | None = None
            unreadable: set[int] = set()
            if max_topic_labels:
                found = await engine.topic_list.names(None, max_topic_labels)
                page = await engine.topic_list.views(found)
                views, names, cursor = page.views, found.names, page.next_cursor
                unreadable.update(page.unreadable)
            consumers = await _consumers(engine, [view.topic for view in views])
            if max_topic_labels and cursor is None:
                return StoreState(facts, views, None, unreadable, consumers)
            try:
                async with asyncio.timeout(OTHERS_TIMEOUT_S):
                    others = await engine.topic_list.sum_of_others(names, unreadable)
            except TimeoutError:  # it is read on, for a later scrape
                return StoreState(facts, views, None, unreadable, consumers)
            return StoreState(facts, views, others.totals, unreadable | others.unreadable, consumers)
    except (DeferdError, TimeoutError) as error:
        _log.warning("the store could not be read for /metrics: %s", str(error) or "it took too long")
        return None


async def _consumers(engine: Engine, topics: list[str]) -> dict[str, int]:
    try:
        return await engine.consumer_registry.count(topics)
    except StoreUnavailable:  # their shard is away, the topics may be in others
        return {}


def store_metrics(state: StoreState | None) -> Iterable[Metric]:
    """The metrics of a state; None: the store is down."""
    build = GaugeMetricFamily(
        "deferd_build_info",
        "1, with the versions of deferd, Python and the store ('unknown' while the store is down).",
        labels=["version", "python", "store"],
    )
    build.add_metric((VERSION, platform.python_version(), UNKNOWN if state is None else state.facts.server), 1)
    yield build
    yield GaugeMetricFamily(
        "deferd_store_up",
        "1 when the store, or a shard of it, responded for this scrape, else 0.",
        state is not None,
    )
    if state is None:
        return
    yield GaugeMetricFamily(
        "deferd_store_unreadable_shards",
        "Shards of the store that could not be read for this scrape; their topics are omitted.",
        len(state.unreadable),
    )
    yield GaugeMetricFamily(
        "deferd_store_fsync",
        "1 when the store fsyncs before it replies, so that a put is on disk, else 0.",
        state.facts.fsyncs,
    )
    yield GaugeMetricFamily("deferd_store_replicas", "Replicas of the store that are online.", state.facts.replicas)
    yield from _topic_metrics(state)


def _topic_metrics(state: StoreState) -> Iterable[Metric]:
    jobs = GaugeMetricFamily("deferd_jobs", "Jobs in the store, by topic and state.", labels=["topic", "state"])
    age = _by_topic(
        "deferd_oldest_ready_age_seconds", "Seconds since the oldest ready job was due; 0 when none is ready."
    )
    next_due = _by_topic(
        "deferd_next_due_timestamp_seconds",
        "When the next delayed job is due, in seconds since the epoch; omitted when none is delayed.",
    )
    paused = _by_topic("deferd_topic_paused", "1 when the topic is paused, else 0.")
    consumers = _by_topic(
        "deferd_consumers", "Consumers that popped within the last minute, from any process; omitted when not known."
    )
    durability = _by_topic(
        "deferd_topic_durability_available",
        "1 when the store supports the durability that the topic's settings require, else 0; only topics with one.",
    )
    follow_ups = _by_topic(
        "deferd_follow_ups", "Puts that wait until the job with their id has ended; omitted when there are none."
    )
    collections = _by_topic(
        "deferd_collections", "Jobs and follow-ups to which appends add items; omitted when there are none."
    )
    circuits = _by_topic(
        "deferd_push_circuit_open",
        "1 while the circuit of a pushed topic's target is open or half open, else 0; only pushed topics.",
    )
    for view in state.topics:
        if view.target is not None:
            circuits.add_metric((view.topic,), view.target.circuit != "closed")
        for job_state, count in view.counts.items():
            jobs.add_metric((view.topic, job_state.value), count)
        age.add_metric((view.topic,), (view.oldest_ready_age_ms or 0) / 1000)
        if view.next_due_at_ms is not None:
            next_due.add_metric((view.topic,), view.next_due_at_ms / 1000)
        paused.add_metric((view.topic,), view.paused)
        if view.topic in state.consumers:
            consumers.add_metric((view.topic,), state.consumers[view.topic])
        if view.settings.durability is not None:
            is_available = state.facts.supports(level_named(view.settings.durability))
            durability.add_metric((view.topic,), is_available)
    if state.others is not None:
        for job_state, count in state.others.jobs.items():
            jobs.add_metric((OTHER_TOPICS, job_state.value), count)
    for name, counted in [*((view.topic, view) for view in state.topics), (OTHER_TOPICS, state.others)]:
        if counted is not None and counted.follow_ups:
            follow_ups.add_metric((name,), counted.follow_ups)
        if counted is not None and counted.collections:
            collections.add_metric((name,), counted.collections)
    yield from (jobs, age, next_due, paused, consumers, durability, follow_ups, collections, circuits)


def _by_topic(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["topic"])
