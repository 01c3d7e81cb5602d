"""Examples of the response of `deferd.api.routes.activity`, by the name of its schema."""

from __future__ import annotations

from typing import Any

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "Activity": [
        {
            "activity": [
                {
                    "at": "2026-11-21T07:26:58.123Z",
                    "by": "ops",
                    "via": "console",
                    "operation": "redrive_jobs",
                    "outcome": "done",
                    "topic": "orders.close",
                    "filter": '{"limit":1000,"reason":"attempts_exhausted"}',
                    "count": 312,
                },
                {
                    "at": "2026-11-21T07:20:01.402Z",
                    "by": "ops",
                    "via": "cli",
                    "operation": "pause_topic",
                    "outcome": "done",
                    "topic": "orders.close",
                },
            ],
            "next_cursor": None,
        }
    ],
}
