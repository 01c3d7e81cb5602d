"""For operators: what the service runs on, all topics at a glance, and what the caller's key allows."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from deferd import __version__
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.response_values import instant, instant_or_none
from deferd.api.routes.inspection import is_visible
from deferd.api.routes.queries import page_limit
from deferd.api.routes.topics import paused
from deferd.contract import limits
from deferd.contract.operations import system as operations
from deferd.contract.responses import system as responses
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel
from deferd.engine.inspection.overview import STATES, OverviewRow, overview_of
from deferd.engine.inspection.system import System
from deferd.settings import shown_settings

router = OperationRouter()

_STARTED_MS = round(time.time() * 1000)


class OverviewQuery(StrictModel):
    """The parameters of the overview."""

    sort: Literal["topic", "delayed", "ready", "reserved", "dead", "oldest", "due", "rate"] = Field(
        "topic",
        description="The order: by name; by jobs in a state or jobs handed out per second, most first; by the oldest "
        "ready job; by what is due next.",
    )
    name: str | None = Field(
        None, min_length=1, max_length=limits.TOPIC_LENGTH, description="Only topics with this text in their names."
    )
    offset: int = Field(0, strict=True, ge=0, le=1_000_000, description="How many topics to skip.")
    limit: int = page_limit("topics")


@router.serves(operations.GET_OVERVIEW)
async def get_overview(request: CurrentRequest, query: Annotated[OverviewQuery, Query()]) -> responses.Overview:
    is_seen = is_visible(request)
    part = None if query.name is None else query.name.lower()
    found = overview_of(
        await request.engine.alerts.read(),
        is_seen if part is None else lambda topic: part in topic.lower() and is_seen(topic),
        sort=query.sort,
        offset=query.offset,
        limit=query.limit,
    )
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


@router.serves(operations.GET_SYSTEM, all_topics=True)
async def get_system(request: CurrentRequest) -> responses.System:
    settings = request.app.settings
    process = responses.ServerProcess(
        pid=os.getpid(),
        workers=settings.workers,
        started_at=instant(_STARTED_MS),
        python=platform.python_version(),
    )
    found = await request.engine.system.read()
    return responses.System(
        now=instant(found.now_ms),
        version=__version__,
        process=process,
        store=_store(found, is_embedded=settings.redis_url is None),
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
        shard_count=settings.shards,
        settings=shown_settings(settings),
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


@router.serves(operations.GET_KEY)
async def get_key(request: CurrentRequest) -> responses.OwnKey:
    key = request.admission.key
    if key is None:
        everything = [scope.value for scope in Scope]
        return responses.OwnKey(name=None, scopes=everything, topics=["*"], requests_per_second=None, limits={})
    return responses.OwnKey(
        name=key.name,
        scopes=[scope.value for scope in Scope if scope in key.scopes],
        topics=list(key.topics.patterns),
        requests_per_second=None if key.limit is None else key.limit.requests_per_second,
        limits={name: value for name, value in asdict(key.bounds).items() if value is not None},
    )
