"""Schedules where the shards are on several nodes of a Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deferd.contract.errors import ScheduleNotFound
from deferd.contract.model import JobState
from deferd.engine.engine import Engine
from deferd.engine.schedules.schedules import ScheduleFilter
from deferd.engine.script_arguments import NO_BOUNDS
from deferd.store.connection import connect
from tests.integration.engine.schedule_driver import anyone, definition
from tests.integration.store.store_servers import ClusterSet

SHARDS = 6
NAMES = [f"s{number:02}" for number in range(18)]


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
