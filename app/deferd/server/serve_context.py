"""What a service holds while it runs: its data directory, its listening socket and a store that passed the checks."""

from __future__ import annotations

import asyncio
import contextlib
import html
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from redis.exceptions import RedisError

from deferd.api import problem_details
from deferd.contract.errors import StoreUnavailable
from deferd.engine.movable_clock import clock_key
from deferd.engine.redis_keys import Keys
from deferd.engine.shelf import OPENING
from deferd.server.credential_files import read_credentials
from deferd.server.http_server import BACKLOG, CLOSING_S
from deferd.server.shelf_keeper import ShelfKeeper, is_needed
from deferd.server.startup_errors import CannotServe
from deferd.server.tracing import check_tracing
from deferd.settings import Settings, flag, path_text, variable
from deferd.store.connection import Store, connect
from deferd.store.embedded import LINGER_S, EmbeddedStore
from deferd.store.preflight import StoreRefused, check
from deferd.store.server_info import LoadProgress, LoadWatch, wait_until_loaded

_log = logging.getLogger("deferd")


@dataclass(frozen=True)
class ServeContext:
    """The listening sockets and the checked store of a running service.

    `greeting` is the log line that reports them, `log_fields` the same for logs in JSON. Only `store_url` may hold a
    secret. Server processes keep the file descriptors `inherited` open: an embedded store lives as long as they do.
    `resp_listener` is the socket for the Redis protocol, None without `--resp-port`. `shelf_socket` is where the shelf
    is called, if there is one.
    """

    listener: socket.socket
    store_url: str = field(repr=False)
    greeting: str
    log_fields: dict[str, str]
    inherited: tuple[int, ...] = ()
    resp_listener: socket.socket | None = None
    shelf_socket: Path | None = None

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """All listening sockets."""
        return (self.listener,) if self.resp_listener is None else (self.listener, self.resp_listener)

    def announce(self) -> None:
        """Log that the service is up, its URL and its store."""
        if self.resp_listener is not None:
            url = _url("rediss" if self.log_fields["url"].startswith("https:") else "redis", self.resp_listener)
            _log.info("the Redis protocol is served on %s", url, extra={"url": url})
        _log.info("%s", self.greeting, extra=self.log_fields)


@contextlib.asynccontextmanager
async def open_serve_context(settings: Settings, version: str) -> AsyncIterator[ServeContext]:
    """Claim the data directory, listen, start the store and check it; release everything at the end.

    While the store loads its data, requests on the socket get a response that says how far it is.

    Raises:
        CannotServe: the port cannot be bound, the keys or the certificate cannot be used, a package for tracing is
            missing, or a service without keys would be reachable from other machines.
        StoreRefused: the data directory or the store cannot be used.
    """
    credentials = await read_credentials(settings)
    allow_public = credentials.keys is not None or settings.insecure
    found = credentials.certificate
    scheme, tls = ("http", None) if found is None else ("https", found.context)
    check_tracing(settings)
    inherited: tuple[int, ...] = ()
    embedded: EmbeddedStore | None = None
    drain_s = settings.drain_idle_timeout + settings.drain_timeout + CLOSING_S
    async with contextlib.AsyncExitStack() as stack:
        if settings.redis_url is not None:
            listener, resp_listener = _listen(stack, settings, allow_public=allow_public)
            store_url = settings.redis_url.get_secret_value()
        else:
            embedded = EmbeddedStore(settings.data_dir, drain_s=drain_s)
            embedded.claim()
            stack.push_async_callback(embedded.stop)
            listener, resp_listener = _listen(stack, settings, allow_public=allow_public)
            async with starting_responses(listener, embedded.load_progress, tls):
                await embedded.start()
            store_url = embedded.url
            inherited = embedded.inherited
        try:
            store_name = await _check_store(settings, store_url, listener, tls)
        except StoreRefused as exc:
            fault = None if embedded is None else await embedded.fault()
            raise exc if fault is None else StoreRefused(f"{exc}; {fault}") from exc
        shelf_socket: Path | None = None
        if embedded is not None and is_needed(settings):
            keeper = ShelfKeeper(settings, store_url, linger_s=drain_s + LINGER_S)
            stack.push_async_callback(keeper.stop)
            async with starting_responses(listener, _no_progress, tls, detail=OPENING):
                await keeper.start()
            shelf_socket = keeper.socket
        url = _url(scheme, listener)
        yield ServeContext(
            listener,
            store_url,
            f"deferd {version} listening on {url}  console: {url}/  docs: {url}/docs  store: {store_name}",
            {"version": version, "url": url, "console": f"{url}/", "docs": f"{url}/docs", "store": store_name},
            inherited,
            resp_listener,
            shelf_socket,
        )


