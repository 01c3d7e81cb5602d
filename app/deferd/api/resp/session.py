"""One client of the Redis protocol: what it has said about itself, and the way of its commands to operations."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlencode

from starlette.responses import Response

from deferd.api.app import Service
from deferd.api.auth.admission import Admission
from deferd.api.context import AppContext
from deferd.api.dispatch import Run
from deferd.api.incoming_request import Headers, IncomingRequest, host_of
from deferd.api.metrics import RESP_METHOD
from deferd.api.operation import OperationRoute
from deferd.api.resp.replies import REPLIES, CommandError, Disconnected, Replies, of_problem
from deferd.api.responses import Header
from deferd.contract import limits
from deferd.contract.errors import PayloadTooLarge
from deferd.contract.operations.operation import Operation
from deferd.engine.record import json_bytes

TOPIC = re.compile(limits.TOPIC_PATTERN)
_ERRORS_FROM = 400
JSON_CHARACTER_BYTES = 6
"""The most that a character takes in JSON: `\\u0000`."""
_ids = itertools.count(1)
Result = TypeVar("Result")


class Client(Protocol):
    """The connection of a session. `address` is the client's address, if it has one."""

    address: tuple[str, int] | None

    @property
    def is_leaving(self) -> bool:
        """Whether the client has closed its side: it may still read, but it may as well be gone."""


class RespApi:
    """The operations of an application, as the commands call them."""

    def __init__(self, service: Service) -> None:
        self.context: AppContext = service.context
        self.handler = service.request_handler
        self._routes = {route.operation_id: route for route in service.routes if isinstance(route, OperationRoute)}
        self.has_keys = self.context.gate.has_keys
        self.fits_as_json_bytes = self.context.settings.max_body_bytes // JSON_CHARACTER_BYTES
        """Text of this size is within the limit of a request in any case."""
        self.has_short_way = not self.context.settings.tracing
        """As the direct paths of HTTP: a traced request goes the general way."""

    def route_of(self, operation: Operation[Any]) -> OperationRoute:
        """The route that serves an operation."""
        return self._routes[operation.id]


class Session:
    """A client's version of the protocol, name and key. Its commands are carried out one after the other.

    `headers` are those that a client of HTTP would send: the key, and which program it is.
    """

    def __init__(self, api: RespApi, client: Client) -> None:
        self.id = next(_ids)
        self.api = api
        self.client = client
        self.replies: Replies = REPLIES[2]
        self.name = b""
        self.headers: list[Header] = []
        self.key_name: str | None = None
        self.is_authenticated = not api.has_keys
        self.has_quit = False
        self._library: dict[bytes, bytes] = {}
        self._token: bytes | None = None
        self._waiting: RespRequest | None = None

    # What the client says about itself

    def use_key(self, token: bytes, key_name: str) -> None:
        """Use this key for all further commands."""
        self._token, self.key_name, self.is_authenticated = token, key_name, True
        self._set_headers()

    def note_library(self, attribute: bytes, value: bytes) -> None:
        """`lib-name` or `lib-ver`: what `CLIENT SETINFO` says."""
        self._library[attribute] = value
        self._set_headers()

    def reset(self) -> None:
        """Forget the version of the protocol, the name, and the key."""
        self.replies, self.name, self._token, self.key_name = REPLIES[2], b"", None, None
        self.is_authenticated = not self.api.has_keys
        self._set_headers()

    def _set_headers(self) -> None:
        agent = b"/".join([self._library[name] for name in (b"lib-name", b"lib-ver") if name in self._library])
        self.headers = [(b"user-agent", agent)] if agent else []
        if self._token is not None:
            self.headers.append((b"authorization", b"Bearer " + self._token))

    # Requests

    def check_size_as_json(self, texts: Sequence[str]) -> None:
        """Raise CommandError when the JSON of these texts is larger than a request of HTTP may be.

        A control character has one byte in a command, and six as JSON.
        """
        most = self.api.context.settings.max_body_bytes
        if sum(map(len, texts)) > self.api.fits_as_json_bytes and sum(len(json_bytes(one)) for one in texts) > most:
            code = PayloadTooLarge.code.upper()
            raise CommandError(code, f"as JSON, in which it is stored, the text is larger than {most} bytes")

    def request(
        self, path_values: dict[str, str], query: Mapping[str, object] | None = None, body: object = None
    ) -> RespRequest:
        """A request of an operation; `body` is any JSON value."""
        raw = b"" if body is None else json_bytes(body)
        return RespRequest(path_values, urlencode(query or {}).encode(), raw, self.headers, self.client.address)

    async def call(
        self,
        operation: Operation[Any],
        path_values: dict[str, str],
        query: Mapping[str, object] | None = None,
        body: object = None,
        run: Run | None = None,
    ) -> Response:
        """The response of an operation to a request of this client.

        Raises:
            CommandError: the response is a problem document.
            Disconnected: the client disconnected, and the work for it was undone.
        """
        request = self.request(path_values, query, body)
        response = await self.api.handler.handle(self.api.route_of(operation), request, run)
        return _checked(response)

    async def call_while_connected(
        self, operation: Operation[Any], path_values: dict[str, str], query: Mapping[str, object]
    ) -> Response:
        """As `call`, for a request that may wait: it ends as soon as the client disconnects."""
        request = self._waiting = self.request(path_values, query)
        if self.client.is_leaving:
            request.disconnect()
        try:
            return _checked(await self.api.handler.handle(self.api.route_of(operation), request))
        finally:
            self._waiting = None

    def disconnect(self) -> None:
        """The client has gone: what waits for it ends."""
        if self._waiting is not None:
            self._waiting.disconnect()

    def short_way(self, operation: Operation[Any], topic: str) -> Admission | None:
        """The admission of a request that may share calls; None for others. Its limits are not checked yet.

        As on the direct paths of HTTP, it is admitted for certain.
        """
        if not self.api.has_short_way or TOPIC.fullmatch(topic) is None:
            return None
        permission = self.api.route_of(operation).permission
        admission = self.api.context.gate.find_admission(permission, RESP_METHOD, self.headers)
        return None if admission is None or not admission.may_use(topic) else admission


