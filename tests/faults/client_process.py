"""A client process: `python -m tests.faults.client_process FILE SEED BEGAN_S GROUPS URL...`. Ends at SIGTERM.

GROUPS is empty when the services do not know groups and priorities.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.faults.clients import Clients
from tests.faults.drawn_puts import TOPICS
from tests.faults.history import Recorder

PRODUCERS = 3
INTERFERERS = 1
CONSUMERS_A_TOPIC = 2
SET_USERS = 2
PUT_PAUSE_S = 0.07
SET_PAUSE_S = 0.1
INTERFERE_PAUSE_S = 0.04


async def work(file: str, seed: str, began_s: str, groups: str, *urls: str) -> None:
    """Run all clients of this process until SIGTERM."""
    name = Path(file).stem
    recorder = Recorder(Path(file))
    clients = Clients(name, f"{seed} {name}", float(began_s), urls, recorder, has_groups=bool(groups))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, clients.stopping.set)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(PRODUCERS):
            tasks.create_task(clients.produce(PUT_PAUSE_S))
        for _ in range(INTERFERERS):
            tasks.create_task(clients.interfere(INTERFERE_PAUSE_S))
        for _ in range(SET_USERS):
            tasks.create_task(clients.use_set(SET_PAUSE_S))
        tasks.create_task(clients.take_ends())
        for topic in TOPICS * CONSUMERS_A_TOPIC:
            tasks.create_task(clients.consume(topic))
    await clients.close()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
