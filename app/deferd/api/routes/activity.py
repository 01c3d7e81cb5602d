"""For operators: what people and keys changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.response_values import instant
from deferd.api.routes.queries import Cursor, TopicsFilter, TopicsQuery, page_limit
from deferd.contract import limits
from deferd.contract.operations import activity as operations
from deferd.contract.responses import activity as responses
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.activity_list import Change, RecordedChange

router = OperationRouter()


class ActivityQuery(TopicsQuery):
    """The parameters of the list of changes."""

    topics: TopicsFilter | None = Field(
        None,
        description=f"Only changes of one of these topics: up to {limits.POP_TOPICS_MAX} names or patterns with commas "
        "between them.",
    )
    cursor: Cursor = None
    limit: int = page_limit("changes")


@router.serves(operations.LIST_ACTIVITY, topics=lambda arguments: arguments["query"].names)
async def list_activity(request: CurrentRequest, query: Annotated[ActivityQuery, Query()]) -> responses.Activity:
    visible = request.admission.visible_topics
    wanted = TopicPatterns(query.names) if query.names else None

    def is_shown(change: Change) -> bool:
        return all(
            some is None or (change.topic is not None and some.match(change.topic)) for some in (visible, wanted)
        )

    found, next_cursor = await request.engine.activity.page(is_shown, query.cursor, query.limit)
    return responses.Activity(activity=[_shown(one) for one in found], next_cursor=next_cursor)


def _shown(recorded: RecordedChange) -> responses.Change:
    change = recorded.change
    return responses.Change(
        at=instant(recorded.at_ms),
        by=change.by,
        via=change.via,
        operation=change.operation,
        outcome=change.outcome,
        topic=change.topic,
        subject=change.subject,
        filter=change.filter,
        count=change.count,
        times=recorded.times,
        last_at=instant(recorded.last_at_ms) if recorded.times > 1 else None,
    )
