"""The HTTP server of one process: uvicorn with connection limits, certificate reload and an orderly shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn

from deferd.api.app import Service, create_app
from deferd.api.resp.session import RespApi
from deferd.console.app import Console
from deferd.server.credential_files import LastGoodCredentials, certificate
from deferd.server.http.connections import Connections, ServedConnection, Work
from deferd.server.http.direct_path import DirectPath
from deferd.server.http.protocol import FastPathProtocol
from deferd.server.http.tls_handshake import TlsHandshake
from deferd.server.port_closing import admit_no_more, last_connections
from deferd.server.resp_connection import RespConnection
from deferd.server.startup_errors import CannotServe, CertificateRefused
from deferd.server.tracing import tracing
from deferd.settings import Settings
from deferd.stop_signals import StopSignals

BACKLOG = 4096
"""Connections that may wait to be accepted; the operating system may allow fewer."""


GC_THRESHOLDS = (50_000, 20, 50)
"""A batch makes thousands of objects that live for one request; collecting after every 700 of them finds nothing."""
RESERVED_FILES = 400
"""File descriptors kept for other uses than connections: the store, metrics, rejecting connections."""
_IDLE_CHECK_S = 0.02
_UVICORN_PAUSE_S = 0.1
"""How long uvicorn's shutdown itself waits before it looks for requests in progress."""
CLOSING_S = 0.3
"""How long the application may take to close after the requests have finished, on top of the drain timeout."""

_log = logging.getLogger("deferd")


async def serve_application(
    settings: Settings,
    store_url: str,
    listener: socket.socket,
    signals: StopSignals,
    on_started: Callable[[], object],
    *,
    last_good: LastGoodCredentials = LastGoodCredentials(),  # noqa: B008 (it is frozen)
    resp_listener: socket.socket | None = None,
    shelf_socket: Path | None = None,
    runs_relays: bool = True,
    owns_ports: bool = True,
) -> None:
    """Run the application on the socket until a stop signal has been handled.

    `resp_listener` is the socket for the Redis protocol, if that is to be served; `shelf_socket` is where the shelf is
    called, if there is one. With `runs_relays` false another process runs the relays; with `owns_ports` false others
    serve on the same sockets. Keys and certificate come from `last_good` while their files are invalid.

    Raises:
        CannotServe: the application does not start, or the certificate cannot be used.
    """
    with tracing(settings):
        application = create_app(
            settings,
            store_url,
            last_good.keys,
            console=Console,
            shelf_socket=shelf_socket,
            runs_relays=runs_relays,
        )
        server = _HttpServer(application, settings, on_started, last_good, owns_ports=owns_ports)
        signals.on_stop, signals.on_force = server.stop, server.force
        await server.serve_until_stopped(listener, resp_listener)


