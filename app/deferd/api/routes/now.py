"""For operators: what needs a person now."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from deferd.api import alert_responses
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.routes.inspection import TopicsQuery, is_visible
from deferd.api.routes.paging import page_limit
from deferd.contract.operations import now as operations
from deferd.contract.responses import now as responses
from deferd.contract.topic_patterns import TopicPatterns

router = OperationRouter()


class NowQuery(TopicsQuery):
    """The parameters of what needs a person."""

    limit: int = page_limit("alerts", which="the most urgent ones")


@router.serves(operations.GET_NOW, topics=lambda arguments: arguments["query"].names)
async def get_now(request: CurrentRequest, query: Annotated[NowQuery, Query()]) -> responses.Now:
    is_seen = is_visible(request)
    wanted = TopicPatterns(query.names) if query.names else None
    found = await request.engine.alerts.now(
        is_seen if wanted is None else lambda topic: wanted.match(topic) and is_seen(topic)
    )
    return alert_responses.now(found, query.limit)
