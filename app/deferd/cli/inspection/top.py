"""`deferd top`: a live view of the topics, or one snapshot without a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.live import Live

from deferd.cli.framework import error_messages, exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.options import connection_options, json_option
from deferd.cli.inspection.top_snapshot import SORTS, Snapshot, SnapshotReader, in_order
from deferd.cli.inspection.top_view import draw, topic_table
from deferd.contract.errors import DeferdError
from deferd.contract.timestamps import format_instant

_TERMINATED = 128 + signal.SIGTERM


@command("deferd top", "deferd top --url http://a:8000,http://b:8000 --sort ready", "deferd top --json | jq .")
@click.option(
    "--interval", type=values.timeout, default="1s", metavar="DURATION", help="time between updates; default 1s"
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="busy",
    help="what comes first; default busy: most put, finished and ready",
)
@json_option("print the topics once as JSON, and end")
@connection_options
def top(interval: float, sort: str, as_json: bool, connection: Connection) -> int:
    """Watch what needs a person, and the topics, until q or Ctrl-C; s changes the order. Without a terminal the topics
    are printed once. Rates come from the services at --url: behind a load balancer, name each replica.
    """
    if as_json or not sys.stdout.isatty():
        _print(asyncio.run(_read_with_rates(connection, interval)), connection, sort, as_json=as_json)
        return exit_codes.DONE
    try:
        return asyncio.run(_Screen(connection, interval, sort).watch())
    except KeyboardInterrupt:  # the usual way to leave it
        return exit_codes.DONE


async def _read_with_rates(connection: Connection, interval_s: float) -> Snapshot:
    """A snapshot with rates, which take two samples."""
    async with SnapshotReader(connection) as reader:
        await reader.read()
        await asyncio.sleep(interval_s)
        return await reader.read()


def _print(snapshot: Snapshot, connection: Connection, sort: str, *, as_json: bool) -> None:
    topics = in_order(snapshot.topics, sort)
    if as_json:
        output.json_line(
            {
                "at": format_instant(datetime.now(UTC)),
                "urls": connection.url,
                "silent": snapshot.silent,
                "unavailable": snapshot.unavailable.topics,
                "unreadable_shards": snapshot.unavailable.shards,
                "now": None if snapshot.now is None else snapshot.now.fields,
                "topics": [one.as_json() for one in topics],
            }
        )
    else:
        output.print_table(topic_table(topics, wide=True))
        for sentence in snapshot.unavailable.sentences():
            output.complain(sentence)


class _Screen:
    """The live view: one task reads snapshots, the other one draws and reads keys."""

    def __init__(self, connection: Connection, interval_s: float, sort: str) -> None:
        self._connection = connection
        self._interval_s = interval_s
        self._sort = sort
        self._snapshot: Snapshot | None = None
        self._error: str | None = None
        self._failing_since: datetime | None = None
        self._changed = asyncio.Event()
        self._exit_code = exit_codes.DONE

    async def watch(self) -> int:
        """Run until it is closed; returns the exit code."""
        drawing = asyncio.create_task(self._draw())

        def terminate() -> None:
            self._exit_code = _TERMINATED
            drawing.cancel()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, terminate)
        reading = asyncio.create_task(self._keep_reading())
        try:
            await asyncio.wait({drawing, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            drawing.cancel()
            reading.cancel()
            ended = await asyncio.gather(drawing, reading, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return self._exit_code

    async def _keep_reading(self) -> None:
        async with SnapshotReader(self._connection) as reader:
            while True:
                try:
                    self._snapshot = await reader.read()
                    self._error = self._failing_since = None
                except DeferdError as error:
                    self._failing_since = self._failing_since or datetime.now(UTC)
                    self._error = error_messages.sentence(error)
                self._changed.set()
                await asyncio.sleep(self._interval_s)

    async def _draw(self) -> None:
        console = Console(markup=False, highlight=False)
        with _pressed_keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                error = self._error
                if error is not None and self._failing_since is not None:
                    error = f"since {self._failing_since.strftime('%H:%M:%SZ')}; {error}"
                width, height = console.size
                live.update(
                    draw(
                        self._snapshot,
                        where=",".join(self._connection.url),
                        sort=self._sort,
                        width=width,
                        height=height,
                        error=error,
                        keys=f"q quits  s sorts by: {self._sort}",
                    ),
                    refresh=True,
                )
                if await self._key(keys) in {"q", "Q"}:
                    return

    async def _key(self, keys: asyncio.Queue[str]) -> str | None:
        """The next key, or None if there is something new to draw before it."""
        pressing = asyncio.ensure_future(keys.get())
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({pressing, changing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changing.cancel()
            if not pressing.done():
                pressing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await changing
        self._changed.clear()
        if not pressing.done() or pressing.cancelled():
            return None
        key = pressing.result()
        if key in {"s", "S"}:
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        return key


@contextlib.contextmanager
def _pressed_keys() -> Iterator[asyncio.Queue[str]]:
    """Read keys into the queue while the block runs, without Enter or echo; none if stdin is not a terminal."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield keys
        return
    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 64)
        if not data:  # the terminal is gone
            loop.remove_reader(descriptor)
        for key in data.decode(errors="replace"):
            keys.put_nowait(key)

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield keys
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
