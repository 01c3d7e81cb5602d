"""Looking after topics: what stands in them, their defaults, pausing, dead jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from orjson import Fragment
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from deferd.api import consistency_json, serialization
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.auth.visible_topics import list_visible
from deferd.api.openapi import schemas
from deferd.api.openapi.document import error_responses
from deferd.api.operation import EMPTY_BODY, EmptyBody, Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.responses import JsonResponse
from deferd.contract import limits
from deferd.contract.model import JobState, Redrive, Topic, TopicSettings

router = APIRouter(route_class=Operation, tags=["topics"])

Cursor = Annotated[
    str | None,
    Field(max_length=limits.CURSOR_MAX, description="`next_cursor` of the page before; left out for the first page."),
]


_OLDEST = Redrive()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TopicsQuery(_Strict):
    """Which page of topics."""

    cursor: Cursor = None
    limit: int = Field(
        limits.PAGE_MAX,
        strict=True,
        ge=1,
        le=limits.PAGE_MAX,
        description="Most topics in the answer, 1 to 1000.",
    )


class JobsQuery(_Strict):
    """Which page of a topic's jobs."""

    state: JobState | None = Field(None, description="Only jobs in this state; left out: all.")
    cursor: Cursor = None
    limit: int = Field(
        limits.PAGE_DEFAULT,
        strict=True,
        ge=1,
        le=limits.PAGE_MAX,
        description="Most jobs in the answer, 1 to 1000.",
    )


class PurgeQuery(_Strict):
    """Which jobs to remove."""

    state: JobState | None = Field(None, description="Only jobs in this state; left out: all.")


@router.get(
    "/topics",
    operation_id="list_topics",
    summary="List topics",
    description="All topics that were put into or set up and neither purged nor forgotten since, each as it stands. "
    "One without jobs and settings is forgotten an hour after its last use. A key that is for some topics only sees "
    "those. Where a part of the store cannot be reached, its topics are left out and named in `unavailable`; 503 means "
    "that no part can be.",
    response_model=schemas.TopicPage,
    response_description="One page of topics.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_topics(request: CurrentRequest, query: Annotated[TopicsQuery, Query()]) -> Response:
    topics = request.engine.topics.all
    visible = request.admission.visible_topics
    if visible is None:
        page = await topics.page(query.cursor, query.limit)
    else:
        page = await list_visible(topics, visible, query.cursor, query.limit)
    return JsonResponse(
        {
            "topics": [serialization.topic(view) for view in page.views],
            "next_cursor": page.next_cursor,
            "unavailable": page.unavailable,
            "unreadable_shards": page.unreadable,
        }
    )


@router.get(
    "/topics/{topic}",
    operation_id="get_topic",
    summary="Look at a topic",
    description="How many jobs are in each state, how long the oldest ready job has waited, when the next delayed job "
    "is due, and the topic's settings.",
    response_model=schemas.Topic,
    response_description="The topic.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_topic(request: CurrentRequest, topic: Topic) -> Response:
    return JsonResponse(serialization.topic(await request.engine.topics.show(topic)))


@router.put(
    "/topics/{topic}",
    operation_id="set_topic",
    summary="Set a topic's defaults",
    description="Replaces the topic's settings as a whole: what is left out falls back to the service's default. They "
    "count for jobs put from now on. A topic needs no setting up: it comes into being with its first job.",
    response_model=schemas.Topic,
    response_description="The topic as it is now.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def set_topic(request: CurrentRequest, topic: Topic, settings: TopicSettings) -> Response:
    return JsonResponse(serialization.topic(await request.engine.topics.configure(topic, settings)))


@router.post(
    "/topics/{topic}/pause",
    operation_id="pause_topic",
    summary="Stop handing out",
    description="Jobs of the topic are no longer handed out; putting, finishing and everything else goes on. A topic "
    "that does not exist yet is created by `PUT /topics/{topic}`, and can then be paused before its first job.",
    response_model=schemas.Topic,
    response_description="The topic as it is now.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def pause_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> Response:
    return JsonResponse(serialization.topic(await request.engine.topics.pause(topic)))


@router.post(
    "/topics/{topic}/resume",
    operation_id="resume_topic",
    summary="Hand out again",
    description="Ends a pause; consumers that wait get what is ready at once.",
    response_model=schemas.Topic,
    response_description="The topic as it is now.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def resume_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> Response:
    return JsonResponse(serialization.topic(await request.engine.topics.resume(topic)))


@router.get(
    "/topics/{topic}/jobs",
    operation_id="list_jobs",
    summary="List a topic's jobs",
    description="Jobs page by page. A job that changes its state between two pages may be missed or met twice.",
    response_model=schemas.JobPage,
    response_description="One page of jobs.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_jobs(request: CurrentRequest, topic: Topic, query: Annotated[JobsQuery, Query()]) -> Response:
    records, next_cursor = await request.engine.topics.jobs(topic, query.state, query.cursor, query.limit)
    return JsonResponse(
        {"jobs": [Fragment(serialization.job(record)) for record in records], "next_cursor": next_cursor}
    )


@router.post(
    "/topics/{topic}/redrive",
    operation_id="redrive_jobs",
    summary="Make dead jobs ready again",
    description="Those of `ids` that are dead, or up to `limit` of those dead longest. They start anew: due now, no "
    "attempts counted.",
    response_model=schemas.Redriven,
    response_description="How many are ready again.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def redrive_jobs(request: CurrentRequest, topic: Topic, redrive: Redrive = _OLDEST) -> Response:
    redriven = await request.engine.topics.redrive(topic, redrive.ids, redrive.limit)
    return JsonResponse({"redriven": redriven})


@router.get(
    "/topics/{topic}/audit",
    operation_id="audit_topic",
    summary="Check a topic",
    description="Whether all that the store holds of the topic agrees: each job in exactly one place, nothing left "
    "over from jobs that are gone, the timer's plan in time, and every job that was ever put accounted for. It changes "
    "nothing and goes in small steps beside the load: about half a minute for a million jobs.",
    response_model=schemas.Audit,
    response_description="What was found.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN)
async def audit_topic(request: CurrentRequest, topic: Topic) -> Response:
    return JsonResponse(
        consistency_json.topic(await request.incoming.cancel_on_disconnect(request.engine.auditor.audit(topic)))
    )


@router.post(
    "/topics/{topic}/repair",
    operation_id="repair_topic",
    summary="Check a topic and mend it",
    description="As the audit, and what is found is mended in the instant in which it is found. No job that can be "
    "read is lost, and none that was finished or is dead is handed out for it.",
    response_model=schemas.Audit,
    response_description="What was mended.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def repair_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> Response:
    return JsonResponse(
        consistency_json.topic(
            await request.incoming.cancel_on_disconnect(request.engine.auditor.audit(topic, repair=True))
        )
    )


@router.delete(
    "/topics/{topic}",
    operation_id="purge_topic",
    summary="Remove a topic's jobs",
    description="Removes all jobs, or all in one `state`. Holders of reserved jobs are told as if they had been "
    "cancelled. The topic's settings stay.",
    response_model=schemas.Removed,
    response_description="How many were removed.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN)
async def purge_topic(request: CurrentRequest, topic: Topic, query: Annotated[PurgeQuery, Query()]) -> Response:
    return JsonResponse({"removed": await request.engine.topics.purge(topic, query.state)})
