"""Examples of the responses of `deferd.api.routes.history`, by the name of their schema."""

from __future__ import annotations

from typing import Any

_BUCKETS = {
    "bucket": 10,
    "from": "2026-11-21T07:00:00.000Z",
    "to": "2026-11-21T07:00:30.000Z",
}
_COLUMNS = {
    "at": [1795244400, 1795244410, 1795244420],
    "put": [120, 0, 118],
    "popped": [97, 103, 0],
    "finished": [95, 104, 1],
    "released": [2, 0, 0],
    "dead": [0, 1, 0],
    "cancelled": [11, 0, 3],
    "lateness_p50": [0.0041, 0.0039, None],
    "lateness_p99": [0.0482, 0.0391, None],
    "delayed": [14203, 14203, 14318],
    "ready": [0, 0, 0],
    "reserved": [4, 2, 1],
    "dead_jobs": [312, 313, 313],
}
_NOT_KNOWN = dict.fromkeys(("delayed", "ready", "reserved", "dead_jobs"), [None] * 3)

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "TopicHistory": [{"topic": "orders.close", **_BUCKETS, "buckets": _COLUMNS}],
    "History": [{**_BUCKETS, "buckets": {**_COLUMNS, **_NOT_KNOWN}, "complete": True, "unreadable_shards": []}],
}
