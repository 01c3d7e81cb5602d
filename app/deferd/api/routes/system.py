"""For operators: health, metrics, all topics at a glance, what the service runs on, and what a key allows."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from dataclasses import asdict
from typing import Annotated, Literal

import msgspec
from fastapi import Query
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from deferd import __version__
from deferd.api import metrics
from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import instant_or_none, seconds
from deferd.api.routes.inspection import is_visible
from deferd.api.routes.queries import page_limit
from deferd.api.routes.topics import paused, store_audit
from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.contract.operations import system as contract
from deferd.contract.operations.audits import AUDIT_STORE, REPAIR_STORE, StoreAudit
from deferd.contract.operations.system import CHECK_HEALTH, CHECK_READINESS, GET_METRICS, Clock, Health
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant
from deferd.engine.inspection.attention import STATES, OverviewRow, overview_of
from deferd.engine.inspection.system import System
from deferd.engine.movable_clock import MovableClock, Reading
from deferd.engine.record import to_ms
from deferd.engine.shelf import Status
from deferd.engine.store_processes import StoreProcess
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
    ready_history: bool = Field(False, description="`true`: with the number of ready jobs of each topic lately.")


@router.serves(contract.GET_OVERVIEW)
async def get_overview(request: CurrentRequest, query: Annotated[OverviewQuery, Query()]) -> contract.Overview:
    is_seen = is_visible(request)
    part = None if query.name is None else query.name.lower()
    found = overview_of(
        await request.engine.alerts.read(),
        is_seen if part is None else lambda topic: part in topic.lower() and is_seen(topic),
        sort=query.sort,
        offset=query.offset,
        limit=query.limit,
    )
    of_each: dict[str, list[int | None]] = {}
    if query.ready_history:
        of_each = await request.engine.ready_histories.of_topics([row.topic for row in found.rows])
    return contract.Overview(
        now=instant(found.now_ms),
        topics=[_row(row, of_each.get(row.topic)) for row in found.rows],
        matching=found.matching,
        totals=_counts(found.totals),
        complete=found.is_complete,
    )


def _row(row: OverviewRow, ready_history: list[int | None] | None) -> contract.OverviewTopic:
    return contract.OverviewTopic(
        topic=row.topic,
        paused=row.pause is not None,
        **paused(row.pause),
        circuit=row.circuit,
        counts=_counts(row.counts),
        oldest_ready_at=instant_or_none(row.oldest_ready_ms),
        next_due_at=instant_or_none(row.next_due_ms),
        rate=None if row.rate is None else round(row.rate, 2),
        ready_history=ready_history,
    )


def _counts(counts: tuple[int, ...]) -> contract.OverviewCounts:
    return contract.OverviewCounts(**dict(zip(STATES, counts, strict=True)))


@router.serves(contract.GET_SYSTEM, all_topics=True)
async def get_system(request: CurrentRequest) -> contract.System:
    settings = request.app.settings
    process = contract.ServerProcess(
        pid=os.getpid(),
        workers=settings.workers,
        started_at=instant(_STARTED_MS),
        python=platform.python_version(),
    )
    found, processes = await asyncio.gather(request.engine.system.read(), request.engine.processes.read())
    return contract.System(
        now=instant(found.now_ms),
        version=__version__,
        process=process,
        store=_store(found, is_embedded=settings.redis_url is None),
        shelf=None if found.shelf is None else _shelf(found.shelf),
        shards=[
            contract.ShardFacts(
                shard=timer.shard,
                topics=timer.topics,
                timer=timer.is_running,
                work_due_at=instant_or_none(timer.work_due_ms),
            )
            for timer in found.timers
        ],
        unreadable_shards=sorted(found.unreadable),
        shard_count=settings.shards,
        store_format=request.engine.processes.format,
        processes=list(map(_process, processes)),
        settings=shown_settings(settings),
    )


@router.serves(contract.UPGRADE_STORE, all_topics=True)
async def upgrade_store(request: CurrentRequest, _body: EmptyBody = EMPTY_BODY) -> contract.Upgrade:
    processes = await request.engine.processes.upgrade()
    return contract.Upgrade(store_format=request.engine.processes.format, processes=list(map(_process, processes)))


def _process(found: StoreProcess) -> contract.StoreProcess:
    return contract.StoreProcess(
        host=found.host,
        pid=found.pid,
        version=found.release,
        newest_format=found.newest_format,
        started_at=instant(found.since_ms),
        seen_at=instant(found.seen_ms),
    )


def _store(found: System, *, is_embedded: bool) -> contract.StoreFacts:
    uptime_s = found.number("uptime_in_seconds")
    return contract.StoreFacts(
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


def _shelf(found: Status) -> contract.Shelf:
    if found.fault is not None:
        return contract.Shelf(fault=found.fault)
    return contract.Shelf(
        jobs=found.jobs,
        disk_bytes=found.bytes_on_disk,
        moved_out=found.moved_out,
        moved_in=found.moved_in,
        moved_out_per_second=found.moved_out_per_s,
        moved_in_per_second=found.moved_in_per_s,
        loads_ahead=found.ahead_s,
        jobs_behind=found.jobs_behind,
        behind=found.behind_s,
    )


@router.serves(contract.GET_KEY)
async def get_key(request: CurrentRequest) -> contract.OwnKey:
    key = request.admission.key
    if key is None:
        everything = [scope.value for scope in Scope]
        return contract.OwnKey(name=None, scopes=everything, topics=["*"], requests_per_second=None, limits={})
    return contract.OwnKey(
        name=key.name,
        scopes=[scope.value for scope in Scope if scope in key.scopes],
        topics=list(key.topics.patterns),
        requests_per_second=None if key.limit is None else key.limit.requests_per_second,
        limits={name: value for name, value in asdict(key.bounds).items() if value is not None},
    )


_OK = Health(status="ok")
_PING_TIMEOUT_S = 2.0


@router.serves(CHECK_HEALTH)
async def check_health() -> Health:
    return _OK


@router.serves(CHECK_READINESS)
async def check_readiness(request: CurrentRequest) -> Health:
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await request.engine.ping()
    except TimeoutError as error:
        raise StoreUnavailable("the store did not respond in time") from error
    return _OK


@router.serves(GET_METRICS, all_topics=True, response_class=PlainTextResponse)
async def get_metrics(request: CurrentRequest) -> Response:
    text = await metrics.exposition(request.engine, request.app.settings.max_topic_labels)
    return Response(text, headers={"content-type": metrics.CONTENT_TYPE})


@router.serves(AUDIT_STORE, all_topics=True)
async def audit_store(request: CurrentRequest) -> StoreAudit:
    check = request.engine.consistency.audit_store()
    return store_audit(await request.incoming.cancel_on_disconnect(check))


@router.serves(REPAIR_STORE, all_topics=True)
async def repair_store(request: CurrentRequest, _body: EmptyBody = EMPTY_BODY) -> StoreAudit:
    check = request.engine.consistency.audit_store(repair=True)
    return store_audit(await request.incoming.cancel_on_disconnect(check))


clock_router = OperationRouter()
"""The movable clock for tests: only in a service started with `--test-clock`.