def _checked(response: Response | None) -> Response:
    if response is None:
        raise Disconnected
    if response.status_code >= _ERRORS_FROM:
        raise of_problem(bytes(response.body))
    return response


async def each(work: list[Coroutine[Any, Any, Result]]) -> list[Result | CommandError]:
    """The results of several requests at a time, which begin in this order; or their errors."""

    async def one(request: Awaitable[Result]) -> Result | CommandError:
        try:
            return await request
        except CommandError as error:
            return error

    return await asyncio.gather(*map(one, work))


class RespRequest(IncomingRequest):
    """`body` is JSON, `query` encoded as in a URL."""

    __slots__ = ("_body", "_client")

    def __init__(
        self,
        path_values: dict[str, str],
        query: bytes,
        body: bytes,
        headers: Headers,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(RESP_METHOD, path_values, query, headers)
        self._body = body
        self._client = client

    def client_address(self) -> str | None:
        """See IncomingRequest."""
        return host_of(self._client)

    async def read_body(self) -> bytes:
        """See IncomingRequest."""
        return self._body


RunCommand = Callable[[Session, list[bytes]], Awaitable[bytes]]
RunMany = Callable[[Session, Sequence[list[bytes]]], AsyncGenerator[bytes, None]]


class Command(NamedTuple):
    """A command. `arity` is the number of its words with its name, or negative for a minimum, as Redis counts them.

    `run_many` replaces `run` for commands of which a run in a pipeline is carried out together; it checks the number of
    words itself, and goes on when the client has room for the replies so far. `is_open`: also for a client that has
    given no key.
    """

    arity: int
    run: RunCommand | None
    has_topic: bool = True
    is_open: bool = False
    run_many: RunMany | None = None

    def accepts(self, words: int) -> bool:
        """Whether a command may have this number of words."""
        return words == self.arity if self.arity >= 0 else words >= -self.arity


COMMANDS: dict[bytes, Command] = {}
"""The declared commands, by name. It is complete in `execution`."""


def command(
    operation: Operation[Any] | str, *, arity: int, has_topic: bool = True, is_open: bool = False
) -> Callable[[RunCommand], RunCommand]:
    """Declare that a function carries out the command of an operation, or the one of this name: see Command."""
    name = operation if isinstance(operation, str) else operation.command

    def declare(run: RunCommand) -> RunCommand:
        COMMANDS[name.encode()] = Command(arity, run, has_topic, is_open)
        return run

    return declare


def command_in_runs(name: str, *, arity: int) -> Callable[[RunMany], RunMany]:
    """Declare that a function carries out a run of commands of this name: see `Command.run_many`."""

    def declare(run_many: RunMany) -> RunMany:
        COMMANDS[name.encode()] = Command(arity, None, run_many=run_many)
        return run_many

    return declare
