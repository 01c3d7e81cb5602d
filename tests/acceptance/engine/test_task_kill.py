"""SIGKILL of a service in the middle of a task: another one goes on, and acts on each selected job exactly once.

Also when one of the two is of the previous release, as in an upgrade or a rollback.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient, JobState
from tests.acceptance.engine.rescheduling import has_begun_to_reschedule
from tests.acceptance.service_process import ServiceProcess
from tests.faults.rollout import Release
from tests.integration.store.store_servers import StoreServer
from tests.previous_release import needs_history, unpack

pytestmark = pytest.mark.slow

TOPIC = "orders.close"
JOBS = 10_000
BY = timedelta(hours=1)
GOES_ON_S = 30.0
"""The lease of 5 s, the next look of another process, the work, and slack for a loaded machine."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("previous"))


@pytest.fixture(
    params=[
        (Release.PRESENT, Release.PRESENT),
        pytest.param((Release.PREVIOUS, Release.PRESENT), marks=needs_history),
        pytest.param((Release.PRESENT, Release.PREVIOUS), marks=needs_history),
    ],
    ids=["present", "upgrade", "rollback"],
)
def services(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """The one that is killed, and the one that goes on."""
    with StoreServer(tmp_path / "store") as store, contextlib.ExitStack() as stack:
        flags = ("--redis-url", store.mark_used().url)
        found = [ServiceProcess(tmp_path / name, *flags, preloaded=True) for name in ("a", "b")]
        for service, release in zip(found, request.param, strict=True):
            if release is Release.PREVIOUS:
                service.release = request.getfixturevalue("previous")
            stack.enter_context(service).wait_ready()
        first, second = found
        yield first, second


async def jobs_of(client: AsyncClient) -> dict[str, Any]:
    return {job.id: job async for job in client.jobs(TOPIC)}


async def started(client: AsyncClient, kind: str) -> Any:
    if kind == "cancel":
        return await client.start_cancel_all(tag="x")
    if kind == "reschedule":
        return await client.start_reschedule_all(state="delayed", topics=[TOPIC], by=BY)
    if kind == "redrive":
        [group] = (await client.dead_errors()).groups
        return await client.start_redrive(TOPIC, reason=group.reason, error=group.error or "")
    return await client.start_purge(TOPIC, state="delayed")


async def begun(client: AsyncClient, at_work: ServiceProcess, kind: str) -> None:
    """Wait until the task has changed some jobs."""
    if kind == "reschedule":  # which leaves the counts as they are
        await has_begun_to_reschedule(at_work.url)
        return
    state = "dead" if kind == "redrive" else "delayed"
    while (await client.topic(TOPIC)).counts[state] == JOBS:
        pass


@pytest.mark.parametrize("kind", ["cancel", "reschedule", "redrive", "purge"])
async def test_another_process_goes_on(services: tuple[ServiceProcess, ServiceProcess], kind: str) -> None:
    first, second = services
    options: dict[str, Any] = {"ttr": 1, "max_attempts": 1} if kind == "redrive" else {"delay": 86_400}
    jobs = [{"topic": TOPIC, "id": f"j{n}", "tags": ["x"], **options} for n in range(JOBS)]
    async with AsyncClient(second.url, timeout=60) as client:
        assert {result.status async for result in client.put_many(jobs)} == {201}
        while kind == "redrive" and (await client.topic(TOPIC)).counts["dead"] < JOBS:
            await client.pop(TOPIC, count=1000, wait=0.1)
        before = await jobs_of(client)
        await asyncio.sleep(0.01)
        async with AsyncClient(first.url, retry_for=0) as other:
            task = await started(other, kind)
        await begun(client, first, kind)
        first.kill()
        killed_at_s = time.monotonic()
        later = [{"topic": TOPIC, "id": f"later{n}", "tags": ["x"], "delay": 86_400} for n in range(100)]
        assert {result.status async for result in client.put_many(later)} == {201}
        left = await client.task(task.id)
        assert left.state == "running", "the kill came too late for this test"
        while left.state == "running":
            await asyncio.sleep(0.2)
            left = await client.task(task.id)
        assert time.monotonic() - killed_at_s < GOES_ON_S
        assert (left.state, left.done, left.total) == ("done", JOBS, JOBS)
        after = await jobs_of(client)
        late = {name: after.pop(name) for name in list(after) if name.startswith("later")}
        assert len(late) == 100
        assert {(job.state, job.due_at > before["j0"].due_at + BY) for job in late.values()} == {
            (JobState.DELAYED, kind == "redrive")
        }
        if kind in {"cancel", "purge"}:
            assert after == {}
        elif kind == "redrive":
            assert {job.state for job in after.values()} == {JobState.READY}
        else:
            assert {job.due_at - before[name].due_at for name, job in after.items()} == {BY}
        assert (await client.audit(TOPIC)).clean
        assert (await client.audit_store()).clean
        [change] = [one async for one in client.activity()]
        assert (change.subject, change.count) == (task.id, JOBS)
