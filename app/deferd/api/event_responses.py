"""Events of jobs as responses, and as messages of a stream of Server-Sent Events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deferd.api.response_values import instant
from deferd.api.responses import encode
from deferd.contract.responses import events as responses
from deferd.engine.events.event import Event
from deferd.engine.events.event_reader import Dropped, LatestEvents
from deferd.engine.events.event_stream import Sent

KEEP_ALIVE = b": keep-alive\n\n"


def event(happened: Event) -> responses.Event:
    """One event."""
    return responses.Event(
        topic=happened.topic,
        id=happened.id,
        event=happened.kind,
        at=instant(happened.at_ms),
        number=happened.number,
        **_with_instants(happened.facts),
    )


def _with_instants(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removesuffix("_ms"): (
            instant(value) if name.endswith("_ms") else _with_instants(value) if isinstance(value, dict) else value
        )
        for name, value in facts.items()
    }


def latest(found: LatestEvents) -> responses.Events:
    """The last events."""
    return responses.Events(
        events=[event(one) for one in found.events], last_event_id=found.event_id, complete=found.is_complete
    )


def dropped(notice: Dropped) -> responses.Dropped:
    """The notice that events, or topics, are missing."""
    if notice.topic is None:
        return responses.Dropped(topics=notice.topics)
    return responses.Dropped(topic=notice.topic, count=notice.count)


def message(sent: Sent) -> bytes:
    """One message."""
    begin = b"" if sent.id is None else b"id: %b\n" % sent.id.encode()
    item = sent.item
    if item is None:
        return begin + b"\n"
    if isinstance(item, Dropped):
        return begin + b"event: dropped\ndata: %b\n\n" % encode(dropped(item))
    return begin + b"event: %b\ndata: %b\n\n" % (item.kind.encode(), encode(event(item)))