It is not part of the contract, so the OpenAPI document omits it.
"""


class MoveClock(StrictModel):
    """How far to advance the clock, in seconds, and for how long to stop on the way at runs of schedules."""

    advance: float = Field(strict=True, ge=0, le=limits.TEN_YEARS_S, allow_inf_nan=False)
    within: float = Field(60, strict=True, ge=0, le=60, allow_inf_nan=False)


@clock_router.serves(contract.READ_CLOCK, all_topics=True, include_in_schema=False)
async def read_clock(request: CurrentRequest) -> Clock:
    return _reading(await _clock(request).read())


@clock_router.serves(contract.MOVE_CLOCK, all_topics=True, include_in_schema=False)
async def move_clock(request: CurrentRequest, move: MoveClock) -> Clock:
    return _reading(await _clock(request).advance(to_ms(move.advance), move.within))


@clock_router.serves(contract.FORGET_PAST, all_topics=True, include_in_schema=False)
async def forget_past(request: CurrentRequest) -> Clock:
    await request.engine.activity.forget()
    await request.engine.tasks.forget_ended()
    await request.engine.groups.forget_rates()
    return _reading(await _clock(request).read())


def _clock(request: RequestContext) -> MovableClock:
    if request.engine.clock is None:
        raise RuntimeError("a service without a movable clock has no route for it")
    return request.engine.clock


def _reading(reading: Reading) -> Clock:
    clock = Clock(now=instant(reading.now_ms), offset=seconds(reading.moved_ms))
    if reading.runs is None:
        return clock
    left, runs = seconds(reading.left_ms), reading.runs
    return msgspec.structs.replace(clock, left=left, runs_left=runs.runs, busiest=runs.busiest)
