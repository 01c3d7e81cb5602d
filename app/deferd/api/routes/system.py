"""For operators: what the service runs on, all topics at a glance, and what the caller's key allows."""

from __future__ import annotations

import os
import platform
import time
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from deferd import __version__
from deferd.api import system_responses
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.response_values import instant
from deferd.api.routes.inspection import is_visible
from deferd.api.routes.paging import page_limit
from deferd.contract import limits
from deferd.contract.operations import system as operations
from deferd.contract.responses import system as responses
from deferd.engine.inspection.overview import overview_of
from deferd.settings import shown_settings

router = OperationRouter()

_STARTED_MS = round(time.time() * 1000)


class OverviewQuery(BaseModel):
    """The parameters of the overview."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    return system_responses.overview(found)


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
    return system_responses.system(
        found,
        __version__,
        process,
        shown_settings(settings),
        is_embedded=settings.redis_url is None,
        shards=settings.shards,
    )


@router.serves(operations.GET_KEY)
async def get_key(request: CurrentRequest) -> responses.OwnKey:
    return system_responses.own_key(request.admission.key)
