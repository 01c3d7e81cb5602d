"""For operators: what happened in a topic, and in all topics together, over the last two days."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from deferd.api import history_responses
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.contract.model import Topic
from deferd.contract.responses import history as responses
from deferd.engine.history.records import FINE_MINUTES, MOST_MINUTES

router = APIRouter(route_class=Operation, tags=["inspection"])


class HistoryQuery(BaseModel):
    """The parameters of a history."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    minutes: int = Field(
        FINE_MINUTES,
        strict=True,
        ge=1,
        le=MOST_MINUTES,
        description=f"How far back, 1 to {MOST_MINUTES} minutes (two days): up to {FINE_MINUTES} minutes in buckets of "
        "10 seconds, beyond that in buckets of 5 minutes.",
    )


@router.get(
    "/topics/{topic}/history",
    operation_id="get_history",
    summary="Show the history of a topic",
    description="Returns what happened in the topic: for each bucket of time how many jobs were put, handed out, "
    "finished and so on by all processes of the service, how late first deliveries were, and the jobs in each state at "
    "its end. Processes publish what they counted every 10 seconds; a process that is killed takes its last 10 seconds "
    "with it. A topic keeps its history for two days after its last change, also when it is forgotten by then. Of a "
    "store's shard at most 1000 topics have a history: new ones get none while all of these changed within 10 minutes.",
    response_model=responses.TopicHistory,
    response_description="The buckets.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_history(
    request: CurrentRequest, topic: Topic, query: Annotated[HistoryQuery, Query()]
) -> responses.TopicHistory:
    found = await request.engine.histories.of_topic(topic, query.minutes)
    return history_responses.topic_history(topic, found)


@router.get(
    "/history",
    operation_id="get_history_of_all",
    summary="Show the history of all topics",
    description="Returns what happened in all topics together, as the history of a topic does; topics that have no "
    "history of their own are included. For a key that is for some topics these are summed up, at most the 100 that "
    "changed last; `complete` says whether these are all.",
    response_model=responses.HistoryOfAll,
    response_description="The buckets.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_history_of_all(
    request: CurrentRequest, query: Annotated[HistoryQuery, Query()]
) -> responses.HistoryOfAll:
    found = await request.engine.histories.of_all(request.admission.visible_topics, query.minutes)
    return history_responses.history_of_all(found)