def _listen(
    stack: contextlib.AsyncExitStack, settings: Settings, *, allow_public: bool
) -> tuple[socket.socket, socket.socket | None]:
    """The sockets for HTTP and for the Redis protocol."""
    listener = stack.enter_context(listen(settings.host, settings.port, allow_public=allow_public))
    if settings.resp_port is None:
        return listener, None
    listening = listen(settings.host, settings.resp_port, allow_public=allow_public, port_setting="resp_port")
    return listener, stack.enter_context(listening)


async def _check_store(settings: Settings, store_url: str, listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    """The store's name for the log, once it has loaded its data. Raises StoreRefused when it cannot be used."""
    is_embedded = settings.redis_url is None
    store = await connect(store_url, timeout_s=settings.store_timeout)
    try:
        if not store.cluster:
            watch = LoadWatch(store.client.info)
            async with starting_responses(listener, watch.progress, tls):
                await wait_until_loaded(lambda: store.call("PING"), watch, f"the store at {store.description}")
        await check(
            store,
            shards=settings.shards,
            exclusive=is_embedded,
            unsupported=settings.unsupported_store,
        )
        if is_embedded and not settings.test_clock:
            await _check_clock(store, settings)
    finally:
        await store.close()
    if is_embedded:
        return f"embedded {store.server} in {path_text(settings.data_dir)}"
    return f"{store.server} at {store.description}"


async def _check_clock(store: Store, settings: Settings) -> None:
    """Refuse a store whose clock a test has moved: its jobs would run at other times than their producers expect."""
    try:
        moved_ms = await store.call("GET", clock_key(Keys(settings.shards), 0))
    except (RedisError, OSError) as exc:
        raise StoreRefused(f"the store at {store.description} cannot be reached: {exc}") from exc
    if moved_ms is not None:
        raise StoreRefused(
            f"the data directory {path_text(settings.data_dir)} belongs to tests, which moved its clock by "
            f"{int(moved_ms) / 1000:g} s: serve it with {flag('test_clock')}, or use another data directory "
            f"({flag('data_dir')}, {variable('data_dir')})"
        )


def _url(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


_KEYS_REQUIRED = (
    f"{flag('host')} ({variable('host')}) is {{host}}, which other machines can reach, and no key is required: set "
    f"keys with {flag('keys_file')} ({variable('keys_file')}) or {variable('keys')}, which `deferd key new` makes; or "
    f"listen on 127.0.0.1; or set {flag('insecure')} ({variable('insecure')}=true) to let anyone who can connect do "
    "everything"
)


@contextlib.contextmanager
def listen(host: str, port: int, *, allow_public: bool, port_setting: str = "port") -> Iterator[socket.socket]:
    """A bound and listening socket, closed at the end.

    The system chooses a port for port 0. `port_setting` is the name of the port's setting, for errors. The first
    address of a host name is used; without `allow_public` it must be a loopback address.

    Raises:
        CannotServe: the port is taken, or this machine does not have the address, or it needs `allow_public`.
    """
    settings = f"{flag('host')} {variable('host')}, {flag(port_setting)} {variable(port_setting)}"
    where = f"{host} port {port} ({settings})"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if not allow_public and not _is_loopback(str(address[0])):
            raise CannotServe(_KEYS_REQUIRED.format(host=host))
        listener = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise CannotServe(f"cannot listen on {where}: {exc.strerror or exc}") from exc
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as exc:
            raise CannotServe(f"cannot listen on {where}: {exc.strerror or exc}") from exc
        yield listener


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback  # ::ffff:127.0.0.1 is 127.0.0.1


RESPOND_AFTER_S = 5.0
"""A start without loading takes some seconds on a slow machine. Its connections wait: behind a proxy no call fails."""
_HEAD_BYTES = 16 * 1024
_HEAD_S = 5.0
_AT_ONCE = 64
_DETAIL = "the store is starting"
_UNAVAILABLE = b"503 Service Unavailable"

Read = Callable[[], Awaitable[LoadProgress | None]]


@contextlib.asynccontextmanager
async def starting_responses(
    listener: socket.socket, read_progress: Read, context: ssl.SSLContext | None = None, *, detail: str = _DETAIL
) -> AsyncIterator[None]:
    """Respond to requests on the socket during the block, if that takes long. The socket stays open.

    While a store loads its data nothing can be served yet, but probes ask how far it is. For the first seconds
    connections wait in the listener's queue, so that clients do not notice a quick restart. After that each request
    gets a 503 with the progress, or `detail` without one, and `/healthz` a 200, on a connection that is then closed.
    """
    responder = asyncio.create_task(_Responder(read_progress, detail).run(listener, context), name="starting-responses")
    try:
        yield
    finally:
        responder.cancel()
        await asyncio.wait((responder,))


class _Responder:
    def __init__(self, read_progress: Read, detail: str) -> None:
        self._read_progress = read_progress
        self._detail = detail
        self._connections: set[asyncio.StreamWriter] = set()

    async def run(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        await asyncio.sleep(RESPOND_AFTER_S)
        # Of its own, as a server closes its socket; both have one queue of connections.
        server = await asyncio.start_server(
            self._respond,
            sock=listener.dup(),
            limit=_HEAD_BYTES,
            ssl=context,
            ssl_handshake_timeout=None if context is None else _HEAD_S,
        )
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in self._connections:
                connection.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            if len(self._connections) <= _AT_ONCE:
                async with asyncio.timeout(_HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    response = await self._response(head)
                    if not writer.is_closing():  # uvloop raises RuntimeError otherwise
                        writer.write(response)
                        await writer.drain()
                        writer.close()
                        await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, or sends no request
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    async def _response(self, head: bytes) -> bytes:
        first_line, _, headers = head.partition(b"\r\n")
        method, _, target = first_line.partition(b" ")
        if target.startswith(b"/healthz"):
            return _http(b"200 OK", b"application/json", b'{"status":"ok"}', method)
        progress = await self._read_progress()
        detail = self._detail if progress is None else f"the store {progress}"
        error = StoreUnavailable(detail, 1 if progress is None else progress.retry_after_s)
        retry = b"retry-after: %d\r\n" % error.retry_after_s
        if b"text/html" in headers.lower():
            page = _PAGE.format(seconds=max(error.retry_after_s, 2), detail=html.escape(detail)).encode()
            return _http(_UNAVAILABLE, b"text/html; charset=utf-8", page, method, retry)
        problem = problem_details.response(error)
        return _http(_UNAVAILABLE, problem_details.MEDIA_TYPE.encode(), bytes(problem.body), method, retry)


async def _no_progress() -> LoadProgress | None:
    return None


def _http(status: bytes, media_type: bytes, body: bytes, method: bytes, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n" % (status, media_type, len(body))
    head += b"cache-control: no-store\r\n" + more + b"connection: close\r\n\r\n"
    return head if method == b"HEAD" else head + body


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{seconds}">
<title>deferd is starting</title></head>
<body><h1>deferd is starting</h1><p>{detail}</p><p>This page reloads by itself.</p></body></html>
"""
