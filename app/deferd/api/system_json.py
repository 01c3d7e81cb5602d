"""What the service runs on, all topics at a glance, and what a key allows, as the JSON of the API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from deferd.api.auth.api_keys import Key, Scope
from deferd.api.response_values import instant, instant_or_none
from deferd.api.topic_responses import paused
from deferd.engine.inspection.overview import STATES, Overview, OverviewRow
from deferd.engine.inspection.system import System


def overview(found: Overview) -> dict[str, Any]:
    """All topics at a glance."""
    return {
        "now": instant(found.now_ms),
        "topics": [_row(row) for row in found.rows],
        "matching": found.matching,
        "totals": dict(zip(STATES, found.totals, strict=True)),
        "complete": found.is_complete,
    }


def _row(row: OverviewRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "paused": row.pause is not None,
        **{name: value for name, value in paused(row.pause).items() if value is not None},
        **({} if row.circuit is None else {"circuit": row.circuit}),
        "counts": dict(zip(STATES, row.counts, strict=True)),
        "oldest_ready_at": instant_or_none(row.oldest_ready_ms),
        "next_due_at": instant_or_none(row.next_due_ms),
        "rate": None if row.rate is None else round(row.rate, 2),
    }


def system(
    found: System, process: dict[str, Any], settings: dict[str, Any], *, is_embedded: bool, shards: int
) -> dict[str, Any]:
    """What the service runs on."""
    uptime_s = found.number("uptime_in_seconds")
    return {
        "now": instant(found.now_ms),
        "version": process.pop("version"),
        "process": {**process, "started_at": instant(process["started_at"])},
        "store": {
            "server": found.server,
            "embedded": is_embedded,
            "up_since": None if uptime_s is None else instant(found.now_ms - uptime_s * 1000),
            "memory_bytes": found.number("used_memory"),
            "peak_memory_bytes": found.number("used_memory_peak"),
            "memory_limit_bytes": found.number("maxmemory") or None,
            "clients": found.number("connected_clients"),
            "role": found.info.get("role"),
            "replicas": found.replicas,
            "durability": found.durability,
            "why_not_fsync": found.why_not,
        },
        "shards": [
            {
                "shard": timer.shard,
                "topics": timer.topics,
                "timer": timer.is_running,
                "work_due_at": instant_or_none(timer.work_due_ms),
            }
            for timer in found.timers
        ],
        "unreadable_shards": sorted(found.unreadable),
        "shard_count": shards,
        "settings": settings,
    }


def own_key(key: Key | None) -> dict[str, Any]:
    """What a key allows; everything without one."""
    if key is None:
        scopes, topics = set(Scope), ["*"]
    else:
        scopes, topics = set(key.scopes), list(key.topics.patterns)
    limit = None if key is None else key.limit
    limits = {} if key is None else {name: value for name, value in asdict(key.bounds).items() if value is not None}
    return {
        "name": None if key is None else key.name,
        "scopes": [scope.value for scope in Scope if scope in scopes],
        "topics": topics,
        "requests_per_second": None if limit is None else limit.requests_per_second,
        "limits": limits,
    }
