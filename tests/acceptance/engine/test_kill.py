"""SIGKILL of the service and its store at random moments under load: no acknowledged job is lost, and none is
delivered twice during a lease."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from deferd import AsyncClient, DeferdError, Delivery, JobState
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.faults.rollout import Release
from tests.integration.store.store_servers import StoreServer
from tests.previous_release import needs_history, unpack


async def has_begun_to_reschedule(url: str) -> None:
    """Wait until this service, which was just started, has rescheduled its first jobs."""
    async with asyncio.timeout(20), httpx.AsyncClient(base_url=url, verify=NO_TLS) as client:
        while '"bulk_reschedule"' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0)


pytestmark = pytest.mark.slow(seconds=60)

TOPIC = "orders.close"
KILLS = 8
TTR_S = 3.0
DRAIN_S = 60.0


@dataclass
class History:
    """What the clients know from the responses."""

    put: set[str] = field(default_factory=set)
    cancelled: dict[str, str] = field(default_factory=dict)
    maybe_cancelled: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    leases: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    delivered_after_finish: list[str] = field(default_factory=list)
    delivered_after_cancel: list[str] = field(default_factory=list)
    responses: Counter[str] = field(default_factory=Counter)


async def send(
    client: httpx.AsyncClient, history: History, method: str, path: str, **options: object
) -> httpx.Response | None:
    """Send one request once; None if there is no response."""
    try:
        response = await client.request(method, path, **options)  # type: ignore[arg-type]
    except httpx.HTTPError as exc:
        history.responses[f"{method} {type(exc).__name__}"] += 1
        await asyncio.sleep(0.05)
        return None
    history.responses[f"{method} {response.status_code}"] += 1
    if response.status_code == 503:
        await asyncio.sleep(0.05)
    return response


async def produce(client: httpx.AsyncClient, history: History, name: str, running: Callable[[], bool]) -> None:
    number = 0
    while running():
        number += 1
        job_id = f"{name}-{number}"
        delay = random.choice([0, 0, 0.2, 1.0])
        job = {"topic": TOPIC, "id": job_id, "delay": delay, "ttr": TTR_S, "body": {"n": number}}
        response = await send(client, history, "POST", "/jobs", json=job)
        if response is not None and response.status_code == 201:
            history.put.add(job_id)
            if number % 10 == 0:
                history.maybe_cancelled.add(job_id)  # until a response shows the state
                cancelled = await send(client, history, "DELETE", f"/jobs/{TOPIC}/{job_id}")
                if cancelled is not None and cancelled.status_code == 200:
                    history.cancelled[job_id] = cancelled.json()["was"]
                elif cancelled is not None and cancelled.status_code == 404:
                    history.maybe_cancelled.discard(job_id)  # it was delivered and finished before the cancel
        await asyncio.sleep(0.01)


async def consume(client: httpx.AsyncClient, history: History, running: Callable[[], bool]) -> None:
    while running():
        response = await send(client, history, "GET", f"/topics/{TOPIC}/pop?wait=1&count=5")
        if response is None or response.status_code != 200:
            continue
        for job in response.json()["jobs"]:
            lease_end = datetime.fromisoformat(job["reserved_until"]).timestamp()
            history.leases[job["id"]].append((lease_end - TTR_S, lease_end))
            if job["id"] in history.finished:
                history.delivered_after_finish.append(job["id"])
            if history.cancelled.get(job["id"], "reserved") != "reserved":
                history.delivered_after_cancel.append(job["id"])
            if random.random() < 0.03:
                continue  # this consumer forgets the job: it must be delivered again after its lease
            finish = {"receipt": job["receipt"]}
            done = await send(client, history, "POST", f"/jobs/{TOPIC}/{job['id']}/finish", json=finish)
            if done is not None and done.status_code == 200:
                history.finished.add(job["id"])


async def inject_kills(service: ServiceProcess, kills: Counter[str], count: int = KILLS) -> None:
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.5, 1.5))
        victim = random.choice(["service", "store", "both"])
        kills[victim] += 1
        if victim in {"store", "both"}:
            service.kill_store()
        if victim in {"service", "both"}:
            service.kill()
            await asyncio.to_thread(service.start)
        await asyncio.to_thread(service.wait_ready)


async def test_no_acknowledged_job_is_lost_and_none_is_delivered_twice_at_a_time(tmp_path: Path) -> None:
    history, kills = History(), Counter[str]()
    with ServiceProcess(tmp_path, preloaded=True) as service:
        killer = asyncio.create_task(inject_kills(service, kills))

        def under_load() -> bool:
            return not killer.done()

        def undelivered() -> bool:
            return not history.put <= history.maybe_cancelled | history.leases.keys()

        async with httpx.AsyncClient(base_url=service.url, timeout=5, verify=NO_TLS) as client:
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(produce(client, history, f"p{number}", under_load))
                    group.create_task(consume(client, history, under_load))
            await killer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S), asyncio.TaskGroup() as group:
                    for _ in range(4):
                        group.create_task(consume(client, history, undelivered))
            left = (await client.get(f"/topics/{TOPIC}")).json()["counts"]

    lost = history.put - history.leases.keys() - history.maybe_cancelled
    overlaps = [
        job_id
        for job_id, leases in history.leases.items()
        for (_, end), (start, _) in zip(sorted(leases), sorted(leases)[1:], strict=False)
        if start < end - 0.002  # both ends are rounded to the millisecond
    ]
    again = sum(len(leases) - 1 for leases in history.leases.values())
    print(
        f"\nput {len(history.put)}, cancelled {len(history.cancelled)}, delivered {len(history.leases)}, "
        f"finished {len(history.finished)}, delivered again {again}, kills {dict(kills)}, left {left}, "
        f"responses {dict(history.responses)}"
    )
    assert lost == set()
    assert overlaps == []
    assert history.delivered_after_finish == []
    assert history.delivered_after_cancel == []
    assert sum(kills.values()) == KILLS
    assert len(history.put) >= 10 * KILLS


# Batches

COMPLETED = "orders.closed"


async def put_batches(client: AsyncClient, sealed: set[str], running: Callable[[], bool]) -> None:
    while running():
        name = f"batch-{len(sealed)}"
        await client.set_batch(name, on_end=COMPLETED)
        for number in range(3):
            # It is kept, so that a put whose response was lost finds it when it is repeated.
            await client.put(TOPIC, id=f"{name}-{number}", batch=name, retain=600, ttr=TTR_S, on_conflict="keep")
        await client.set_batch(name, seal=True)
        sealed.add(name)


async def finish_all(
    client: AsyncClient, topic: str, done: Callable[[Delivery], None], running: Callable[[], bool]
) -> None:
    while running():
        try:
            for job in await client.pop(topic, count=3, wait=0.2):
                done(job)
                await client.finish(job)
        except DeferdError:
            await asyncio.sleep(0.05)  # of a delivery whose lease has ended meanwhile, or that was finished before


async def test_each_batch_puts_its_job_once(tmp_path: Path) -> None:
    sealed: set[str] = set()
    puts: dict[str, set[tuple[str, datetime]]] = defaultdict(set)
    wrong: list[Any] = []

    def note(job: Delivery) -> None:
        puts[job.body["batch"]].add((job.id, job.created_at))  # a redelivery has the same
        if job.body != {"batch": job.body["batch"], "finished": 3, "dead": 0, "cancelled": 0}:
            wrong.append(job.body)

    kills = Counter[str]()
    with ServiceProcess(tmp_path, preloaded=True) as service:
        killer = asyncio.create_task(inject_kills(service, kills, 4))
        async with AsyncClient(service.url, retry_for=DRAIN_S) as client:
            async with asyncio.timeout(2 * DRAIN_S), asyncio.TaskGroup() as group:
                producer = group.create_task(put_batches(client, sealed, lambda: not killer.done()))

                def is_not_over() -> bool:
                    return not (producer.done() and sealed <= puts.keys())

                for _ in range(3):
                    group.create_task(finish_all(client, TOPIC, lambda _: None, is_not_over))
                group.create_task(finish_all(client, COMPLETED, note, is_not_over))
            await killer
            batches = {batch.name: batch async for batch in client.batches()}
    print(f"\n{len(sealed)} batches, kills {dict(kills)}")
    assert wrong == []
    assert [name for name in sealed if len(puts[name]) != 1] == []
    assert [name for name in sealed if batches[name].completed_at is None] == []
    assert len(sealed) > 10


# A call on many jobs

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


# Tasks

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
        before = await jobs_of(client) if kind == "reschedule" else {"j0": await client.get(TOPIC, "j0")}
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
