"""Events of jobs as JSON, and as messages of a stream of Server-Sent Events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from typing import Any

import orjson

from deferd.api.response_values import instant
from deferd.engine.events.event import Event
from deferd.engine.events.event_reader import Dropped, LatestEvents
from deferd.engine.events.event_stream import Sent

KEEP_ALIVE = b": keep-alive\n\n"


def event(happened: Event) -> dict[str, Any]:
    """One event."""
    known = {"topic": happened.topic, "id": happened.id, "event": happened.kind}
    facts = _with_instants(happened.facts)
    return {
        **{name: value for name, value in known.items() if value is not None},
        "at": instant(happened.at_ms),
        "number": happened.number,
        **facts,
    }


def _with_instants(facts: Any) -> dict[str, Any]:
    return {
        name.removesuffix("_ms"): (
            instant(value) if name.endswith("_ms") else _with_instants(value) if isinstance(value, dict) else value
        )
        for name, value in facts.items()
    }


def latest(found: LatestEvents) -> dict[str, Any]:
    """The last events."""
    return {
        "events": [event(one) for one in found.events],
        "last_event_id": found.event_id,
        "complete": found.is_complete,
    }


def dropped(notice: Dropped) -> dict[str, Any]:
    """The notice that events, or topics, are missing."""
    if notice.topic is None:
        return {"topics": notice.topics}
    return {"topic": notice.topic, **({} if notice.count is None else {"count": notice.count})}


def message(sent: Sent) -> bytes:
    """One message."""
    begin = b"" if sent.id is None else b"id: %b\n" % sent.id.encode()
    item = sent.item
    if item is None:
        return begin + b"\n"
    if isinstance(item, Dropped):
        return begin + b"event: dropped\ndata: %b\n\n" % orjson.dumps(dropped(item))
    return begin + b"event: %b\ndata: %b\n\n" % (item.kind.encode(), orjson.dumps(event(item)))
