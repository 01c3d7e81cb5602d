"""Examples for the OpenAPI document, by the name of their schema. Tests hold each against its schema's model."""

from __future__ import annotations

from typing import Any

from deferd.api.openapi import (
    activity_examples,
    history_examples,
    inspection_examples,
    push_examples,
    system_examples,
    task_schemas,
)
from deferd.contract.finding_kinds import FindingKind

_ID, _TOPIC = "order-1042", "orders.close"
_BACKOFF = {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0}
_RECEIPT = "0f3a9c21b7d4.1"
_TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

_JOB = {
    "topic": _TOPIC,
    "id": _ID,
    "state": "delayed",
    "body": {"order": 1042},
    "created_at": "2026-11-21T06:56:58.123Z",
    "due_at": "2026-11-21T07:26:58.123Z",
    "ttr": 60,
    "attempts": 0,
    "max_attempts": None,
    "backoff": _BACKOFF,
    "ttl": None,
    "retain": 0,
}
_STORED_JOB = {**_JOB, "durability": "fsync"}
_DEAD_JOB = {
    **_JOB,
    "state": "dead",
    "attempts": 3,
    "max_attempts": 3,
    "backoff": {"kind": "schedule", "seconds": [120, 600, 3600], "then": "dead", "jitter": 0},
    "last_error": "the payment service responded with 502",
    "reason": "attempts_exhausted",
    "dead_at": "2026-11-21T08:39:02.415Z",
}
_DELIVERY = {
    **_JOB,
    "state": "reserved",
    "attempts": 1,
    "reserved_until": "2026-11-21T07:27:58.130Z",
    "reserved_by": "worker-1",
    "traceparent": _TRACEPARENT,
    "receipt": _RECEIPT,
    "attempt": 1,
}
_OFFICE = {"zone": "Europe/Berlin", "days": ["mon", "tue", "wed", "thu", "fri"], "from": "09:00", "to": "18:00"}
_CALENDAR = {"name": "office", "windows": [{**_OFFICE, "except": ["2026-12-24"]}]}
_PLACED_JOB = {
    **_JOB,
    "due_at": "2026-11-23T08:00:00.000Z",
    "asked_for": "2026-11-21T07:26:58.123Z",
    "window": _OFFICE,
}
_TOPIC_SETTINGS = {
    "ttr": 30,
    "max_attempts": 5,
    "backoff": {"kind": "fixed", "seconds": 10, "jitter": 0.1},
    "ttl": None,
    "retain": 86400,
    "window": "office",
    "spread": 60,
    "max_jobs": 100000,
    "durability": None,
    "events": 0,
    "partitions": None,
}
_TOPIC_VIEW = {
    "topic": _TOPIC,
    "paused": False,
    "counts": {"delayed": 12, "ready": 0, "reserved": 1, "dead": 0, "finished": 0},
    "oldest_ready_age": None,
    "oldest_ready_at": None,
    "next_due_at": "2026-11-21T07:26:58.123Z",
    "settings": _TOPIC_SETTINGS,
}

_AUDIT = {
    "topic": _TOPIC,
    "clean": False,
    "repaired": False,
    "checked": 14,
    "counts": {"delayed": 12, "ready": 1, "reserved": 1, "dead": 0, "finished": 0},
    "sums": {"put": 5014, "finished": 4800, "cancelled": 200, "dropped": 0, "lost": 0, "dead": 0, "live": 14},
    "timer_overdue": 0,
    "findings": [
        {
            "kind": "in_no_place",
            "found": 1,
            "meaning": FindingKind.IN_NO_PLACE.meaning,
            "repair": FindingKind.IN_NO_PLACE.repair,
        }
    ],
    "examples": [{"kind": "in_no_place", "subject": _ID, "detail": "due 2026-11-21T07:16:58.123Z"}],
}
_STORE_AUDIT = {
    "clean": True,
    "repaired": False,
    "unlisted": [],
    "findings": [],
    "examples": [],
    "stray_keys": [],
    "stray_count": 0,
}

