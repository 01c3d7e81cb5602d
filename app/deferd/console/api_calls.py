"""Calls of the API from within its process, with the key of a session.

A call takes the way of any other request from `RequestHandler.find` on. So the API's permissions, validation, limits,
error texts, audit log and metrics apply.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from deferd.api.dispatch import RequestHandler
from deferd.api.incoming_request import IncomingRequest
from deferd.api.problem_details import document
from deferd.console.json_text import off_loop
from deferd.console.masks import Masks
from deferd.engine.caches import SharedReads

READS_KEPT_S = 1.0
_READS_KEPT = 1000
QueryValue = str | int | bool | None
_NO_QUERY: Mapping[str, QueryValue] = MappingProxyType({})
_LIMIT_HEADERS = {
    b"ratelimit-policy": re.compile(rb'"requests";q=(\d+)'),
    b"ratelimit": re.compile(rb'"requests";r=(\d+)'),
}


class Caller(NamedTuple):
    """Who makes a call: the digest of the session's key (None without keys), `Host`, and the client's address."""

    key_digest: bytes | None
    host: bytes
    address: str | None


class Room(NamedTuple):
    """How many requests a rate limit allows now, and when it is unused."""

    left: int
    most: int


class ApiRefused(Exception):
    """The API responded with a problem document. `scope` is the one that the operation requires."""

    def __init__(self, status: int, problem: dict[str, Any], scope: str | None = None) -> None:
        self.status = status
        self.problem = problem
        self.scope = scope
        errors = problem.get("errors") or ()  # `detail` names the first of them only
        named = "; ".join(f"{error['field'].removeprefix('body.')} {error['message']}" for error in errors)
        super().__init__(named or problem.get("detail", problem.get("title", "")))

    @property
    def code(self) -> str:
        """The code of the problem document."""
        return str(self.problem.get("code", ""))


class _Call(NamedTuple):
    method: str
    path: str
    query: bytes = b""
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class _InnerRequest(IncomingRequest):
    """A request that the console makes. No client waits for it directly."""

    __slots__ = ("_body", "_caller", "key_digest")

    is_of_console = True

    def __init__(self, caller: Caller, call: _Call, path_values: dict[str, str]) -> None:
        own = ((b"host", caller.host), (b"content-type", b"application/json"))
        super().__init__(call.method, path_values, call.query, (*own, *call.headers))
        self.key_digest = caller.key_digest
        self._caller = caller
        self._body = call.body

    def client_address(self) -> str | None:
        """See IncomingRequest."""
        return self._caller.address

    async def read_body(self) -> bytes:
        """See IncomingRequest."""
        return self._body


def api_path(*segments: str) -> str:
    """The path of an operation: `api_path("topics", topic, "pause")`. A segment can't add further ones."""
    return "".join(f"/{segment.replace('/', '%2F')}" for segment in segments)


def page_path(*segments: str) -> str:
    """The same for a link to a page, percent-encoded and relative to `<base>`: `page_path("console", "topics", x)`."""
    return "/".join(quote(segment, safe=":") for segment in segments)


