"""For operators: what needs a person now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from deferd.api import alert_responses
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.routes.inspection import TopicsQuery, is_visible
from deferd.api.routes.paging import page_limit
from deferd.contract.responses import now as responses
from deferd.contract.topic_patterns import TopicPatterns

router = APIRouter(route_class=Operation, tags=["inspection"])


class NowQuery(TopicsQuery):
    """The parameters of what needs a person."""

    limit: int = page_limit("alerts", which="the most urgent ones")


@router.get(
    "/now",
    operation_id="get_now",
    summary="Get what needs a person now",
    description="Lists what needs a person, the most urgent first: topics without consumers or behind, jobs that died "
    "within the last hour, pauses that hold jobs back, a timer that is late, a store that is down in part. Each alert "
    "has a `code` and facts for programs, and a `text` for people. Without alerts all is quiet. `next_due_at` is when "
    "the next job is due, and `next_due_jobs` how many are due in that second. With `topics`: only alerts of these "
    "topics, and of the store. What was read is kept for up to 5 seconds.",
    response_model=responses.Now,
    response_description="The alerts.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ, topics=lambda arguments: arguments["query"].names)
async def get_now(request: CurrentRequest, query: Annotated[NowQuery, Query()]) -> responses.Now:
    is_seen = is_visible(request)
    wanted = TopicPatterns(query.names) if query.names else None
    found = await request.engine.alerts.now(
        is_seen if wanted is None else lambda topic: wanted.match(topic) and is_seen(topic)
    )
    return alert_responses.now(found, query.limit)
