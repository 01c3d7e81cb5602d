"""The content of /metrics: durations of requests, and the current state of the store.

The engine's counters are in `deferd.engine.metrics`. With `PROMETHEUS_MULTIPROC_DIR` the metrics of all server
processes are added up. The state of the store is read once per scrape, by the process that serves it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from deferd.contract import limits
from deferd.contract.errors import DeferdError
from deferd.engine.engine import Engine
from deferd.engine.metrics import OTHER_TOPICS, FastHistogram
from deferd.engine.topic_list import Totals
from deferd.engine.topic_view import TopicView

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
STORE_READ_TIMEOUT_S = 5.0
_UNKNOWN_ROUTE = "unknown"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

_log = logging.getLogger(__name__)


_REQUEST_SECONDS = FastHistogram(
    "deferd_http_request_seconds",
    "Seconds from a request to its response; that of a pop includes its wait.",
    ["route", "method", "status"],
    buckets=_BUCKETS,
)
_observers: dict[tuple[str | None, str, int], FastHistogram] = {}
"""By what `observe_request` is given; with unusual methods counted as `other`, their number is bounded."""


def observe_request(route: str | None, method: str, status: int, took_s: float) -> None:
    """Count one request. `route` is the template of its path, None for an unknown path; `status` 0: no response."""
    observer = _observers.get((route, method, status))
    if observer is None:
        observer = _new_observer(route, method, status)
    observer.observe_s(took_s)


def _new_observer(route: str | None, method: str, status: int) -> FastHistogram:
    known_method = method if method in _METHODS else "other"
    status_class = f"{status // 100}xx" if status else "none"
    observer = _REQUEST_SECONDS.labels(route or _UNKNOWN_ROUTE, known_method, status_class)
    if method == known_method:
        _observers[route, method, status] = observer
    return observer


async def exposition(engine: Engine, max_topic_labels: int) -> bytes:
    """All metrics in Prometheus' text format; without the state of the store while that is down."""
    store = await _read_store(engine, max_topic_labels)
    # Adding up the files of the server processes reads the disk, so it runs outside the event loop.
    return await asyncio.to_thread(generate_latest, _AllMetrics(_process_metrics(), store))


class _StoreState(NamedTuple):
    """The topics with their own labels, and the sums over all others, without `unreadable` shards."""

    topics: list[TopicView]
    others: Totals | None
    unreadable: set[int]


async def _read_store(engine: Engine, max_topic_labels: int) -> _StoreState | None:
    """The state of the store, or None when it does not respond in time."""
    try:
        async with asyncio.timeout(STORE_READ_TIMEOUT_S):
            views: list[TopicView] = []
            cursor: str | None = None
            unreadable: set[int] = set()
            if max_topic_labels:
                page = await engine.topic_list.page(None, max_topic_labels)
                views, cursor = page.views, page.next_cursor
                unreadable.update(page.unreadable)
                if cursor is None:
                    return _StoreState(views, None, unreadable)
            others = Totals()
            while True:
                names = await engine.topic_list.names(cursor, limits.PAGE_MAX, without=unreadable)
                unreadable |= names.unreadable
                for shard, totals in (await engine.topic_list.totals(names.names)).items():
                    if totals is None:
                        unreadable.add(shard)
                    else:
                        others.add(totals)
                cursor = names.next_cursor
                if cursor is None:
                    return _StoreState(views, others, unreadable)
    except (DeferdError, TimeoutError) as error:
        _log.warning("the store could not be read for /metrics: %s", str(error) or "it took too long")
        return None


def _store_metrics(store: _StoreState | None) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "deferd_store_up",
        "1 when the store, or a shard of it, responded for this scrape, else 0.",
        store is not None,
    )
    if store is None:
        return
    yield GaugeMetricFamily(
        "deferd_store_unreadable_shards",
        "Shards of the store that could not be read for this scrape; their topics are omitted.",
        len(store.unreadable),
    )
    jobs = GaugeMetricFamily("deferd_jobs", "Jobs in the store, by topic and state.", labels=["topic", "state"])
    age = GaugeMetricFamily(
        "deferd_oldest_ready_age_seconds",
        "Seconds since the oldest ready job was due; 0 when none is ready.",
        labels=["topic"],
    )
    next_due = GaugeMetricFamily(
        "deferd_next_due_timestamp_seconds",
        "When the next delayed job is due, in seconds since the epoch; omitted when none is delayed.",
        labels=["topic"],
    )
    paused = GaugeMetricFamily("deferd_topic_paused", "1 when the topic is paused, else 0.", labels=["topic"])
    follow_ups = GaugeMetricFamily(
        "deferd_follow_ups",
        "Puts that wait until the job with their id has ended; omitted when there are none.",
        labels=["topic"],
    )
    collections = GaugeMetricFamily(
        "deferd_collections",
        "Jobs and follow-ups to which appends add items; omitted when there are none.",
        labels=["topic"],
    )
    for view in store.topics:
        for state, count in view.counts.items():
            jobs.add_metric((view.topic, state.value), count)
        age.add_metric((view.topic,), (view.oldest_ready_age_ms or 0) / 1000)
        if view.next_due_at_ms is not None:
            next_due.add_metric((view.topic,), view.next_due_at_ms / 1000)
        paused.add_metric((view.topic,), view.paused)
    if store.others is not None:
        for state, count in store.others.jobs.items():
            jobs.add_metric((OTHER_TOPICS, state.value), count)
    for name, counted in [*((view.topic, view) for view in store.topics), (OTHER_TOPICS, store.others)]:
        if counted is not None and counted.follow_ups:
            follow_ups.add_metric((name,), counted.follow_ups)
        if counted is not None and counted.collections:
            collections.add_metric((name,), counted.collections)
    yield from (jobs, age, next_due, paused, follow_ups, collections)


def _process_metrics() -> Collector:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    every_process = CollectorRegistry()
    MultiProcessCollector(every_process)
    return every_process


class _AllMetrics(Collector):
    """The metrics of the processes, then the state of the store."""

    def __init__(self, processes: Collector, store: _StoreState | None) -> None:
        self._processes = processes
        self._store = store

    def collect(self) -> Iterable[Metric]:
        yield from self._processes.collect()
        yield from _store_metrics(self._store)