class ApiCalls:
    """Calls operations. Reads are kept for a second, by key and URL, and shared by all pages that need them.

    `writes` counts what was carried out: a read that began before a write is not kept for those after it. No response
    has what `masks` hide, except in `read_unmasked`.
    """

    def __init__(self, handler: RequestHandler, masks: Masks) -> None:
        self._handler = handler
        self.masks = masks
        self.writes = 0
        self._reads: SharedReads[bytes] = SharedReads(READS_KEPT_S, _READS_KEPT, size=len)
        self._rooms: dict[bytes | None, Room | None] = {}

    def room(self, caller: Caller) -> Room | None:
        """What was left of the key's rate limit at its last call; None without a limit."""
        return self._rooms.get(caller.key_digest)

    async def read(self, caller: Caller, path: str, query: Mapping[str, QueryValue]) -> bytes:
        """The JSON that a GET responds with, at most a second old. Parameters that are None are left out.

        Raises:
            ApiRefused: the status is not 2xx.
        """
        encoded = _encoded(query)
        key = (self.writes, caller.key_digest, caller.host, path, encoded)
        return await self._reads.get(key, lambda: self._read_masked(caller, path, encoded))

    async def read_fresh(self, caller: Caller, path: str) -> bytes:
        """As `read`, but as it is now: for what a form compares before it writes."""
        return await self._read_masked(caller, path, b"")

    async def read_unmasked(self, caller: Caller, path: str) -> bytes:
        """As `read`, with hidden fields: for requests to the API, never for a page."""
        return await self._read(caller, path, b"")

    async def write(  # noqa: PLR0917 (a request)
        self,
        caller: Caller,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, QueryValue] = _NO_QUERY,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> bytes:
        """Carry out an operation with an effect; a body of bytes is JSON already. Raises ApiRefused."""
        content = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        try:
            response = await self._respond(caller, _Call(method, path, _encoded(query), content, headers))
            return await self._masked(bytes(response.body))
        finally:
            self.writes += 1

    async def stream(
        self, caller: Caller, path: str, query: Mapping[str, QueryValue], last_event_id: bytes
    ) -> Response:
        """The response of an operation that streams events, starting after `last_event_id`, or now if it is empty.

        It ends after a minute.

        Raises:
            ApiRefused: the status is not 2xx.
        """
        headers = ((b"last-event-id", last_event_id),) if last_event_id else ()
        response = await self._respond(caller, _Call("GET", path, _encoded(query), headers=headers))
        return LiveEvents(response, self.masks)

    async def _read(self, caller: Caller, path: str, query: bytes) -> bytes:
        return bytes((await self._respond(caller, _Call("GET", path, query))).body)

    async def _read_masked(self, caller: Caller, path: str, query: bytes) -> bytes:
        return await self._masked(await self._read(caller, path, query))

    async def _masked(self, content: bytes) -> bytes:
        return await off_loop(len(content), lambda: self.masks.response(content)) if self.masks else content

    async def _respond(self, caller: Caller, call: _Call) -> Response:
        found = self._handler.find(call.method, call.path)
        if found is None:
            raise ApiRefused(404, document("not_found", f"the path {call.path[:200]} does not exist"))
        operation, path_values = found
        response = await self._handler.handle(operation, _InnerRequest(caller, call, path_values))
        if response is None:
            raise ClientDisconnect
        if caller.key_digest is not None:
            self._rooms[caller.key_digest] = _room_in(response)
        if response.status_code >= 300:
            raise ApiRefused(response.status_code, _problem(bytes(response.body)), operation.permission.scope)
        return response


def _room_in(response: Response) -> Room | None:
    found = {}
    for name, value in response.raw_headers:
        if name in _LIMIT_HEADERS and (number := _LIMIT_HEADERS[name].match(value)) is not None:
            found[name] = int(number[1])
    return Room(found[b"ratelimit"], found[b"ratelimit-policy"]) if len(found) == len(_LIMIT_HEADERS) else None


def _problem(content: bytes) -> dict[str, Any]:
    try:
        problem = orjson.loads(content)
    except orjson.JSONDecodeError:
        problem = None
    return problem if isinstance(problem, dict) else {}


def _encoded(query: Mapping[str, QueryValue]) -> bytes:
    given = {name: _text(value) for name, value in query.items() if value is not None}
    return urlencode(given, encoding="utf-8").encode()


def _text(value: QueryValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_STREAM_S = 60.0
"""The browser connects again then, and goes on where it was: so a stream ends soon after its session."""


class LiveEvents(Response):
    """A stream of Server-Sent Events that ends after a minute, as if the browser had disconnected.

    It has no values that `masks` hide. Each piece of the stream has whole messages.
    """

    def __init__(self, stream: Response, masks: Masks) -> None:
        super().__init__()
        self.raw_headers = stream.raw_headers
        self._stream = stream
        self._masks = masks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until there is an end."""
        ends_s = asyncio.get_running_loop().time() + _STREAM_S

        async def receive_until_end() -> Message:
            try:
                async with asyncio.timeout_at(ends_s):
                    return await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}

        async def send_masked(message: Message) -> None:
            piece = message.get("body", b"")
            if piece:
                message = {**message, "body": b"\n".join(map(self._masked, piece.split(b"\n")))}
            await send(message)

        await self._stream(scope, receive_until_end, send_masked if self._masks else send)

    def _masked(self, line: bytes) -> bytes:
        data = line.removeprefix(b"data: ")
        return line if data == line else b"data: " + self._masks.response(data)
