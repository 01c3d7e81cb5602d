"""The HTTP server of one process: connection limits, certificate reload and an orderly shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import socket
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from functools import partial
from typing import Any

from deferd.api.app import Service, create_app
from deferd.api.resp.session import RespApi
from deferd.console.app import Console
from deferd.server.credential_files import LastGoodCredentials
from deferd.server.http.connections import Connections
from deferd.server.http.direct_path import DirectPath
from deferd.server.http.fast_path import FastPathProtocol
from deferd.server.http.tls_handshake import TlsHandshake
from deferd.server.listener import BACKLOG
from deferd.server.resp.connection import RespConnection
from deferd.server.startup_errors import CannotServe
from deferd.server.tls import CertificateRefused, certificate
from deferd.server.tracing import tracing
from deferd.settings import Settings
from deferd.stop_signals import StopSignals

GC_THRESHOLDS = (50_000, 20, 50)
"""A batch makes thousands of objects that live for one request; collecting after every 700 of them finds nothing."""
RESERVED_FILES = 400
"""File descriptors kept for other uses than connections: the store, metrics, rejecting connections."""
_SHUTDOWN_CHECK_S = 0.1
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
) -> None:
    """Run the application on the socket until a stop signal has been handled.

    `resp_listener` is the socket for the Redis protocol, if that is to be served. Keys and certificate come from
    `last_good` while their files are invalid.

    Raises:
        CannotServe: the application does not start, or the certificate cannot be used.
    """
    with tracing(settings):
        application = create_app(settings, store_url, last_good.keys, console=Console)
        server = _HttpServer(application, settings, on_started, last_good)
        signals.on_stop, signals.on_force = server.stop, server.force
        await server.serve_until_stopped(listener, resp_listener)


class _HttpServer:
    """Serves HTTP, and the Redis protocol if that is asked for."""

    def __init__(
        self,
        application: Service,
        settings: Settings,
        on_started: Callable[[], object],
        last_good: LastGoodCredentials,
    ) -> None:
        try:
            self._certificate = certificate(settings, last_good.certificate)
        except CertificateRefused as exc:
            raise CannotServe(str(exc)) from exc
        self._connections = Connections(settings)
        self._connections.max_open = _allowed_connections(settings.max_connections)
        self._application = application
        self._drain_timeout_s = settings.drain_timeout
        self._on_started = on_started
        self._stop_requested = asyncio.Event()
        self._is_forced = False

    async def serve_until_stopped(self, listener: socket.socket, resp_listener: socket.socket | None) -> None:
        """Serve; return when stopped."""
        async with self._following_certificate(), contextlib.AsyncExitStack() as running:
            try:
                await running.enter_async_context(self._application.router.lifespan_context(self._application))
            except Exception as error:
                raise CannotServe(f"the application did not start: {error}") from error
            servers = await self._accept(listener, resp_listener)
            await self._work_until_stopped()
            await self._shut_down(servers, running)

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
        self._is_forced = True

    async def _accept(self, listener: socket.socket, resp_listener: socket.socket | None) -> list[asyncio.Server]:
        """Accept connections."""
        make_http = partial(FastPathProtocol, self._application, self._connections, DirectPath(self._application))
        servers = [await self._accept_on(listener, make_http)]
        if resp_listener is not None:
            make_resp = partial(RespConnection, RespApi(self._application), self._connections)
            servers.append(await self._accept_on(resp_listener, make_resp))
        # Objects made so far live as long as the process: keep the collector from traversing them under load.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._on_started()
        return servers

    async def _accept_on(self, listener: socket.socket, make_protocol: Callable[[], Any]) -> asyncio.Server:
        if self._certificate is not None:
            make_protocol = partial(TlsHandshake, self._connections, self._certificate.context, make_protocol)
        return await asyncio.get_running_loop().create_server(make_protocol, sock=listener, backlog=BACKLOG)

    async def _work_until_stopped(self) -> None:
        """Once a second, update the Date header and close overdue connections."""
        while not self._stop_requested.is_set():
            self._connections.date_line = b"date: %b\r\n" % formatdate(usegmt=True).encode()
            self._connections.close_overdue()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), 1.0)

    async def _shut_down(self, servers: list[asyncio.Server], running: contextlib.AsyncExitStack) -> None:
        """Respond to waiting pops, give requests the drain timeout to finish, close the application."""
        self._connections.is_stopping = True
        for server in servers:
            server.close()
        for connection in list(self._connections.connected):
            connection.shutdown()
        # Not before the connections are told, so that the responses to waiting pops say `connection: close`.
        self._application.state.drain()
        try:
            async with asyncio.timeout(self._drain_timeout_s + CLOSING_S) as limit:
                await self._finish_requests()
                if self._is_forced:
                    limit.reschedule(asyncio.get_running_loop().time() + CLOSING_S)
                await running.aclose()
        except TimeoutError:
            _log.warning("the application did not close in time; its tasks are cancelled")
        except Exception:  # noqa: BLE001 (the process ends in any case)
            _log.exception("the application did not close cleanly")

    async def _finish_requests(self) -> None:
        """Wait until all connections are closed and all requests are finished; abort those that take too long."""
        connections = self._connections
        await asyncio.sleep(_SHUTDOWN_CHECK_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout_s):
                while (connections.connected or connections.tasks) and not self._is_forced:  # noqa: ASYNC110 (three events)
                    await asyncio.sleep(_SHUTDOWN_CHECK_S)
        if connections.tasks and not self._is_forced:
            _log.error("aborted %d requests that did not finish in time", len(connections.tasks))
        for task in list(connections.tasks):
            task.cancel()


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
