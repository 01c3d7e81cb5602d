"""SIGKILL of the service in the middle of a reschedule: the repeated call moves the rest, and no job twice.

Jobs are selected by their state, where moved ones land among the others. For a tag, see a call that failed in the
middle in tests/integration/engine/test_bulk_actions.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient, DeferdError
from tests.acceptance.engine.rescheduling import has_begun_to_reschedule
from tests.acceptance.service_process import ServiceProcess

pytestmark = pytest.mark.slow

TOPIC = "orders.close"
JOBS = 10_000
BY = timedelta(hours=1)


async def due_times(client: AsyncClient) -> dict[str, datetime]:
    return {job.id: job.due_at async for job in client.jobs(TOPIC)}


async def test_a_reschedule_that_is_killed_is_continued(tmp_path: Path) -> None:
    call: dict[str, Any] = {"state": "delayed", "topics": [TOPIC], "by": BY, "request_id": "r"}
    with ServiceProcess(tmp_path, preloaded=True) as service:
        service.wait_ready()
        jobs = [{"topic": TOPIC, "id": f"j{n}", "delay": 86_400 + n % 100} for n in range(JOBS)]
        async with AsyncClient(service.url, retry_for=0) as client:
            assert {result.status async for result in client.put_many(jobs)} == {201}
            before = await due_times(client)
            moving = asyncio.create_task(client.reschedule_all(**call))
            await has_begun_to_reschedule(service.url)
            service.kill()
            with contextlib.suppress(DeferdError):
                await moving
        service.start()
        service.wait_ready()
        async with AsyncClient(service.url, timeout=60) as client:
            moved = [job_id for job_id, due in (await due_times(client)).items() if due != before[job_id]]
            assert 0 < len(moved) < JOBS, "the kill came too early or too late for this test"
            done = await client.reschedule_all(**call)
            assert (done.matched, done.done, done.complete) == (JOBS, JOBS, True)
            assert {due - before[job_id] for job_id, due in (await due_times(client)).items()} == {BY}
            assert (await client.audit(TOPIC)).clean
            assert (await client.audit_store()).clean
