"""The metrics of pushes, labelled by topic like the engine's metrics; see `deferd.engine.metrics`."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from deferd.engine.metrics import LATENESS_BUCKETS, FastHistogram

REQUESTS = Counter(
    "deferd_push_requests",
    "Requests to the targets of pushed topics, by outcome: finished, accepted, snoozed, buried, released, withdrawn.",
    ["topic", "outcome"],
)
SECONDS = FastHistogram(
    "deferd_push_request_seconds",
    "From the beginning of a request to a target to the end of its response, or to its failure.",
    ["topic"],
    buckets=LATENESS_BUCKETS,
)
IN_FLIGHT = Gauge("deferd_push_in_flight", "Requests to targets that are under way.", multiprocess_mode="livesum")
