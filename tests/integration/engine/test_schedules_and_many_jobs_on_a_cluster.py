"""Schedules, calls on many jobs and the tag index where the shards are on several nodes of a Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import ScheduleNotFound
from deferd.contract.model import JobState, PutJob
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.engine import Engine
from deferd.engine.scheduler import ScheduleFilter
from deferd.engine.script_arguments import NO_BOUNDS
from deferd.engine.topics import JobFilter
from deferd.store.connection import connect
from tests.integration.engine.schedule_driver import anyone, definition
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_servers import ClusterSet

SHARDS = 6
NAMES = [f"s{number:02}" for number in range(18)]
TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    with ClusterSet(Path(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture
async def engine(cluster: ClusterSet) -> AsyncIterator[Engine]:
    for node in cluster.masters:
        node.command("FLUSHALL")
    store = await connect(cluster.url, timeout_s=5)
    engine = Engine(store, shards=SHARDS, movable_clock=True)
    yield engine
    await engine.close()
    await store.close()


@pytest.mark.slow
async def test_schedules_of_all_nodes_run_move_and_are_listed(engine: Engine) -> None:
    schedules = engine.schedules
    for number, name in enumerate(NAMES):
        await schedules.put(name, definition(topic=f"t{number}", every=60), NO_BOUNDS, anyone)
    assert {(await schedules.get(name)).shard for name in NAMES} == set(range(SHARDS))
    listed, cursor = [], None
    while True:
        page, cursor = await schedules.page(ScheduleFilter(), cursor, 5, with_jobs=True)
        listed += [schedule.name for schedule in page]
        if cursor is None:
            break
    assert sorted(listed) == NAMES
    for passed_ms in (150_000, 10):  # what is made up for is due a millisecond later
        for shard, timer in enumerate(engine.timers):
            await engine._scripts.command("INCRBY", f"deferd:{{{shard}}}:clock", passed_ms)
            while await timer.run_once() == 0:
                continue
    for number, name in enumerate(NAMES):
        assert (await schedules.get(name)).runs == 1
        assert (await engine.topics.get(f"t{number}")).counts[JobState.DELAYED] >= 1
    assert (await engine.consistency.audit_store()).clean
    for number, name in enumerate(NAMES):
        moved, created = await schedules.put(
            name, definition(topic=f"t{number + 1}", every=90), NO_BOUNDS, lambda _: None
        )
        assert (created, moved.topic, moved.waiting, moved.runs) == (False, f"t{number + 1}", 1, 1)
    assert (await engine.consistency.audit_store()).clean
    for name in NAMES:
        await schedules.delete(name, anyone)
        with pytest.raises(ScheduleNotFound):
            await schedules.get(name)


@pytest.mark.slow
async def test_jobs_of_all_nodes_are_moved_and_cancelled(engine: Engine, cluster: ClusterSet) -> None:
    for topic in TOPICS:
        jobs = [PutJob(topic=topic, id=f"j{n}", delay=3600, tags=["x", f"t-{n}"]) for n in range(5)]
        assert {result.status for result in await engine.puts.put_many(jobs)} == {201}
    assert [len(node.command("KEYS", "deferd:*:tag/x")) > 0 for node in cluster.masters] == [True] * 3
    before = (await engine.queue.get("t3", "j4")).due_at_ms
    by_state = {"select": {"state": "delayed", "topics": ["t*"]}, "by": 60, "request_id": "r"}
    expected = BulkOutcome(60, 60, {JobState.DELAYED: 60}, True)
    for _ in range(2):
        assert await engine.bulk.reschedule(RescheduleSelected.model_validate(by_state)) == expected
    by_tag = {"select": {"tag": "x"}, "by": 60}
    assert await engine.bulk.reschedule(RescheduleSelected.model_validate(by_tag)) == expected
    assert (await engine.queue.get("t3", "j4")).due_at_ms - before == 120_000
    found, _, _ = await engine.topics.search("t3", JobFilter(tag="t-2"))
    assert [job.id for job in found] == ["j2"]
    assert await purge_jobs(engine, "t3", tag="t-2") == 1
    assert (await engine.consistency.audit_store()).clean
    cancelled = await engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "x"}}))
    assert cancelled == BulkOutcome(59, 59, {JobState.DELAYED: 59}, True)
    assert [node.command("KEYS", "deferd:*:tag/*") for node in cluster.masters] == [[]] * 3
