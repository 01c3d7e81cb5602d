"""``python -m deferd.server.shelf_process``: the process that owns the shelf, started by `deferd.server.shelf_keeper`.

The first line of standard input is its configuration. The end of standard input is the end of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import uvloop
from msgspec import json

from deferd.server import logs
from deferd.shelf.calls import ShelfConfiguration
from deferd.shelf.process import ShelfProcess
from deferd.stop_signals import handle_in_loop, write_in_background

_INPUT_FD = 0
NICENESS = 10
"""Added to the service's. Else its bursts of a few milliseconds hold up service and store where these need both cores:
the p99 lateness of other jobs was a sixth higher. Beside what is always busy it still gets a tenth of what each of
these gets.
"""


def main() -> int:
    """Serve until SIGTERM, the end of the service, or another one's claim."""
    os.umask(0o077)
    with contextlib.suppress(OSError):  # where a sandbox forbids it
        os.nice(NICENESS)  # of this thread, and of those that it starts
    write_in_background()
    line = sys.stdin.buffer.readline()
    if not line:
        return 1  # the service died while this process started
    configuration = json.decode(line, type=ShelfConfiguration)
    logs.configure(configuration.log_format, configuration.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(configuration))
    return 0


async def _run(configuration: ShelfConfiguration) -> None:
    process = ShelfProcess(configuration)
    loop = asyncio.get_running_loop()
    handle_in_loop(loop, signal.SIGTERM, process.end)

    def on_end() -> None:
        loop.remove_reader(_INPUT_FD)
        process.orphan()

    loop.add_reader(_INPUT_FD, on_end)  # nothing follows the first line: only its end makes it readable
    await process.run()


if __name__ == "__main__":
    sys.exit(main())