_RECURRING = {"cron": "0 3 * * *", "zone": "Europe/Berlin"}
_SCHEDULE = {
    "name": "nightly",
    "topic": "reports",
    "job": {"max_attempts": 5, "body": {"report": "sales"}},
    **_RECURRING,
    "overlap": "skip",
    "catch_up": "last",
    "paused": False,
    "ended": False,
    "next_run_at": "2026-11-23T02:00:00.000Z",
    "next_job": "nightly:20261123T020000Z",
    "last_run_at": "2026-11-22T02:00:00.000Z",
    "last_job": "nightly:20261122T020000Z",
    "runs": 41,
    "skips": 0,
    "missed": 1,
    "created_at": "2026-10-11T06:56:58.123Z",
    "updated_at": "2026-10-11T06:56:58.123Z",
}

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "PutJob": [
        {"topic": _TOPIC, "id": _ID, "delay": 1800, "body": {"order": 1042}},
        {"topic": "payments", "id": "payment-7", "run_at": "2030-01-31T09:30:00.000Z", "durability": "replicated:1"},
        {
            "topic": "reminders",
            "run_at": "2030-01-31T09:30:00.000Z",
            "body": "pay the rent",
            "traceparent": _TRACEPARENT,
            "max_attempts": 5,
            "backoff": {"kind": "schedule", "seconds": [120, 600, 3600], "then": "dead"},
        },
        {"topic": "calls", "id": "call-7", "window": _OFFICE, "spread": 600},
        {"topic": "calls", "id": "call-8", "window": "office"},
    ],
    "Window": [_OFFICE, {"from": "22:00", "to": "06:00"}],
    "PutCalendar": [{"windows": [_OFFICE]}],
    "Calendar": [_CALENDAR],
    "CalendarList": [{"calendars": [_CALENDAR]}],
    "DeletedCalendar": [{"name": "office", "deleted": True}],
    "PutBatch": [
        {
            "jobs": [
                {"topic": _TOPIC, "id": _ID, "delay": 1800, "body": {"order": 1042}},
                {"topic": _TOPIC, "id": "order-1043", "delay": 1800, "body": {"order": 1043}},
            ]
        }
    ],
    "ChangeJob": [{"delay": 3600}, {"window": "office"}, {"body": {"order": 1042, "reminded": True}}],
    "CancelBatch": [{"jobs": [{"id": _ID}, {"id": "order-1043", "if_reserved": "refuse"}]}],
    "Select": [{"tag": _ID}, {"state": "delayed", "topics": ["orders.*"], "due_before": "2030-01-31T09:30:00.000Z"}],
    "CancelSelected": [
        {"select": {"tag": _ID}},
        {"select": {"ids": [{"topic": _TOPIC, "id": _ID}, {"topic": "payments", "id": "payment-7"}]}},
    ],
    "RescheduleSelected": [
        {"select": {"tag": "customer:7"}, "by": 3600, "request_id": "outage-17"},
        {"select": {"state": "ready", "topics": ["orders.*"]}, "delay": 600, "dry_run": True},
    ],
    "BulkResult": [{"matched": 4, "done": 4, "was": {"delayed": 3, "ready": 1}, "complete": True}],
    "FinishJob": [
        {"receipt": _RECEIPT},
        {"receipt": _RECEIPT, "result": {"closed": True}},
        {"receipt": _RECEIPT, "put": [{"topic": "mail", "id": "closed-1042", "body": {"order": 1042}}]},
    ],
    "FinishBatch": [{"jobs": [{"id": _ID, "receipt": _RECEIPT}, {"id": "order-1043"}]}],
    "HeldJobs": [{"jobs": [{"id": _ID, "receipt": _RECEIPT}]}],
    "ReleaseJob": [{"receipt": _RECEIPT, "error": "the payment service responded with 502"}, {"delay": 5}],
    "TouchJob": [{"receipt": _RECEIPT, "ttr": 120}],
    "BuryJob": [{"receipt": _RECEIPT, "error": "there is no such order"}],
    "TopicSettings": [_TOPIC_SETTINGS],
    "PauseTopic": [{"reason": "the payment service is down"}, {}],
    "Redrive": [{"ids": [_ID]}, {"limit": 100}],
    "EmptyBody": [{}],
    "Job": [_JOB, _DEAD_JOB, _PLACED_JOB],
    "StoredJob": [_STORED_JOB],
    "Delivery": [_DELIVERY],
    "Deliveries": [{"jobs": [_DELIVERY]}],
    "JobPage": [{"jobs": [_JOB], "next_cursor": None}],
    "Topic": [_TOPIC_VIEW],
    "TopicPage": [
        {"topics": [_TOPIC_VIEW], "next_cursor": None, "unavailable": ["mail.remind"], "unreadable_shards": [3]}
    ],
    "PutResults": [
        {
            "results": [
                {"topic": _TOPIC, "id": _ID, "status": 201, "durability": "fsync"},
                {
                    "topic": _TOPIC,
                    "id": "order-1043",
                    "status": 409,
                    "code": "job_exists",
                    "durability": "fsync",
                    "state": "delayed",
                },
            ]
        }
    ],
    "CancelResults": [
        {
            "results": [
                {"id": _ID, "status": 200, "was": "delayed"},
                {"id": "order-1043", "status": 409, "code": "job_reserved"},
            ]
        }
    ],
    "FinishResults": [
        {"results": [{"id": _ID, "status": 200}, {"id": "order-1043", "status": 409, "code": "receipt_stale"}]}
    ],
    "CheckResults": [
        {"results": [{"id": _ID, "status": 200}, {"id": "order-1043", "status": 410, "code": "job_cancelled"}]}
    ],
    "ReturnResults": [
        {"results": [{"id": _ID, "status": 200}, {"id": "order-1043", "status": 409, "code": "receipt_stale"}]}
    ],
    "Finished": [{"topic": _TOPIC, "id": _ID, "state": "finished"}],
    "Cancelled": [{"topic": _TOPIC, "id": _ID, "state": "cancelled", "was": "delayed"}],
    "Released": [
        {"state": "delayed", "due_at": "2026-11-21T07:27:00.123Z", "attempts": 1},
        {"state": "dead", "attempts": 3},
    ],
    "Touched": [{"reserved_until": "2026-11-21T07:29:58.130Z"}],
    "Buried": [{"state": "dead"}],
    "Redriven": [{"redriven": 3}],
    "Removed": [{"removed": 12}],
    "Audit": [_AUDIT],
    "StoreAudit": [_STORE_AUDIT],
    "PutSchedule": [
        {
            "topic": "reports",
            "job": {"body": {"report": "sales"}, "max_attempts": 5},
            **_RECURRING,
            "overlap": "skip",
        },
        {"topic": "mail.digest", "at": ["09:00", "17:30"], "days": ["mon", "fri"], "zone": "America/New_York"},
        {"topic": "probe", "every": 30, "job": {"spread": 5}, "catch_up": "none"},
    ],
    "Schedule": [_SCHEDULE],
    "SchedulePage": [{"schedules": [_SCHEDULE], "next_cursor": None}],
    "Preview": [
        {"runs": [{"at": "2026-11-23T03:00:00+01:00", "utc": "2026-11-23T02:00:00Z"}], "tzdata": "2026.3"},
    ],
    "Health": [{"status": "ok"}],
    **inspection_examples.EXAMPLES,
    **history_examples.EXAMPLES,
    **activity_examples.EXAMPLES,
    **push_examples.EXAMPLES,
    **system_examples.EXAMPLES,
    **task_schemas.EXAMPLES,
}
