"""The response that streams events until the client disconnects, the server stops, or the key is revoked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Raw
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deferd.api.auth.admission import Admission
from deferd.api.responses import encode
from deferd.contract.errors import DeferdError
from deferd.contract.operations import events as contract
from deferd.contract.timestamps import instant
from deferd.engine.event_streams import EventHub, EventStream, Sent
from deferd.engine.events import Dropped, Event

MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = b": keep-alive\n\n"
_CHECK_KEY_S = 1.0
_RETRY_MS = 1000
_BEGIN = b"retry: %d\n\n" % _RETRY_MS
"""How long a browser waits before it connects again; and the head of the response leaves at once."""
_PIECE_EVENTS = 200
"""How many events are written without a turn of the event loop."""
CUT_OFF = "deferd.cut_off"
"""The extension of the ASGI scope with which a server lets a response close its connection at once; it has a `call`."""
_LAST_S = 0.5
"""How long after the end of a stream its client may still read; a shutdown waits for this time."""
_LOG = logging.getLogger(__name__)


class EventStreamResponse(Response):
    """Streams what `hub` reads for `stream`. The key of `admission` is checked again each second.

    Its body has no known length, so any server sends it through ASGI.
    """

    media_type = MEDIA_TYPE

    def __init__(self, hub: EventHub, stream: EventStream, admission: Admission) -> None:
        self._hub = hub
        self._stream = stream
        self._admission = admission
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = [
            (b"content-type", MEDIA_TYPE.encode() + b"; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # nginx
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until there is an end. The connection of a client that does not read is closed then."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        watching = asyncio.create_task(_wait_for_disconnect(receive))
        watching.add_done_callback(lambda _: self._stream.end())
        try:
            with self._hub.serving(self._stream):
                is_complete = await self._send_until_end(send)
            if not is_complete:
                if CUT_OFF in scope.get("extensions", ()):
                    scope["extensions"][CUT_OFF]["call"]()
                await asyncio.wait((watching,), timeout=_LAST_S)
        finally:
            watching.cancel()
            await asyncio.wait((watching,))

    async def _send_until_end(self, send: Send) -> bool:
        """Send all; False if the client does not read, so that `send` waits for it after the stream has ended."""
        sending = asyncio.create_task(self._send_all(send))
        ending = asyncio.create_task(self._stream.ended.wait())
        try:
            await asyncio.wait((sending, ending), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((sending,), timeout=_LAST_S)
            if sending.done():
                await sending
                return True
            return False
        finally:
            for task in (sending, ending):
                task.cancel()
            await asyncio.gather(sending, ending, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        await _send_piece(send, _BEGIN)
        await self._send_events(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        written_s = now()
        while not self._stream.is_ended:
            items = await self._stream.read(_CHECK_KEY_S)
            try:
                self._stream.restrict(self._admission.current_topics())
            except DeferdError as error:
                _LOG.info("a stream of events ends: %s", error)
                return
            for at in range(0, len(items), _PIECE_EVENTS):
                await _send_piece(send, b"".join(map(_message, items[at : at + _PIECE_EVENTS])))
                await asyncio.sleep(0)
            if items:
                written_s = now()
            elif now() - written_s >= KEEP_ALIVE_S:
                await _send_piece(send, _KEEP_ALIVE)
                written_s = now()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_piece(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


def _message(sent: Sent) -> bytes:
    """A message of Server-Sent Events (WHATWG HTML, section 9.2)."""
    begin = b"" if sent.id is None else b"id: %b\n" % sent.id.encode()
    item = sent.item
    if item is None:
        return begin + b"\n"
    if isinstance(item, Dropped):
        notice = contract.Dropped(topic=item.topic, count=item.count, topics=item.topics or None)
        return begin + b"event: dropped\ndata: %b\n\n" % encode(notice)
    return begin + b"event: %b\ndata: %b\n\n" % (item.kind.encode(), encode(event(item)))


def event(happened: Event) -> contract.Event:
    """One event."""
    return contract.Event(
        topic=happened.topic,
        id=happened.id,
        event=happened.kind,
        at=instant(happened.at_ms),
        number=happened.number,
        **_with_instants(happened.facts),
    )


def _with_instants(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removesuffix("_ms"): instant(value) if name.endswith("_ms") else _shown(value)
        for name, value in facts.items()
    }


def _shown(value: Any) -> Any:
    match value:
        case dict():
            return _with_instants(value)
        case bytes():
            return Raw(value)
        case _:
            return value
