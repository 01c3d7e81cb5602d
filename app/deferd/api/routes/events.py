"""What happened: events of jobs, as they happen, and what people and keys changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from deferd.api.context import CurrentRequest
from deferd.api.event_stream_response import MEDIA_TYPE, EventStreamResponse, event
from deferd.api.operation_router import OperationRouter
from deferd.api.routes.queries import Cursor, TopicsFilter, TopicsQuery, page_limit
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.operations import events as contract
from deferd.contract.operations.events import Events
from deferd.contract.timestamps import instant
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.activity_list import Change, FieldValues, RecordedChange
from deferd.engine.event_streams import EventStream
from deferd.engine.events import LAST_EVENT_ID_MAX, LastEventId, read_event_id

router = OperationRouter()

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
        description=f"Without `{_HEADER}`: begin with this many kept events of each topic, 0 to {limits.EVENTS_MAX}.",
    )


@router.serves(
    contract.STREAM_EVENTS,
    topics=lambda arguments: arguments["query"].names,
    response_class=EventStreamResponse,
    openapi_extra=_LAST_EVENT_ID,
    responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}},
)
async def stream_events(request: CurrentRequest, query: Annotated[EventsQuery, Query()]) -> Response:
    request.engine.admit()
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


@router.serves(contract.LIST_EVENTS, topics=lambda arguments: arguments["query"].names)
async def list_events(request: CurrentRequest, query: Annotated[LatestQuery, Query()]) -> Events:
    found = await request.engine.event_reader.latest(query.names or None, request.admission.visible_topics, query.limit)
    return Events(events=[event(one) for one in found.events], last_event_id=found.event_id, complete=found.is_complete)


def _last_event_id(headers: Any) -> LastEventId | None:
    found = [value for name, value in headers if name == _HEADER.lower().encode()]
    if not found or found == [b""]:
        return None
    if len(found) > 1:
        raise InvalidInput([FieldError(("header", _HEADER), "is given more than once")])
    return read_event_id(found[0].decode("latin-1"))


class ActivityQuery(TopicsQuery):
    """The parameters of the list of changes."""

    topics: TopicsFilter | None = Field(
        None,
        description=f"Only changes of one of these topics: up to {limits.POP_TOPICS_MAX} names or patterns with commas "
        "between them.",
    )
    cursor: Cursor = None
    limit: int = page_limit("changes")


@router.serves(contract.LIST_ACTIVITY, topics=lambda arguments: arguments["query"].names)
async def list_activity(request: CurrentRequest, query: Annotated[ActivityQuery, Query()]) -> contract.Activity:
    visible = request.admission.visible_topics
    wanted = TopicPatterns(query.names) if query.names else None

    def is_shown(change: Change) -> bool:
        return all(
            some is None or (change.topic is not None and some.match(change.topic)) for some in (visible, wanted)
        )

    found, next_cursor = await request.engine.activity.page(is_shown, query.cursor, query.limit)
    return contract.Activity(activity=[_change(one, visible) for one in found], next_cursor=next_cursor)


def _change(recorded: RecordedChange, visible: TopicPatterns | None) -> contract.Change:
    change = recorded.change
    fields = change.fields if _are_visible(change.fields, visible) else ()
    return contract.Change(
        at=instant(recorded.at_ms),
        by=change.by,
        via=change.via,
        operation=change.operation,
        outcome=change.outcome,
        topic=change.topic,
        subject=change.subject,
        filter=change.filter,
        count=change.count,
        fields_changed=[contract.FieldChange(**one._asdict()) for one in fields] or None,
        times=recorded.times,
        last_at=instant(recorded.last_at_ms) if recorded.times > 1 else None,
    )


def _are_visible(fields: Iterable[FieldValues], visible: TopicPatterns | None) -> bool:
    """Whether they are of topics that the key may see: a schedule that got another topic had them in its former one."""
    if visible is None:
        return True
    of_topic = [[text.strip('"') for text in one[1:] if text is not None] for one in fields if one.field == "topic"]
    return all(topics and all(map(visible.match, topics)) for topics in of_topic)
