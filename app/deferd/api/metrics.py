"""The content of /metrics: durations of requests, the engine's counters, and the current state of the store.

The counters are in `deferd.engine.metrics`, the state in `deferd.api.store_metrics`. With `PROMETHEUS_MULTIPROC_DIR`
the metrics of all server processes are added up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from deferd.api.store_metrics import StoreState, read_store_state, store_metrics
from deferd.engine.engine import Engine
from deferd.engine.metrics import FastHistogram

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
    state = await read_store_state(engine, max_topic_labels)
    # Adding up the files of the server processes reads the disk, so it runs outside the event loop.
    return await asyncio.to_thread(generate_latest, _AllMetrics(_process_metrics(), state))


def _process_metrics() -> Collector:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    every_process = CollectorRegistry()
    MultiProcessCollector(every_process)
    return every_process


class _AllMetrics(Collector):
    """The metrics of the processes, then the state of the store."""

    def __init__(self, processes: Collector, state: StoreState | None) -> None:
        self._processes = processes
        self._state = state

    def collect(self) -> Iterable[Metric]:
        yield from self._processes.collect()
        yield from store_metrics(self._state)
