"""The content of /metrics: durations of requests, the engine's counters, and the current state of the store.

The counters are in `deferd.engine.metrics`. With `PROMETHEUS_MULTIPROC_DIR` the metrics of all server processes are
added up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from deferd.api.openapi.document import VERSION
from deferd.contract.errors import DeferdError, StoreUnavailable
from deferd.engine.engine import Engine
from deferd.engine.inspection.relays import Outbox
from deferd.engine.metrics import OTHER_TOPICS, FastHistogram
from deferd.engine.shelf import Status
from deferd.engine.topic_list import Totals
from deferd.engine.topics import TopicView
from deferd.store.durability_levels import level_named
from deferd.store.store_facts import UNKNOWN, StoreFacts

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_UNKNOWN_ROUTE = "unknown"
RESP_METHOD = "RESP"
"""Stands for the HTTP method of requests that came as commands of the Redis protocol."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", RESP_METHOD})
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

disable_created_metrics()  # a second series for each counter, which nobody reads

_REQUEST_SECONDS = FastHistogram(
    "deferd_http_request_seconds",
    "Seconds from a request to its response; that of a pop includes its wait.",
    ["route", "method", "status"],
    buckets=_BUCKETS,
)
_observers: dict[tuple[str | None, str, int], FastHistogram] = {}
"""By the arguments of `observe_request`. Unusual methods count as `other`, which bounds their number."""


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
    """All metrics in Prometheus' text format; without the jobs and topics of the store while that is down."""
    state, shelf = await asyncio.gather(read_store_state(engine, max_topic_labels), engine.shelf.status())
    # Adding up the files of the server processes reads the disk, so it runs outside the event loop.
    return await asyncio.to_thread(generate_latest, _AllMetrics(_process_metrics(), state, shelf))


def _process_metrics() -> Collector:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    every_process = CollectorRegistry()
    MultiProcessCollector(every_process)
    return every_process


class _AllMetrics(Collector):
    """The metrics of the processes, then the state of the store and of the shelf."""

    def __init__(self, processes: Collector, state: StoreState | None, shelf: Status | None) -> None:
        self._processes = processes
        self._state = state
        self._shelf = shelf

    def collect(self) -> Iterable[Metric]:
        yield from self._processes.collect()
        yield from store_metrics(self._state)
        yield from _shelf_metrics(self._shelf)


STORE_READ_TIMEOUT_S = 5.0
OTHERS_TIMEOUT_S = 2.0
"""How long a scrape waits for the sums over the other topics; it omits them then."""

_log = logging.getLogger("deferd.api.store_metrics")  # filters of logs know the name


class StoreUsers(NamedTuple):
    """The format of the store, and how many server processes use it, by version of deferd."""

    format: int
    processes: Mapping[str, int]


class StoreState(NamedTuple):
    """The topics with their own labels, and the sums over all others, None for none; without `unreadable` shards.

    `consumers` were seen within a minute, by topic; only topics for which that is known. `outboxes` are those that
    relays have reported.
    """

    facts: StoreFacts
    users: StoreUsers
    topics: list[TopicView]
    others: Totals | None
    unreadable: set[int]
    consumers: dict[str, int]
    outboxes: list[Outbox]


async def read_store_state(engine: Engine, max_topic_labels: int) -> StoreState | None:
    """The state of the store, or None when it does not respond in time."""
    try:
        async with asyncio.timeout(STORE_READ_TIMEOUT_S):
            facts = await engine.store_facts()
            counted = Counter(one.release for one in await engine.processes.read())
            users = StoreUsers(engine.processes.format, counted)
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
            state = StoreState(facts, users, views, None, unreadable, consumers, await _outboxes(engine))
            if max_topic_labels and cursor is None:
                return state
            try:
                async with asyncio.timeout(OTHERS_TIMEOUT_S):
                    others = await engine.topic_list.sum_of_others(names, unreadable)
            except TimeoutError:  # it is read on, for a later scrape
                return state
            return state._replace(others=others.totals, unreadable=unreadable | others.unreadable)
    except (DeferdError, TimeoutError) as error:
        _log.warning("the store could not be read for /metrics: %s", str(error) or "it took too long")
        return None


async def _consumers(engine: Engine, topics: list[str]) -> dict[str, int]:
    try:
        return await engine.consumer_registry.count(topics)
    except StoreUnavailable:  # their shard is away, the topics may be in others
        return {}


async def _outboxes(engine: Engine) -> list[Outbox]:
    try:
        return list((await engine.relays.read()).outboxes())
    except StoreUnavailable:  # as above
        return []


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
    yield GaugeMetricFamily(
        "deferd_store_format", "The format of what the store holds; a release knows two of them.", state.users.format
    )
    processes = GaugeMetricFamily(
        "deferd_store_processes", "Server processes that use the store, by version of deferd.", labels=["version"]
    )
    for version, count in state.users.processes.items():
        processes.add_metric((version,), count)
    yield processes
    yield GaugeMetricFamily("deferd_store_replicas", "Replicas of the store that are online.", state.facts.replicas)
    yield from _outbox_metrics(state.outboxes)
    yield from _topic_metrics(state)


def _outbox_metrics(outboxes: list[Outbox]) -> Iterable[Metric]:
    is_up = _by_database(
        "deferd_outbox_relay_up", "1 while a relay sends the outbox, else 0, until a day after the last report."
    )
    lag = _by_database("deferd_outbox_lag_seconds", "Age of the oldest row in the outbox; 0 without rows.")
    rows = _by_database("deferd_outbox_rows", "Rows in the outbox, an estimate above 10,000.")
    refused = _by_database("deferd_outbox_refused_rows", "Rows of the outbox that the service refused.")
    for database, worker, _, _ in outboxes:
        is_up.add_metric((database,), worker is not None)
        if worker is not None:
            lag.add_metric((database,), worker.report.lag_s)
            rows.add_metric((database,), worker.report.rows)
            refused.add_metric((database,), worker.report.refused)
    if outboxes:
        yield from (is_up, lag, rows, refused)


def _by_database(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["database"])


def _shelf_metrics(shelf: Status | None) -> Iterable[Metric]:
    if shelf is None:
        return
    yield GaugeMetricFamily(
        "deferd_shelf_up",
        "1 when the shelf's jobs can be read and moved, 0 when none can, or some that were tried cannot be read; only "
        "services with a shelf.",
        shelf.fault is None and not shelf.unreadable,
    )
    if shelf.fault is not None:
        return
    if shelf.jobs is not None:
        yield GaugeMetricFamily("deferd_shelf_jobs", "Delayed jobs on the shelf.", shelf.jobs)
    yield GaugeMetricFamily(
        "deferd_shelf_bytes",
        "The size of the shelf's files, without the log of the last changes.",
        shelf.bytes_on_disk,
    )
    moved = CounterMetricFamily(
        "deferd_shelf_moved",
        "Jobs that went to the shelf (out) and were loaded into the store (in) since its process was started.",
        labels=["way"],
    )
    moved.add_metric(("out",), shelf.moved_out)
    moved.add_metric(("in",), shelf.moved_in)
    yield moved
    yield GaugeMetricFamily(
        "deferd_shelf_behind_seconds",
        "For how long jobs have been on the shelf that are due within half of the time in which jobs are loaded; 0 "
        "without such jobs.",
        shelf.behind_s,
    )


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
