"""Sends one request to a target and reads a bounded response. No redirects, cookies, proxies or content encodings.

Nothing is sent to addresses that are not public: aiohttp resolves names by `_GuardedResolver`, and opens its sockets by
`_GuardedSockets`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client import ClientTimeout
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader
from aiohttp.tracing import Trace
from yarl import URL

from deferd.client.transport import default_context
from deferd.contract import limits
from deferd.contract.push_targets import AllowedTargets, IpAddress, TargetRefused

_HEAD_FIELD_BYTES = 8190
_HEAD_FIELDS = 100
_IDLE_S = 15.0
_NAMES_KEPT_S = 10
"""How long a name counts as resolved."""
_READ_BYTES = limits.PUSH_RESULT_BYTES + 1
_INTERIM_MAX = 16
"""Most 1xx responses before the response: a target that works for long may send one now and then."""
_RECEIVED_MAX = 1_048_576
"""Most bytes of a response, with its heads and the frames of its chunks: 64 KiB in chunks of a byte have 400 KiB."""
_PARSED_AT_ONCE = 16_384
"""Bounds how long one read of the socket can hold the event loop: some milliseconds."""
_RESOLVING_AT_ONCE = 64
Resolve = Callable[[str, int], Awaitable[Sequence[tuple[Any, ...]]]]
"""As `loop.getaddrinfo` returns it for a name and a port."""


class PushFailed(Exception):
    """The target did not respond, or not with HTTP; the text says why, for the job."""


@dataclass(frozen=True, slots=True)
class PushResponse:
    """The response of a target. `body` ends after 64 KiB and a byte: then `is_whole` is false."""

    status: int
    body: bytes
    is_whole: bool
    content_type: str
    retry_after: str | None


_is_reused: ContextVar[bool] = ContextVar("is_reused", default=False)
"""Whether the connection of this task's request has carried another request before."""


class _TooMuchReceived(aiohttp.ClientError):
    """The target sends more than any response has."""


class _BoundedResponse(ResponseHandler):
    """Reads the responses on a connection, and gives it up when a target sends too much before a response has ended.

    aiohttp bounds each field of a head and waits for the last head: a target may send heads of 1xx responses without
    end, whose parsing takes all of the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._received = self._interim = 0

    def set_response_params(self, **params: Any) -> None:
        """See ResponseHandler: a request is about to be sent."""
        self._received = self._interim = 0
        super().set_response_params(**params)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """See ResponseHandler: a head was read."""
        self._interim += data[0].code < 200
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """See ResponseHandler."""
        for at in range(0, len(data), _PARSED_AT_ONCE) or (0,):
            self._received += min(len(data) - at, _PARSED_AT_ONCE)
            super().data_received(data[at : at + _PARSED_AT_ONCE])
            if self._interim > _INTERIM_MAX:
                self._give_up(f"it has more than {_INTERIM_MAX} interim responses (1xx)")
            elif self._received > _RECEIVED_MAX:
                self._give_up(f"it has more than {_RECEIVED_MAX} bytes")
            else:
                continue
            return

    def _give_up(self, reason: str) -> None:
        self.set_exception(_TooMuchReceived(reason))
        if self.transport is not None:
            self.transport.abort()


class _Connections(aiohttp.TCPConnector):
    """The pool of connections. An idle one on which the target has sent something is closed, not used again.

    Otherwise that would count as the response to the next request, which the target has not read.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(_BoundedResponse, self._loop)  # there is no public way
        self._used: WeakSet[Any] = WeakSet()

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        """A connection for a request; `_is_reused` says whether it is a new one."""
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or not protocol.should_close:
                _is_reused.set(protocol in self._used)
                self._used.add(protocol)
                return connection
            connection.close()


