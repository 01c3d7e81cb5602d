"""Examples of the responses of `deferd.api.routes.inspection` and `now`, by the name of their schema."""

from __future__ import annotations

from typing import Any

_ID, _TOPIC = "order-1042", "orders.close"

_EVENT: dict[str, Any] = {
    "topic": _TOPIC,
    "id": "order-1042",
    "event": "released",
    "at": "2026-11-21T07:26:58.123Z",
    "number": 7112,
    "state": "delayed",
    "attempt": 3,
    "due_at": "2026-11-21T07:27:06.123Z",
    "error": "SMTP 421",
}

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "Explanation": [
        {
            "topic": _TOPIC,
            "id": _ID,
            "state": "ready",
            "reasons": [
                {
                    "code": "paused",
                    "text": "Topic orders.close has been paused for 4m by ops: it hands out no jobs.",
                    "since": "2026-11-21T07:22:58.123Z",
                    "by": "ops",
                },
                {
                    "code": "behind",
                    "text": "1,203 jobs are ahead of it; the oldest has waited 4m; consumers take 20 jobs a second; so "
                    "it may take 1m.",
                    "jobs_ahead": 1203,
                    "ready": 1204,
                    "oldest_age": 240.125,
                    "rate": 20,
                    "estimated_wait": 60.2,
                },
            ],
        }
    ],
    "DeadErrors": [
        {
            "groups": [
                {
                    "topic": "mail.remind",
                    "reason": "attempts_exhausted",
                    "error": "SMTP 421: * try again later",
                    "count": 298,
                    "first_at": "2026-11-21T02:11:07.920Z",
                    "last_at": "2026-11-21T03:02:44.318Z",
                    "samples": ["remind-7713", "remind-7712", "remind-7709"],
                }
            ],
            "left_out": 0,
            "dead": 312,
            "looked_at": 312,
            "complete": True,
            "unreadable_shards": [],
        }
    ],
    "Forecast": [
        {
            "now": "2026-11-21T07:00:00.000Z",
            "from": "2026-11-21T07:00:00.000Z",
            "to": "2026-11-21T08:00:00.000Z",
            "bucket": 1200,
            "delayed": 14203,
            "before": 0,
            "after": 13000,
            "counts": [37, 866, 300],
            "handled": 410.5,
            "scheduled": [0, 4, 4],
            "topics": [
                {
                    "topic": _TOPIC,
                    "delayed": 14203,
                    "before": 0,
                    "after": 13000,
                    "counts": [37, 866, 300],
                    "handled": 410.5,
                    "scheduled": [0, 4, 4],
                }
            ],
            "left_out": 0,
            "complete": True,
            "unreadable_shards": [],
        }
    ],
    "Now": [
        {
            "now": "2026-11-21T03:12:00.000Z",
            "alerts": [
                {
                    "severity": "critical",
                    "code": "no_consumer",
                    "topic": _TOPIC,
                    "text": "orders.close: 1,204 ready, oldest 4 min, no consumer for 6 min",
                    "ready": 1204,
                    "oldest_age": 240.125,
                    "last_consumer_at": "2026-11-21T03:05:31.404Z",
                },
                {
                    "severity": "warning",
                    "code": "dying",
                    "topic": "mail.remind",
                    "text": "mail.remind: 312 dead in 1 h, 298 of them SMTP 421: * try again later",
                    "dead": 312,
                    "top_error": "SMTP 421: * try again later",
                    "top_reason": "attempts_exhausted",
                    "top_dead": 298,
                    "exact": True,
                },
            ],
            "left_out": 0,
            "next_due_at": "2026-11-21T03:14:16.000Z",
            "next_due_jobs": 37,
            "topics_looked_at": 12,
            "complete": True,
        }
    ],
    "Event": [_EVENT],
    "Events": [{"events": [_EVENT], "last_event_id": "Ae79L-WZ2AoAAAAA", "complete": True}],
    "Consumers": [
        {
            "consumers": [
                {
                    "name": "worker-1",
                    "addresses": ["10.0.3.17"],
                    "clients": ["deferd-python/0.2.0"],
                    "topics": ["mail.*", _TOPIC],
                    "waiting": 1,
                    "last_seen_at": "2026-11-21T07:26:58.123Z",
                    "held": 8,
                    "lease_ends_at": "2026-11-21T07:27:31.904Z",
                }
            ],
            "left_out": 0,
            "nameless_held": 0,
            "complete": True,
        }
    ],
}
