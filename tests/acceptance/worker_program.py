"""A worker as a program of its own, for tests that send it signals: `python -m tests.acceptance.worker_program ...`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from deferd import Context, Worker


def main() -> int:
    """Work on `TOPIC.async`, `TOPIC.plain` and `TOPIC.deaf`, whose jobs take as many seconds as their body says.

    Each handler writes a line when it begins and when it ends. Handlers of the last do not end when they are told to.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("--grace", type=float, default=30)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--without-signal-handlers", action="store_true", help="as the event loops of Windows")
    options = parser.parse_args()
    if options.without_signal_handlers:
        asyncio.new_event_loop = LoopWithoutSignalHandlers
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    worker = Worker(options.url, grace=options.grace, concurrency=options.concurrency)

    @worker.handler(f"{options.topic}.async")
    async def take_time(seconds: float, context: Context) -> str:
        say(f"began {context.job.id}")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            say(f"cancelled {context.job.id}")
            raise
        say(f"ended {context.job.id}")
        return "done"

    @worker.handler(f"{options.topic}.plain")
    def take_time_in_thread(seconds: float, context: Context) -> str:
        say(f"began {context.job.id}")
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            if context.cancelled:
                say(f"cancelled {context.job.id}")
                break
            time.sleep(0.01)
        else:
            say(f"ended {context.job.id}")
        return "done"

    @worker.handler(f"{options.topic}.deaf")
    async def take_time_regardless(seconds: float, context: Context) -> None:
        say(f"began {context.job.id}")
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left_s)
            except asyncio.CancelledError:
                say(f"deaf {context.job.id}")

    @worker.handler(f"{options.topic}.deaf-plain")
    def take_time_regardless_in_thread(seconds: float, context: Context) -> None:
        say(f"began {context.job.id}")
        time.sleep(seconds)

    return worker.run()


class LoopWithoutSignalHandlers(asyncio.SelectorEventLoop):
    """What asyncio has on Windows, in this respect."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> NoReturn:
        raise NotImplementedError

    def remove_signal_handler(self, sig: int) -> NoReturn:
        raise NotImplementedError


def say(line: str) -> None:
    """To the test; in one piece, since threads say something at the same time."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
