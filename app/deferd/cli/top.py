"""`top`: a live view of the topics, or one look at them where there is no terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live

from deferd.cli import error_messages, exit_codes, output
from deferd.cli.connection import Connection, read_connection
from deferd.cli.keyboard import pressed_keys
from deferd.cli.top_snapshot import SORTS, Look, Looker, in_order
from deferd.cli.top_view import draw, topic_table
from deferd.contract.errors import DeferdError

_TERMINATED = 128 + signal.SIGTERM
_UNLIMITED_WIDTH = 100_000


def top(given: argparse.Namespace) -> int:
    """Watch until q, Ctrl-C or SIGTERM; or print one look."""
    connection = read_connection(vars(given))
    if given.json or not sys.stdout.isatty():
        look = asyncio.run(_look_twice(connection, given.interval))
        _print(look, connection, given)
        return exit_codes.DONE
    try:
        return asyncio.run(_Screen(connection, given).watch())
    except KeyboardInterrupt:  # how one leaves it
        return exit_codes.DONE


async def _look_twice(connection: Connection, interval_s: float) -> Look:
    """A look that knows the rates: for them it takes two."""
    async with Looker(connection) as looker:
        await looker.look()
        await asyncio.sleep(interval_s)
        return await looker.look()


def _print(look: Look, connection: Connection, given: argparse.Namespace) -> None:
    topics = in_order(look.topics, given.sort)
    if given.json:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        output.json_line(
            {
                "at": at,
                "urls": connection.urls,
                "silent": look.silent,
                "unavailable": look.left_out.topics,
                "unreadable_shards": look.left_out.shards,
                "topics": [one.as_json() for one in topics],
            }
        )
    else:
        console = Console(markup=False, highlight=False, width=_UNLIMITED_WIDTH)
        with console.capture() as shown:
            console.print(topic_table(topics, wide=True))
        sys.stdout.writelines(line.rstrip() + "\n" for line in shown.get().splitlines())
        for sentence in look.left_out.sentences():
            output.complain(sentence)


class _Screen:
    """The live view: one task looks, the other one draws and listens to the keys."""

    def __init__(self, connection: Connection, given: argparse.Namespace) -> None:
        self._connection = connection
        self._interval_s: float = given.interval
        self._sort: str = given.sort
        self._look: Look | None = None
        self._away: str | None = None
        self._away_since: datetime | None = None
        self._changed = asyncio.Event()
        self._exit_code = exit_codes.DONE

    async def watch(self) -> int:
        """Until it is left; returns the exit code."""
        drawing = asyncio.create_task(self._draw())

        def terminate() -> None:
            self._exit_code = _TERMINATED
            drawing.cancel()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, terminate)
        looking = asyncio.create_task(self._keep_looking())
        try:
            await asyncio.wait({drawing, looking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            drawing.cancel()
            looking.cancel()
            ended = await asyncio.gather(drawing, looking, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return self._exit_code

    async def _keep_looking(self) -> None:
        async with Looker(self._connection) as looker:
            while True:
                try:
                    self._look = await looker.look()
                    self._away = self._away_since = None
                except DeferdError as error:
                    self._away_since = self._away_since or datetime.now(UTC)
                    self._away = error_messages.sentence(error)
                self._changed.set()
                await asyncio.sleep(self._interval_s)

    async def _draw(self) -> None:
        console = Console(markup=False, highlight=False)
        with pressed_keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                away = self._away
                if away is not None and self._away_since is not None:
                    away = f"since {self._away_since.strftime('%H:%M:%SZ')}; {away}"
                width, height = console.size
                live.update(
                    draw(
                        self._look,
                        where=",".join(self._connection.urls),
                        sort=self._sort,
                        width=width,
                        height=height,
                        away=away,
                        keys=f"q quits  s sorts by: {self._sort}",
                    ),
                    refresh=True,
                )
                if await self._key(keys) in {"q", "Q"}:
                    return

    async def _key(self, keys: asyncio.Queue[str]) -> str | None:
        """The next key, or None when there is something new to draw before it."""
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
