"""No request of at most 1 MB holds the event loop of a service for long, and its work ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.held_loop import HeldLoop
from tests.acceptance.hostile_requests import (
    GROUPS,
    MOST_COUNTS,
    RARE,
    READS,
    Sent,
    call,
    count_ms,
    preview,
    send,
    windows,
)
from tests.acceptance.service_process import ServiceProcess

TRIES = 6
"""The least of them counts: other processes cost CPU time in the caches, and while the loop waits for a core, the CPU
time of the other threads counts as a hold."""

pytestmark = pytest.mark.slow(seconds=12)


class Service:
    def __init__(self, process: ServiceProcess, held: HeldLoop) -> None:
        self.process = process
        self.port = process.port
        self.held = held

    def cpu_s(self) -> float:
        """CPU time of the process, but for its store."""
        fields = Path(f"/proc/{self.process.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("held")
    held = HeldLoop(folder / "held")
    process = ServiceProcess(folder, module=("tests.acceptance.held_loop", str(folder / "held")))
    with process:
        process.wait_ready()
        yield Service(process, held)


async def hold_of(service: Service, group: list[Sent]) -> float:
    """The longest time for which a group of requests that are sent at once holds the loop."""
    service.held.longest_ms()
    await asyncio.gather(*(call(service.port, sent) for sent in group))
    await call(service.port, Sent("GET", "/healthz"))
    return service.held.longest_ms()


@pytest.mark.parametrize("name", [*GROUPS, *READS])
async def test_no_request_holds_the_loop_for_long(service: Service, name: str) -> None:
    group = (GROUPS | READS)[name]
    counts = []
    for _ in range(TRIES):
        yardstick_ms = count_ms()
        counts.append(await hold_of(service, group) / yardstick_ms)
        if counts[-1] <= MOST_COUNTS:
            return
    pytest.fail(f"held for {counts} times the yardstick, which in the end took {yardstick_ms:.1f} ms")


async def test_work_ends_when_its_client_leaves(service: Service) -> None:
    long = [await send(service.port, preview(RARE, 900 + number)) for number in range(20)]
    for _ in range(3):  # meanwhile they arrive
        await call(service.port, Sent("GET", "/healthz"))
    before_s = service.cpu_s()
    for _, writer in long:
        writer.transport.abort()
    short = Sent("POST", "/schedules/preview?count=1", {"topic": "t", "cron": RARE, "window": windows(960)})
    assert await call(service.port, short) == 200
    assert service.cpu_s() - before_s < 0.5