class _HttpServer(uvicorn.Server):
    """uvicorn's server, which runs the application and its stop, with connections of deferd's own.

    It leaves signals alone, and at shutdown waiting pops get their responses before requests are drained. All that is
    used of uvicorn beyond its documented parameters is in this class; `test_uvicorn_server.py` names it.
    """

    def __init__(
        self,
        application: Service,
        settings: Settings,
        on_started: Callable[[], object],
        last_good: LastGoodCredentials,
        *,
        owns_ports: bool,
    ) -> None:
        try:
            self._certificate = certificate(settings, last_good.certificate)
        except CertificateRefused as exc:
            raise CannotServe(str(exc)) from exc
        self._lifespan = _LifespanErrorRecorder(application)
        self._connections = Connections(settings)
        self._connections.max_open = _allowed_connections(settings.max_connections)
        super().__init__(
            uvicorn.Config(
                self._lifespan,
                http=FastPathProtocol,
                ws="none",
                lifespan="on",
                interface="asgi3",
                log_config=None,
                proxy_headers=False,
                timeout_graceful_shutdown=cast("int", settings.drain_timeout),  # fractions work as well
            )
        )
        # uvicorn tells these connections that it stops, and waits for these requests.
        self._connections.connected = cast("set[ServedConnection]", self.server_state.connections)
        self._connections.tasks = cast("set[Work]", self.server_state.tasks)
        self._application = application
        self._drain_timeout_s = settings.drain_timeout
        self._on_started = on_started
        self._stop_requested = asyncio.Event()
        self._resp_listener: socket.socket | None = None
        self._owns_ports = owns_ports
        self._listeners: list[tuple[socket.socket, Callable[[], Any]]] = []
        """Each with what makes the protocol of a connection."""

    async def serve_until_stopped(self, listener: socket.socket, resp_listener: socket.socket | None) -> None:
        """Serve; return when stopped."""
        self._resp_listener = resp_listener
        async with self._following_certificate():
            try:
                await self.serve(sockets=[listener])
            except SystemExit:  # how uvicorn reports that the application did not start
                error = self._lifespan.error
                raise CannotServe(f"the application did not start: {error}") from error
        if self._lifespan.error is not None:
            _log.error("the application did not close cleanly", exc_info=self._lifespan.error)

    @contextlib.asynccontextmanager
    async def _following_certificate(self) -> AsyncIterator[None]:
        if self._certificate is None:
            yield
            return
        following = asyncio.create_task(self._certificate.follow(), name="certificate")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait((following,))

    def stop(self) -> None:
        """Begin to stop."""
        self._stop_requested.set()

    def force(self) -> None:
        """Stop waiting for requests."""
        self.force_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: uvicorn would raise the signal again at the end, and the exit code would not be 0."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and accept connections."""
        await super().startup([])
        direct_path = DirectPath(self._application)
        make_http = self._over_tls(partial(FastPathProtocol, self._application, self._connections, direct_path))
        self._listeners = [(listener, make_http) for listener in sockets or []]
        if self._resp_listener is not None:
            make_resp = self._over_tls(partial(RespConnection, RespApi(self._application), self._connections))
            self._listeners.append((self._resp_listener, make_resp))
        for listener, make_protocol in self._listeners:
            self.servers.append(
                await asyncio.get_running_loop().create_server(make_protocol, sock=listener, backlog=BACKLOG)
            )
        # Objects made so far live as long as the process: keep the collector from traversing them under load.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._on_started()

    def _over_tls(self, make_protocol: Callable[[], Any]) -> Callable[[], Any]:
        """As in uvicorn, but TLS handshakes have the timeout of a request head, TLS shutdowns that of a response."""
        if self._certificate is None:
            return make_protocol
        return partial(TlsHandshake, self._connections, self._certificate.context, make_protocol)

    async def main_loop(self) -> None:
        """Until stopped, once a second: update the Date header and close overdue connections."""
        while not self._stop_requested.is_set():
            self._connections.date_line = b"date: %b\r\n" % formatdate(usegmt=True).encode()
            self._connections.close_overdue()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Respond to waiting pops, give requests the drain timeout to finish, close the application."""
        self._connections.is_stopping = True
        # Not before the connections are told, so that the responses to waiting pops say `connection: close`.
        asyncio.get_running_loop().call_soon(self._application.state.drain)
        await self._end_idle_connections()
        try:
            async with asyncio.timeout(self._drain_timeout_s + CLOSING_S):
                await super().shutdown(sockets)
        except TimeoutError:
            _log.warning("the application did not close in time; its tasks are cancelled")

    async def _end_idle_connections(self) -> None:
        """Accept no more connections, and let each client of an open one learn from its next response to leave it."""
        # Duplicates, as closing a server closes its socket.
        listeners = [(listener.dup(), make_protocol) for listener, make_protocol in self._listeners]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        connecting = []
        for listener, make_protocol in listeners:
            if self._owns_ports:
                admit_no_more(listener)
            waiting = list(last_connections(listener))
            connecting += [loop.connect_accepted_socket(make_protocol, connection) for connection in waiting]
        for connected in list(self._connections.connected):
            connected.shutdown()
        await asyncio.gather(*connecting, return_exceptions=True)  # clients may have left meanwhile
        ends_s = loop.time() + self._connections.last_request_s - _UVICORN_PAUSE_S
        while self._connections.has_idle() and not self.force_exit and loop.time() < ends_s:  # noqa: ASYNC110 (no event per request)
            await asyncio.sleep(_IDLE_CHECK_S)


def _allowed_connections(wanted: int) -> int:
    """How many connections this process may open: `wanted`, or fewer where the limit on open files leaves less room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if 0 <= soft < needed:
        raised = min(needed, hard) if hard >= 0 else needed  # below 0: no limit
        with contextlib.suppress(OSError, ValueError):  # macOS has a maximum that it does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft < 0 or soft >= needed:
        return wanted
    allowed = max(soft - RESERVED_FILES, soft // 2)
    if allowed < wanted:
        _log.info(
            "limited to %d connections instead of %d: the system allows %d open files per process",
            allowed,
            wanted,
            soft,
        )
    return min(allowed, wanted)


class _LifespanErrorRecorder:
    """The application, whose exception at startup or shutdown is kept in `error`: uvicorn would only log its text."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self.error: Exception | None = None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        failed: dict[str, Any] = {}

        async def send_without_error_text(message: dict[str, Any]) -> None:
            if message["type"].endswith(".failed"):
                failed["type"] = message["type"]
            else:
                await send(message)

        try:
            await self._application(scope, receive, send_without_error_text)
        except Exception as exc:
            if not failed:
                raise
            self.error = exc
            await send(failed)