class HttpSender:
    """The connections of this process to all targets. There is no common limit, so no target can use up the connections
    of another.

    `ca_file` has further certificate authorities. `resolve` is the resolver, for tests; None is the system's.
    """

    def __init__(self, allowed: AllowedTargets, *, ca_file: Path | None = None, resolve: Resolve | None = None) -> None:
        self._session = aiohttp.ClientSession(
            connector=_Connections(
                resolver=_GuardedResolver(allowed, resolve or _SystemResolver()),
                socket_factory=_GuardedSockets(allowed),
                ssl=default_context(ca_file),
                ttl_dns_cache=_NAMES_KEPT_S,
                keepalive_timeout=_IDLE_S,
                limit=0,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_line_size=_HEAD_FIELD_BYTES,
            max_field_size=_HEAD_FIELD_BYTES,
            max_headers=_HEAD_FIELDS,
            read_bufsize=limits.PUSH_RESULT_BYTES,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def post(self, url: URL, headers: Mapping[str, str], body: bytes, timeout_s: float) -> PushResponse:
        """Send a POST and read the response.

        It is sent twice when a connection that was used before turns out to be closed by the target without a response.

        Raises:
            PushFailed: there is no response within `timeout_s`, or it is not HTTP.
        """
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._post(url, headers, body)
                except aiohttp.ServerDisconnectedError:
                    if not _is_reused.get():
                        raise
                    return await self._post(url, headers, body)
        except TimeoutError:
            raise PushFailed(f"the target did not respond within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PushFailed(_reason(error)) from None

    async def _post(self, url: URL, headers: Mapping[str, str], body: bytes) -> PushResponse:
        async with self._session.post(
            url, data=body, headers=headers, allow_redirects=False, timeout=_NO_TIMEOUT
        ) as response:
            content = response.content
            read = b"" if content.at_eof() else await content.read(_READ_BYTES)
            while len(read) < _READ_BYTES and not content.at_eof():
                read += await content.read(_READ_BYTES - len(read))
            is_whole = len(read) < _READ_BYTES
            if not is_whole:
                response.close()
            response_headers = response.headers
            return PushResponse(
                response.status,
                read,
                is_whole,
                response_headers.get("Content-Type", ""),
                response_headers.get("Retry-After"),
            )


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""`post` has one over all."""


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error.__cause__
    if isinstance(error, _AddressRefused) or isinstance(cause, _AddressRefused):
        refused = error if isinstance(error, _AddressRefused) else cause
        return f"the target is refused: {refused}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name of the target cannot be resolved: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of the target is not valid: {error.certificate_error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the target closed the connection without a response"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to the target: {error.os_error}"
    # The text of some errors has the URL, whose query may be a secret.
    said = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return f"the target's response is not valid: {said or type(error).__name__:.500}"


class _AddressRefused(OSError):
    """A target has an address to which nothing may be pushed."""


class _SystemResolver:
    """Asks the resolver of the system, each name in a thread of its own.

    A name server that does not respond keeps the thread for many seconds. So the threads of the event loop stay free
    for other work, and the end of the process does not wait for such a thread.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_RESOLVING_AT_ONCE)

    async def __call__(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        """The addresses of a name. Raises OSError."""
        async with self._turns:
            found: asyncio.Future[Sequence[tuple[Any, ...]]] = asyncio.get_running_loop().create_future()
            threading.Thread(target=_resolve, args=(host, port, found), daemon=True, name="deferd-resolver").start()
            return await found


def _resolve(host: str, port: int, found: asyncio.Future[Sequence[tuple[Any, ...]]]) -> None:
    result: Sequence[tuple[Any, ...]] = ()
    error: Exception | None = None
    try:
        result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as failed:  # a label that is too long is a UnicodeError
        error = failed if isinstance(failed, OSError) else OSError(f"{host} is not a name")

    def tell() -> None:
        if not found.done():
            found.set_result(result) if error is None else found.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the event loop was closed
        found.get_loop().call_soon_threadsafe(tell)


class _GuardedResolver(AbstractResolver):
    """Resolves names; refuses one that has any address which is not allowed.

    The connection goes to the very addresses that were checked: the DNS is not asked a second time. Each address is
    checked once more when its socket is made.
    """

    def __init__(self, allowed: AllowedTargets, resolve: Resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name, all checked.

        Raises:
            _AddressRefused, OSError: there is none.
        """
        found: list[ResolveResult] = []
        for its_family, _, protocol, _, where in await self._resolve(host, port):
            if its_family not in (socket.AF_INET, socket.AF_INET6) or family not in (socket.AF_UNSPEC, its_family):
                continue
            address = _address(where)
            try:
                self._allowed.check_resolved(host.rstrip(".").lower(), address, port)
            except TargetRefused as refused:
                raise _AddressRefused(f"{host} {refused}") from None
            found.append(
                ResolveResult(
                    hostname=host,
                    host=str(address),
                    port=port,
                    family=its_family,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        if not found:
            raise OSError(f"{host} has no address")
        return found

    async def close(self) -> None:
        """Nothing to release."""


class _GuardedSockets:
    """Makes the sockets of connections: the last check, for names and addresses alike."""

    def __init__(self, allowed: AllowedTargets) -> None:
        self._allowed = allowed

    def __call__(self, address_info: tuple[Any, ...]) -> socket.socket:
        """A socket for a connection to this address. Raises _AddressRefused."""
        family, kind, protocol, _, where = address_info
        try:
            self._allowed.check_address(_address(where), where[1])
        except TargetRefused as refused:
            raise _AddressRefused(f"the target {refused}") from None
        return socket.socket(family, kind, protocol)


def _address(where: Sequence[Any]) -> IpAddress:
    return ipaddress.ip_address(str(where[0]).partition("%")[0])
