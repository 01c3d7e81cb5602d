"""What the service runs on, all topics at a glance, and what a key allows, as the API shows them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from deferd.api.auth.api_keys import Key
from deferd.api.response_values import instant, instant_or_none
from deferd.api.topic_responses import paused
from deferd.contract.responses import system as responses
from deferd.contract.scopes import Scope
from deferd.engine.inspection.overview import STATES, Overview, OverviewRow
from deferd.engine.inspection.system import System


def overview(found: Overview) -> responses.Overview:
    """All topics at a glance."""
    return responses.Overview(
        now=instant(found.now_ms),
        topics=[_row(row) for row in found.rows],
        matching=found.matching,
        totals=_counts(found.totals),
        complete=found.is_complete,
    )


def _row(row: OverviewRow) -> responses.OverviewTopic:
    return responses.OverviewTopic(
        topic=row.topic,
        paused=row.pause is not None,
        **paused(row.pause),
        circuit=row.circuit,
        counts=_counts(row.counts),
        oldest_ready_at=instant_or_none(row.oldest_ready_ms),
        next_due_at=instant_or_none(row.next_due_ms),
        rate=None if row.rate is None else round(row.rate, 2),
    )


def _counts(counts: tuple[int, ...]) -> responses.OverviewCounts:
    return responses.OverviewCounts(**dict(zip(STATES, counts, strict=True)))


def system(
    found: System,
    version: str,
    process: responses.ServerProcess,
    settings: dict[str, Any],
    *,
    is_embedded: bool,
    shards: int,
) -> responses.System:
    """What the service runs on."""
    return responses.System(
        now=instant(found.now_ms),
        version=version,
        process=process,
        store=_store(found, is_embedded=is_embedded),
        shards=[
            responses.ShardFacts(
                shard=timer.shard,
                topics=timer.topics,
                timer=timer.is_running,
                work_due_at=instant_or_none(timer.work_due_ms),
            )
            for timer in found.timers
        ],
        unreadable_shards=sorted(found.unreadable),
        shard_count=shards,
        settings=settings,
    )


def _store(found: System, *, is_embedded: bool) -> responses.StoreFacts:
    uptime_s = found.number("uptime_in_seconds")
    return responses.StoreFacts(
        server=found.server,
        embedded=is_embedded,
        up_since=None if uptime_s is None else instant(found.now_ms - uptime_s * 1000),
        memory_bytes=found.number("used_memory"),
        peak_memory_bytes=found.number("used_memory_peak"),
        memory_limit_bytes=found.number("maxmemory") or None,
        clients=found.number("connected_clients"),
        role=found.info.get("role"),
        replicas=found.replicas,
        durability=found.durability,
        why_not_fsync=found.why_not,
    )


def own_key(key: Key | None) -> responses.OwnKey:
    """What a key allows; everything without one."""
    scopes = set(Scope) if key is None else key.scopes
    limit = None if key is None else key.limit
    return responses.OwnKey(
        name=None if key is None else key.name,
        scopes=[scope.value for scope in Scope if scope in scopes],
        topics=["*"] if key is None else list(key.topics.patterns),
        requests_per_second=None if limit is None else limit.requests_per_second,
        limits={} if key is None else {name: value for name, value in asdict(key.bounds).items() if value is not None},
    )
