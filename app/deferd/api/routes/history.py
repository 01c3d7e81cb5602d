"""For operators: what happened in a topic, and in all topics together, over the last two days."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from deferd.api import history_responses
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.contract.model import Topic
from deferd.contract.operations import history as operations
from deferd.contract.responses import history as responses
from deferd.engine.history.records import FINE_MINUTES, MOST_MINUTES

router = OperationRouter()


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


@router.serves(operations.GET_HISTORY)
async def get_history(
    request: CurrentRequest, topic: Topic, query: Annotated[HistoryQuery, Query()]
) -> responses.TopicHistory:
    found = await request.engine.histories.of_topic(topic, query.minutes)
    return history_responses.topic_history(topic, found)


@router.serves(operations.GET_HISTORY_OF_ALL)
async def get_history_of_all(
    request: CurrentRequest, query: Annotated[HistoryQuery, Query()]
) -> responses.HistoryOfAll:
    found = await request.engine.histories.of_all(request.admission.visible_topics, query.minutes)
    return history_responses.history_of_all(found)
