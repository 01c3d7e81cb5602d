"""The stream of the console's Events page ends by itself, and has no errors where fields are masked."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from deferd.console import api_calls
from deferd.console.api_calls import LiveEvents
from deferd.console.masks import MASKED, Masks


class _UntilDisconnect(Response):
    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b""})


async def test_it_ends_as_if_the_browser_had_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_calls, "_STREAM_S", 0.05)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(5):
        await LiveEvents(_UntilDisconnect(headers={"x-a": "b"}), Masks())({}, receive, send)

    assert len(sent) == 1


def test_a_stream_of_events_has_no_errors() -> None:
    event = {"event": "dead", "id": "a", "error": "no hunter22\n"}
    message = b"id: 1\nevent: dead\ndata: " + json.dumps(event).encode() + b"\n\n: keep-alive\n\n"
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    async def send(message: Message) -> None:
        sent.append(message)

    async def stream() -> None:
        inner = StreamingResponse(iter([message]), media_type="text/event-stream")
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        await LiveEvents(inner, Masks(["password"]))(scope, receive, send)

    asyncio.run(stream())
    content = b"".join(one.get("body", b"") for one in sent)
    assert b"hunter22" not in content
    assert MASKED.encode() in content
    assert content.startswith(b"id: 1\nevent: dead\ndata: {")
    assert content.endswith(b"}\n\n: keep-alive\n\n")
