"""Events of jobs, as they happen."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from deferd.api import event_json
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.event_stream_response import MEDIA_TYPE, EventStreamResponse
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.routes.inspection import TopicsQuery
from deferd.api.routes.paging import page_limit
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.responses.events import Events
from deferd.engine.events.event_stream import EventStream
from deferd.engine.events.positions import LAST_EVENT_ID_MAX, LastEventId, read_event_id

router = APIRouter(route_class=Operation, tags=["inspection"])

_HEADER = "Last-Event-ID"
_LAST_EVENT_ID: dict[str, Any] = {
    "parameters": [
        {
            "name": _HEADER,
            "in": "header",
            "required": False,
            "description": "The `id` of the last event that was received: the stream goes on behind it, in any process "
            "of the service. For the same `topics`.",
            "schema": {"type": "string", "maxLength": LAST_EVENT_ID_MAX},
        }
    ]
}


class EventsQuery(TopicsQuery):
    """The parameters of a stream of events."""

    last: int = Field(
        0,
        strict=True,
        ge=0,
        le=limits.EVENTS_MAX,
        description=f"Without `{_HEADER}`: begin with so many events of each topic that it has kept, 0 to "
        f"{limits.EVENTS_MAX}.",
    )


@router.get(
    "/events",
    operation_id="stream_events",
    summary="Follow events",
    description="Streams what happens to the jobs of topics whose settings have `events`, as Server-Sent Events, in "
    "the order in which it happened in each topic. An event is there in about 0.3 seconds. `data` is an Event, its "
    "kind is also in `event`. Several events may share one `id`, which the last of them has. `event: dropped` says "
    "that events of a `topic` are missing, with their `count` if it is known: the topic has kept too few, or the "
    f"client read too slowly. Of more than {limits.EVENT_TOPICS_MAX} topics with events, the first by name are "
    "followed, and `dropped` has the number of the others in `topics`. A comment comes at least every 15 seconds. The "
    f"stream ends when the service stops. A process serves {limits.EVENT_STREAMS_MAX} streams at a time, "
    f"at most {limits.EVENT_STREAMS_PER_KEY} of a key.",
    status_code=200,
    response_class=EventStreamResponse,
    response_description="The stream.",
    responses={
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
        **error_responses("validation", "too_many_streams"),
    },
    openapi_extra=_LAST_EVENT_ID,
)
@requires(Scope.READ, topics=lambda arguments: arguments["query"].names)
async def stream_events(request: CurrentRequest, query: Annotated[EventsQuery, Query()]) -> Response:
    hub, admission = request.engine.events, request.admission
    last_event_id = _last_event_id(request.incoming.headers)
    hub.check_room(admission.key_name)
    stream = EventStream(
        query.names or None,
        admission.current_topics(),
        last_event_id=last_event_id,
        last=query.last,
        owner=admission.key_name,
    )
    return EventStreamResponse(hub, stream, admission)


class LatestQuery(TopicsQuery):
    """The parameters of a list of events."""

    limit: int = page_limit("events")


@router.get(
    "/events/latest",
    operation_id="list_events",
    summary="List the latest events",
    description="Lists the last events that topics have kept, of all matching topics together. Topics keep events when "
    "their settings have `events`. Of many topics a part of each is read: they share 5000 events.",
    response_model=Events,
    response_description="The events.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ, topics=lambda arguments: arguments["query"].names)
async def list_events(request: CurrentRequest, query: Annotated[LatestQuery, Query()]) -> Events:
    found = await request.engine.event_reader.latest(query.names or None, request.admission.visible_topics, query.limit)
    return event_json.latest(found)


def _last_event_id(headers: Any) -> LastEventId | None:
    found = [value for name, value in headers if name == _HEADER.lower().encode()]
    if not found or found == [b""]:
        return None
    if len(found) > 1:
        raise InvalidInput([FieldError(("header", _HEADER), "is given more than once")])
    return read_event_id(found[0].decode("latin-1"))
