"""Handlers that fork: neither the worker nor its connections are those of the child."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from deferd import AsyncClient
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.test_worker_stop import WINDOWS
from tests.acceptance.worker.worker_process import WorkerProcess
from tests.acceptance.worker.worker_runs import in_state


@pytest.mark.parametrize(("kind", "flags"), [("forks", WINDOWS), ("forks-plain", ())], ids=["windows", "unix"])
async def test_a_handler_may_fork(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, kind: str, flags: tuple[str, ...]
) -> None:
    name, codes = f"{topic}.{kind}", {"terminate": -signal.SIGTERM, "return": 0, "raise": 7}
    for way in codes:
        await client.put(name, way, id=way, retain=60, max_attempts=1)
    with WorkerProcess(shared_service.url, topic, *flags, "--concurrency", "1") as worker:
        for way, code in codes.items():
            finished = await in_state(client, name, way, "finished")
            assert (way, finished.result, finished.attempts) == (way, code, 1)
        worker.send(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait) == 0
    assert len([line for line in worker.lines if "stopping" in line]) == 1


async def test_a_child_that_outlives_its_worker_gets_no_jobs(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    name = f"{topic}.forks-plain"
    await client.put(name, "leave", id="a", retain=60)
    with WorkerProcess(shared_service.url, topic) as worker:
        child = (await in_state(client, name, "a", "finished")).result
        assert isinstance(child, int)
        try:
            worker.send(signal.SIGKILL)
            await asyncio.to_thread(worker.process.wait)
            await asyncio.to_thread(shared_service.wait_for_waiting_pops, 0)  # its pop has ended with it
            await client.put(name, id="b", ttr=3600)
            assert [job.id for job in await client.pop(name, wait=20)] == ["b"]
        finally:
            os.kill(child, signal.SIGKILL)
