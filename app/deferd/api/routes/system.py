"""For operators: what the service runs on, all topics at a glance, and what the caller's key allows."""

from __future__ import annotations

import os
import platform
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from deferd import __version__
from deferd.api import system_responses
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.response_values import instant
from deferd.api.routes.inspection import is_visible
from deferd.api.routes.paging import page_limit
from deferd.contract import limits
from deferd.contract.responses import system as responses
from deferd.engine.inspection.overview import overview_of
from deferd.settings import shown_settings

router = APIRouter(route_class=Operation, tags=["inspection"])

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


@router.get(
    "/overview",
    operation_id="get_overview",
    summary="Get all topics at a glance",
    description="Lists topics in any order: jobs by state, the oldest ready job, what is due next, and jobs handed out "
    "per second. What was read is kept for up to 5 seconds and shared with `GET /now`; `GET /topics` reads each topic "
    "at once, with its settings.",
    response_model=responses.Overview,
    response_description="The topics.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
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


@router.get(
    "/system",
    operation_id="get_system",
    summary="Get what the service runs on",
    description="Returns the versions, the store with its memory, durability and replicas, the timer of each shard, "
    "and the settings except for secrets and paths. The key must match all topics.",
    response_model=responses.System,
    response_description="The system.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ, all_topics=True)
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


@router.get(
    "/key",
    operation_id="get_key",
    summary="Get what the key of the request allows",
    description="Returns the name, scopes, topics and limits of the key that the request was made with; a service "
    "without keys allows everything.",
    response_model=responses.OwnKey,
    response_description="The key.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_key(request: CurrentRequest) -> responses.OwnKey:
    return system_responses.own_key(request.admission.key)
