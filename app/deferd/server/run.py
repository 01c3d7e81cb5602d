"""Entry point of `deferd serve`: start, serve until a stop signal, release everything in order.

Start: data directory, listening socket, store, store check, application. A second service on the same directory or
port is refused before anything is started. Stop: waiting pops get an empty response, requests in progress finish, then
the application closes, then the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import uvloop

from deferd.api.auth.key_source import key_source
from deferd.server import logs
from deferd.server.http_server import serve_application
from deferd.server.serve_context import open_serve_context
from deferd.server.startup_errors import CannotServe, log_startup_error
from deferd.server.supervisor import supervise
from deferd.settings import Settings, flag
from deferd.stop_signals import StopSignals
from deferd.store.preflight import StoreRefused

_log = logging.getLogger("deferd")


def run(settings: Settings, *, version: str, warnings: Sequence[str] = ()) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP and return the exit code: 0, or 1 with one log line if it cannot serve.

    A second SIGINT aborts the requests in progress; the code then is 1. `warnings` are logged at the start.
    """
    logs.configure(settings.log_format, settings.log_level)
    for sentence in warnings:
        _log.warning("%s", sentence)
    if settings.test_clock:
        _log.warning("%s: anyone who can reach this service can move its clock; for tests only", flag("test_clock"))
    if settings.insecure and key_source(settings) is None:
        _log.warning("%s: no key is required, so anyone who can reach this service can do everything", flag("insecure"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, version))
    except (StoreRefused, CannotServe) as exc:
        log_startup_error(exc)
        return 1


async def _run(settings: Settings, version: str) -> int:
    signals = StopSignals()
    try:
        async with open_serve_context(settings, version) as context:
            if settings.workers == 1:
                await serve_application(
                    settings,
                    context.store_url,
                    context.listener,
                    signals,
                    context.announce,
                    resp_listener=context.resp_listener,
                    shelf_socket=context.shelf_socket,
                )
            else:
                await supervise(settings, context, signals)
    except asyncio.CancelledError:
        if not signals.stopping:
            raise
    if signals.forced:
        return 1
    _log.info("stopped")
    return 0
