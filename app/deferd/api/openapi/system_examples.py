"""Examples of the responses of `deferd.api.routes.system`."""

from __future__ import annotations

from typing import Any

EXAMPLES: dict[str, list[Any]] = {
    "Overview": [
        {
            "now": "2026-11-21T03:12:00.000Z",
            "topics": [
                {
                    "topic": "orders.close",
                    "paused": False,
                    "counts": {"delayed": 120412, "ready": 1204, "reserved": 0, "dead": 3},
                    "oldest_ready_at": "2026-11-21T03:08:00.000Z",
                    "next_due_at": "2026-11-21T03:12:16.000Z",
                    "rate": 0.0,
                }
            ],
            "matching": 1,
            "totals": {"delayed": 120412, "ready": 1204, "reserved": 0, "dead": 3},
            "complete": True,
        }
    ],
    "System": [
        {
            "now": "2026-11-21T03:12:00.000Z",
            "version": "0.2.0",
            "process": {"pid": 4711, "workers": 2, "started_at": "2026-11-20T08:00:00.000Z", "python": "3.13.1"},
            "store": {
                "server": "valkey 9.1.2",
                "embedded": True,
                "up_since": "2026-11-20T08:00:00.000Z",
                "memory_bytes": 1073741824,
                "peak_memory_bytes": 1181116006,
                "memory_limit_bytes": None,
                "clients": 9,
                "role": "master",
                "replicas": 0,
                "durability": "fsync",
                "why_not_fsync": None,
            },
            "shards": [{"shard": 0, "topics": 12, "timer": True, "work_due_at": "2026-11-21T03:12:16.000Z"}],
            "unreadable_shards": [],
            "shard_count": 1,
            "settings": {"port": 8000, "workers": 2, "shards": 1},
        }
    ],
    "OwnKey": [
        {
            "name": "shop",
            "scopes": ["put", "read"],
            "topics": ["orders.*"],
            "requests_per_second": 100,
            "limits": {"max_jobs": 100000},
        }
    ],
}
