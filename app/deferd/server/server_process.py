"""``python -m deferd.server.server_process FD``: one server process, started by the supervisor.

FD is its end of the channel to the supervisor; see `deferd.server.supervisor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import sys
from pathlib import Path

import uvloop

from deferd.server import logs
from deferd.server.credential_files import LastGoodCredentials
from deferd.server.http_server import serve_application
from deferd.server.startup_errors import CannotServe, log_startup_error
from deferd.settings import Settings
from deferd.stop_signals import StopSignals, write_in_background
from deferd.store.preflight import StoreRefused

SERVING = b"serving\n"
"""What a server process sends once it serves."""


def run_server_process(channel_fd: int) -> int:
    """Serve until stopped or until the supervisor dies; the exit code: 0, or 1 when it cannot serve."""
    write_in_background()
    with socket.socket(fileno=channel_fd) as channel, channel.makefile("rb") as lines:
        first_line = lines.readline()
        if not first_line:
            return 1  # the supervisor died while this process started
        configuration = json.loads(first_line)
        settings = Settings(**configuration["settings"])
        logs.configure(settings.log_format, settings.log_level)
        metrics_lock = os.open(configuration["metrics_dir"], os.O_RDONLY)
        fcntl.flock(metrics_lock, fcntl.LOCK_SH)
        try:
            with (
                contextlib.ExitStack() as stack,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                listeners = [stack.enter_context(socket.socket(fileno=fd)) for fd in configuration["listeners"]]
                last_good = LastGoodCredentials(**configuration["last_good"])
                shelf_socket = None if configuration["shelf_socket"] is None else Path(configuration["shelf_socket"])
                store_url = configuration["store_url"]
                serving = _serve(
                    settings,
                    store_url,
                    listeners,
                    channel,
                    last_good,
                    shelf_socket=shelf_socket,
                    runs_relays=configuration["runs_relays"],
                )
                orphaned = runner.run(serving)
        except (StoreRefused, CannotServe) as exc:
            log_startup_error(exc)
            return 1
        if orphaned:
            _remove_if_unused(configuration["metrics_dir"], metrics_lock)
    return 0


def _remove_if_unused(metrics_dir: str, metrics_lock: int) -> None:
    """Remove the metrics directory unless another server process still writes there, which then holds a shared lock."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(metrics_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(metrics_dir, ignore_errors=True)


async def _serve(
    settings: Settings,
    store_url: str,
    listeners: list[socket.socket],
    channel: socket.socket,
    last_good: LastGoodCredentials,
    *,
    shelf_socket: Path | None,
    runs_relays: bool,
) -> bool:
    """Serve until stopped; True when the reason was the end of the supervisor."""
    signals = StopSignals(log_level=logging.DEBUG)  # the supervisor has logged the stop
    channel.setblocking(False)
    loop = asyncio.get_running_loop()
    orphaned = False

    def on_channel_end() -> None:
        nonlocal orphaned
        orphaned = True
        loop.remove_reader(channel)
        signals.stop("the supervisor is gone")

    def report_serving() -> None:
        with contextlib.suppress(OSError):
            channel.send(SERVING)

    loop.add_reader(channel, on_channel_end)  # nothing follows the first line: only its end makes it readable
    try:
        await serve_application(
            settings,
            store_url,
            listeners[0],
            signals,
            report_serving,
            last_good=last_good,
            resp_listener=listeners[1] if len(listeners) > 1 else None,
            shelf_socket=shelf_socket,
            runs_relays=runs_relays,
            owns_ports=False,
        )
    except asyncio.CancelledError:
        if not signals.stopping:
            raise
    finally:
        loop.remove_reader(channel)
    return orphaned


if __name__ == "__main__":
    sys.exit(run_server_process(int(sys.argv[1])))
