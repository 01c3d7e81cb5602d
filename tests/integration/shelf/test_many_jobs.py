"""Calls on many jobs, some of which are on the shelf, some in the store, and some move between the steps of the call.

What such calls do to a few jobs that are all on the shelf is in tests/conformance.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.engine import bulk_actions, delayed_ranges, shelf, topic_sweeps, topics
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.engine import Engine
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Asked, Page, Wanted
from deferd.engine.topic_sweeps import Pace, Sweep
from deferd.engine.undos import UndoOutcome
from deferd.shelf.moving import Mover
from deferd.shelf.rows import Rows
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, started_engine
from tests.integration.engine.test_tasks import counted, killed_in_step, spec_of
from tests.integration.store.store_rights import PASSWORD, USER, as_user, documented_permissions
from tests.integration.store.store_servers import StoreServer
from tests.shelving import ShelfInProcess, let_go
from tests.waiting import BUSY_S

DELAYED = JobState.DELAYED
SHARDS = 5
STATE = {"state": "delayed", "topics": [TOPIC]}
TAG = {"tag": "x"}
SELECTS = [pytest.param(STATE, id="state"), pytest.param(TAG, id="tag")]


@pytest.fixture
async def mover(store: Store, tmp_path: Path) -> AsyncIterator[ShelfInProcess]:
    with Rows(tmp_path) as rows:
        mover = ShelfInProcess(rows, Scripts(store, movable_clock=True), Keys(1))
        await mover.settle_all()
        yield mover
        await mover.close()


@pytest.fixture
async def driver(store: Store, server: StoreServer, mover: ShelfInProcess) -> AsyncIterator[EngineDriver]:
    """As the driver of other tests, with a shelf."""
    engine = Engine(store, movable_clock=True, shelf=mover)
    yield EngineDriver(engine, server)
    await engine.close()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some steps for each range and page, and many of both."""
    monkeypatch.setattr(bulk_actions, "_JOBS_PER_STEP", 4)
    monkeypatch.setitem(topic_sweeps.STEPS, "purge", 4)
    monkeypatch.setattr(topic_sweeps, "_PREVIEW_STEP", 4)
    monkeypatch.setattr(delayed_ranges, "LOADED_AT_ONCE", 7)
    monkeypatch.setattr(delayed_ranges, "_READ_AT_ONCE", 7)
    monkeypatch.setattr(topics, "IDS_PER_PAGE", 10)


async def put_many(driver: EngineDriver, count: int, *, prefix: str = "j", step_ms: int = 1000) -> dict[str, int]:
    """Put jobs that are due `step_ms` apart; returns their due times by their ids."""
    first = await driver.puts.put(PutJob(topic=TOPIC, id=f"{prefix}0", delay=7200, tags=["x"]))
    start_ms = first.record.due_at_ms
    due = {f"{prefix}{n}": start_ms + n * step_ms for n in range(count)}
    for ids in [list(due)[at : at + 1000] for at in range(1, count, 1000)]:
        jobs = [PutJob(topic=TOPIC, id=one, run_at=datetime.fromtimestamp(due[one] / 1000, UTC)) for one in ids]
        await driver.puts.put_many([job.model_copy(update={"tags": ["x"]}) for job in jobs])
    return due


async def shelve(mover: Mover, count: int | None = None, *, topic: str = TOPIC) -> None:
    """Put jobs of a topic on the shelf, those due last first; or all of them."""
    let_go(mover)
    left = 1
    while left and (count is None or count > 0):
        _, left = await mover.move_out(topic, 0, most=250 if count is None else min(count, 250))
        count = None if count is None else count - left


async def due_times(driver: EngineDriver) -> dict[str, int]:
    found: dict[str, int] = {}
    cursor = None
    while True:
        page, cursor = await driver.topics.jobs(TOPIC, DELAYED, cursor, 1000)
        found |= {one.id: one.due_at_ms for one in page}
        if cursor is None:
            return found


async def cancel(driver: EngineDriver, **call: Any) -> BulkOutcome:
    return await driver.engine.bulk.cancel(CancelSelected.model_validate(call))


async def reschedule(driver: EngineDriver, **call: Any) -> BulkOutcome:
    return await driver.engine.bulk.reschedule(RescheduleSelected.model_validate(call))


async def shelved(driver: EngineDriver) -> int:
    return (await driver.topics.get(TOPIC)).shelved


def around_scripts(
    engine: Engine, verb: str, before: Callable[[], Awaitable[None]], after: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Let something happen around each call of a script."""
    run = engine._scripts.run

    async def run_with(called: str, *args: Any, **options: Any) -> Any:
        if called != verb:
            return await run(called, *args, **options)
        await before()
        reply = await run(called, *args, **options)
        await (after or before)()
        return reply

    engine._scripts.run = run_with  # type: ignore[method-assign, assignment]


# Each job once


@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("fields", [{"by": 30}, {"by": -30}, {"by": 2000}, {"delay": 7300}])
@pytest.mark.usefixtures("small_steps")
async def test_each_job_is_moved_once_wherever_it_lands(
    driver: EngineDriver, mover: Mover, select: Any, fields: Any
) -> None:
    before = await put_many(driver, 200)
    await shelve(mover, 150)
    found = await reschedule(driver, select=select, **fields)
    assert found == BulkOutcome(200, 200, {DELAYED: 200}, True)
    after = await due_times(driver)
    if "by" in fields:
        assert after == {job_id: due + fields["by"] * 1000 for job_id, due in before.items()}
    else:
        assert after.keys() == before.keys()
        assert max(after.values()) - min(after.values()) < 30_000
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
    assert driver.server.command("KEYS", "deferd:{0}:bulk/*") == []


@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.usefixtures("small_steps")
async def test_a_repeated_call_moves_no_job_twice_that_went_to_the_shelf(
    driver: EngineDriver, mover: Mover, select: Any
) -> None:
    before = await put_many(driver, 60)
    await shelve(mover, 40)
    call = {"select": select, "by": 500, "request_id": "r"}
    assert await reschedule(driver, **call, limit=25) == BulkOutcome(25, 25, {DELAYED: 25}, False)
    mover._kept_until_s.clear()
    await shelve(mover)
    assert await shelved(driver) == 60
    assert await reschedule(driver, **call) == BulkOutcome(60, 60, {DELAYED: 60}, True)
    assert await due_times(driver) == {job_id: due + 500_000 for job_id, due in before.items()}


VERBS = [
    pytest.param("bulk_cancel", STATE, id="cancel a state"),
    pytest.param("bulk_cancel", TAG, id="cancel a tag"),
    pytest.param("bulk_reschedule", STATE, id="reschedule a state"),
    pytest.param("bulk_reschedule", TAG, id="reschedule a tag"),
    pytest.param("purge", {"state": DELAYED}, id="purge a state"),
    pytest.param("purge", {"tag": "x"}, id="purge a tag"),
    pytest.param("purge", {}, id="purge all"),
]


@pytest.mark.parametrize(("verb", "select"), VERBS)
@pytest.mark.usefixtures("small_steps")
async def test_jobs_that_move_between_the_steps_are_neither_missed_nor_done_twice(
    driver: EngineDriver, mover: Mover, verb: str, select: Any
) -> None:
    before = await put_many(driver, 120)
    await shelve(mover, 60)
    let_go(mover)
    chance, moved = Random(7), Counter[str]()

    async def move() -> None:
        if chance.random() < 0.5:
            _, left = await mover.move_out(TOPIC, 0, pass_over=chance.randrange(30), most=chance.randrange(1, 20))
            moved["out"] += left
        else:
            ids = chance.sample([*before], 10)
            on_shelf = await mover._on_thread(mover._rows.jobs, TOPIC, ids)
            await mover.load(TOPIC, ids)
            moved["in"] += len(on_shelf)

    around_scripts(driver.engine, verb, move)
    if verb == "purge":
        assert await driver.engine.sweeps.run(Sweep(verb="purge", topic=TOPIC, **select)) == 120
    elif verb == "bulk_cancel":
        assert await cancel(driver, select=select) == BulkOutcome(120, 120, {DELAYED: 120}, True)
    else:
        assert await reschedule(driver, select=select, by=30) == BulkOutcome(120, 120, {DELAYED: 120}, True)
        assert await due_times(driver) == {job_id: due + 30_000 for job_id, due in before.items()}
    assert moved["in"]
    assert moved["out"] or "tag" not in select, "calls by a tag let jobs go to the shelf"


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", range(20))
async def test_calls_do_the_same_wherever_the_jobs_are(driver: EngineDriver, mover: Mover, seed: int) -> None:
    """Many jobs are due at the same times, and they move between the steps."""
    chance = Random(seed)
    start_ms = (await driver.put("first", delay=20_000)).due_at_ms // 1000 * 1000
    await driver.cancels.cancel(TOPIC, "first")
    left: dict[str, int] = {}

    async def move() -> None:
        if chance.random() < 0.6:
            await mover.move_out(TOPIC, 0, pass_over=chance.randrange(30), most=chance.randrange(1, 20))
        elif left:
            await mover.load(TOPIC, chance.choices([*left], k=5))

    for verb in ("bulk_cancel", "bulk_reschedule", "purge"):
        around_scripts(driver.engine, verb, move)
    for round_number in range(6):
        new = {f"j{round_number}-{n}": start_ms + chance.randrange(8) * 1000 for n in range(chance.randrange(60))}
        jobs = [
            PutJob(topic=TOPIC, id=job_id, run_at=datetime.fromtimestamp(new[job_id] / 1000, UTC)) for job_id in new
        ]
        await driver.puts.put_many([job.model_copy(update={"tags": ["x"]}) for job in jobs])
        left |= new
        mover._kept_until_s.clear()
        await shelve(mover, chance.choice((None, len(left) // 2)))
        let_go(mover)
        await do_to_some(driver, chance, left, start_ms)
        assert await due_times(driver) == left


async def do_to_some(driver: EngineDriver, chance: Random, left: dict[str, int], start_ms: int) -> None:
    """Make a call on some of the jobs; `left` are their due times by their ids, and are changed as they must."""
    from_ms, before_ms = (start_ms + edge * 1000 for edge in sorted((chance.randrange(9), chance.randrange(9))))
    after, before = (datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in (from_ms, before_ms))
    selected = [job_id for job_id, due in left.items() if from_ms <= due < before_ms]
    select: dict[str, Any] = {**STATE, "due_after": after, "due_before": before}
    if chance.random() < 0.3:
        selected, select = [*left], TAG
    elif chance.random() < 0.2:
        selected = chance.sample([*left], min(len(left), 15))
        select = {"ids": [{"topic": TOPIC, "id": job_id} for job_id in [*selected, "none"]]}
    limit, is_dry, by_s = chance.choice((5, 30, 1000)), chance.random() < 0.2, chance.choice((-3, -1, 0, 1, 3))
    if "state" in select:
        selected.sort(key=lambda job_id: (left[job_id], job_id), reverse=by_s > 0)
    elif "tag" in select:
        selected.sort()
    changed = selected[:limit]
    count = len(changed)
    expected = BulkOutcome(count, 0 if is_dry else count, {DELAYED: count} if count else {}, len(selected) <= limit)
    if by_s:
        found = await reschedule(driver, select=select, by=by_s, limit=limit, dry_run=is_dry)
    else:
        found = await cancel(driver, select=select, limit=limit, dry_run=is_dry)
    if "ids" in select and len(selected) == limit:
        expected = replace(expected, complete=False)  # one of the ids is that of no job
    if is_dry and "state" in select:  # one that moves into the store meanwhile may count twice
        assert count <= found.matched <= limit
        assert found.done == 0
        return
    assert found == expected
    for job_id in () if is_dry else changed:
        if by_s:
            left[job_id] += by_s * 1000
        else:
            del left[job_id]


async def test_a_named_job_that_is_the_first_to_leave_stays(driver: EngineDriver, mover: Mover) -> None:
    await put_many(driver, 2)

    async def move_out() -> None:
        await mover.move_out(TOPIC, 0)

    around_scripts(driver.engine, "bulk_cancel", move_out)
    assert await cancel(driver, select={"ids": [{"topic": TOPIC, "id": "j0"}]}) == BulkOutcome(1, 1, {DELAYED: 1}, True)
    assert [*await due_times(driver)] == ["j1"]


# Limits


@pytest.mark.parametrize("verb", [cancel, reschedule])
async def test_a_limit_spans_the_store_and_the_shelf(driver: EngineDriver, mover: Mover, verb: Any) -> None:
    before = await put_many(driver, 500)
    await shelve(mover, 300)
    by = {"by": -7000} if verb is reschedule else {}
    assert await verb(driver, select=STATE, limit=350, **by) == BulkOutcome(350, 350, {DELAYED: 350}, False)
    rest = {job_id: due for job_id, due in before.items() if due >= before["j350"]}
    assert {job_id: due for job_id, due in (await due_times(driver)).items() if due >= before["j0"]} == rest
    if verb is cancel:
        assert await verb(driver, select=STATE, limit=150) == BulkOutcome(150, 150, {DELAYED: 150}, True)
        assert await due_times(driver) == {}


@pytest.mark.parametrize("fields", [{"by": 1}, {"by": -1}])
async def test_only_jobs_of_a_time_leave_the_shelf(driver: EngineDriver, mover: Mover, fields: Any) -> None:
    due = await put_many(driver, 300)
    await shelve(mover)
    after, before = (datetime.fromtimestamp(due[job_id] / 1000, UTC).isoformat() for job_id in ("j100", "j110"))
    select = {**STATE, "due_after": after, "due_before": before}
    assert await reschedule(driver, select=select, **fields) == BulkOutcome(10, 10, {DELAYED: 10}, True)
    assert await shelved(driver) == 290
    assert {one for one, at in (await due_times(driver)).items() if at != due[one]} == {
        f"j{n}" for n in range(100, 110)
    }


# Undo


@pytest.mark.usefixtures("small_steps")
async def test_a_cancel_of_jobs_on_the_shelf_is_undone(driver: EngineDriver, mover: Mover) -> None:
    due = await put_many(driver, 50)
    await shelve(mover, 30)
    assert (await cancel(driver, select=TAG, request_id="r", undo=True)).done == 50
    assert await due_times(driver) == {}
    assert await driver.engine.undos.undo_cancel("r", None) == UndoOutcome(50, 0)
    assert await due_times(driver) == due
    await shelve(mover)
    assert (await shelved(driver), await due_times(driver)) == (50, due)


@pytest.mark.usefixtures("small_steps")
async def test_an_undo_leaves_ids_that_were_put_again_and_are_on_the_shelf(driver: EngineDriver, mover: Mover) -> None:
    due = await put_many(driver, 50)
    await cancel(driver, select=STATE, request_id="r", undo=True)
    again = [PutJob(topic=TOPIC, id=f"j{number}", delay=9000, body="new") for number in range(10)]
    await driver.puts.put_many(again)
    mover._kept_until_s.clear()
    await shelve(mover)
    assert await shelved(driver) == 10
    assert await driver.engine.undos.undo_cancel("r", None) == UndoOutcome(40, 10)
    found = await due_times(driver)
    assert found.keys() == due.keys()
    assert {job_id for job_id, due_ms in found.items() if due_ms != due[job_id]} == {f"j{n}" for n in range(10)}
    await shelve(mover)
    assert await shelved(driver) == 50


async def test_an_undo_asks_the_shelf_again_when_jobs_may_have_left_meanwhile(
    driver: EngineDriver, mover: Mover
) -> None:
    await put_many(driver, 5)
    await cancel(driver, select=STATE, request_id="r", undo=True)
    left: list[None] = []

    async def put_and_shelve_once() -> None:
        if not left:
            left.append(None)
            await driver.puts.put(PutJob(topic=TOPIC, id="j0", delay=9000, body="new"))
            await shelve(mover)

    async def nothing() -> None:
        pass

    around_scripts(driver.engine, "undo_cancel", put_and_shelve_once, nothing)
    assert await driver.engine.undos.undo_cancel("r", None) == UndoOutcome(4, 1)
    assert (await driver.queue.get(TOPIC, "j0")).body == b'"new"'
    assert len(await due_times(driver)) == 5


# Counts


@pytest.mark.parametrize("verb", [cancel, reschedule])
@pytest.mark.usefixtures("small_steps")
async def test_a_dry_run_counts_jobs_where_they_are(driver: EngineDriver, mover: Mover, verb: Any) -> None:
    by = {"by": 5} if verb is reschedule else {}
    await put_many(driver, 50)
    await shelve(mover, 30)
    counts = await verb(driver, select=STATE, dry_run=True, samples=40, **by)
    assert (counts.matched, counts.done, counts.was, counts.complete) == (50, 0, {DELAYED: 50}, True)
    assert len({job_id for _, job_id, _ in counts.preview.samples}) == 40
    on_both = {
        *(await due_times(driver)).values(),
        *[job.due_ms for job in (await mover.page(TOPIC, Wanted(), 100)).jobs],
    }
    assert (counts.preview.first_due_ms, counts.preview.last_due_ms) == (min(on_both), max(on_both))
    assert await shelved(driver) == 30
    await asyncio.sleep(0.005)
    await put_many(driver, 10, prefix="later")
    mover._kept_until_s.clear()
    await shelve(mover)
    select = {**STATE, "cutoff": datetime.fromtimestamp(counts.preview.cutoff_ms / 1000, UTC).isoformat()}
    again = await verb(driver, select=select, dry_run=True, **by)
    assert again == BulkOutcome(50, 0, {DELAYED: 50}, True)
    assert await verb(driver, select=select, **by) == BulkOutcome(50, 50, {DELAYED: 50}, True)
    limited = await verb(driver, select=STATE, dry_run=True, limit=7, **by)
    assert (limited.matched, limited.complete) == (7, False)
    assert {f"later{n}" for n in range(10)} <= (await due_times(driver)).keys()


async def test_delayed_jobs_that_match_are_counted_on_the_shelf_too(driver: EngineDriver, mover: Mover) -> None:
    due = sorted((await put_many(driver, 50)).values())
    await shelve(mover, 30)
    wanted = topics.JobFilter(due_after_ms=due[5], due_before_ms=due[45])
    assert await driver.topics.matching(TOPIC, wanted, DELAYED) == 40
    assert await driver.topics.matching(TOPIC, topics.JobFilter(tag="x")) is None


@pytest.mark.parametrize("conditions", [{"state": DELAYED}, {"tag": "x"}, {}])
@pytest.mark.usefixtures("small_steps")
async def test_a_purge_removes_what_its_preview_has_counted(
    driver: EngineDriver, mover: Mover, conditions: Any
) -> None:
    await put_many(driver, 50)
    await shelve(mover, 30)
    sweep = Sweep(verb="purge", topic=TOPIC, **conditions)
    found = await driver.engine.sweeps.preview(sweep, 40)
    assert (found.matched, len(set(found.samples)), found.is_complete) == (50, 40, True)
    assert await shelved(driver) == (0 if "tag" in conditions else 30)
    await asyncio.sleep(0.005)
    await put_many(driver, 10, prefix="later")
    mover._kept_until_s.clear()
    await shelve(mover)
    sweep = Sweep(verb="purge", topic=TOPIC, cutoff_ms=found.cutoff_ms, **conditions)
    await mover.load(TOPIC, [f"j{n}" for n in range(40, 50)])  # jobs in the store follow those on the shelf
    assert (await driver.engine.sweeps.preview(sweep, 0)).matched == 50
    assert await driver.engine.sweeps.run(sweep) == 50
    assert (await due_times(driver)).keys() == {f"later{n}" for n in range(10)}


async def test_a_purge_of_ids_and_of_all(driver: EngineDriver, mover: Mover) -> None:
    await put_many(driver, 300)
    await driver.put("ready")
    await shelve(mover)
    assert await driver.engine.sweeps.run(Sweep(verb="purge", topic=TOPIC, ids=("j1", "j299", "none"))) == 2
    assert (await driver.topics.get(TOPIC)).counts[DELAYED] == 298
    assert await driver.engine.sweeps.run(Sweep(verb="purge", topic=TOPIC, state=JobState.READY)) == 1
    assert await shelved(driver) == 298
    assert await driver.engine.sweeps.run(Sweep(verb="purge", topic=TOPIC)) == 298
    with pytest.raises(TopicNotFound):
        await driver.topics.get(TOPIC)


async def test_a_step_does_not_go_on_behind_a_range_whose_jobs_are_gone(driver: EngineDriver, mover: Mover) -> None:
    await put_many(driver, 40)
    await shelve(mover)
    await mover.load(TOPIC, [f"j{n}" for n in range(20, 40)])
    load, counts = mover.load, []

    async def load_and_cancel(topic: str, ids: Sequence[str], let_go: Sequence[Asked] = (), at_least: int = 0) -> int:
        generation = await load(topic, ids, let_go, at_least)
        for job_id in ids:
            await driver.cancels.cancel(topic, job_id)
        return generation

    def note(count: int) -> bool:
        counts.append(count)
        return True

    mover.load = load_and_cancel  # type: ignore[method-assign]
    assert await driver.engine.sweeps.run(Sweep(verb="purge", topic=TOPIC), Pace(4, on_step=note)) == 20
    assert max(counts) == 4


async def test_a_dry_run_counts_no_job_that_was_put_since(driver: EngineDriver, mover: Mover) -> None:
    await put_many(driver, 3)
    await shelve(mover)
    keep = mover.keep

    async def put_and_keep(topic: str) -> None:
        await asyncio.sleep(0.005)
        await put_many(driver, 2, prefix="since")
        await shelve(mover)
        await keep(topic)

    mover.keep = put_and_keep  # type: ignore[method-assign]
    assert (await cancel(driver, select=STATE, dry_run=True)).matched == 3


async def test_a_dry_run_counts_jobs_that_were_put_before_the_clock_stepped_back(
    driver: EngineDriver, mover: Mover
) -> None:
    await put_many(driver, 3)
    await shelve(mover)
    driver.move_clock(-3600)
    assert (await cancel(driver, select=STATE, dry_run=True)).matched == 3
    assert (await cancel(driver, select=STATE)).done == 3


# Which topics


async def test_topics_are_found_that_have_all_jobs_on_the_shelf(store: Store, tmp_path: Path) -> None:
    keys = Keys(SHARDS)
    names = [f"t{number}" for number in range(12)]
    async with AsyncExitStack() as stack:
        rows = stack.enter_context(Rows(tmp_path))
        mover = ShelfInProcess(rows, Scripts(store, movable_clock=True), keys)
        stack.push_async_callback(mover.close)
        engine = Engine(store, shards=SHARDS, movable_clock=True, shelf=mover)
        stack.push_async_callback(engine.close)
        for name in names:
            jobs = [PutJob(topic=name, id=f"j{n}", delay=7200, tags=["all", f"n{n}"]) for n in range(7)]
            await engine.puts.put_many(jobs)
        for name in names[2:]:
            await shelve(mover, topic=name)

        async def done(**select: Any) -> BulkOutcome:
            return await engine.bulk.cancel(CancelSelected.model_validate({"select": select}))

        assert await done(tag="n0") == BulkOutcome(12, 12, {DELAYED: 12}, True)
        assert await done(tag="n1", topics=["t1*", "t4"]) == BulkOutcome(4, 4, {DELAYED: 4}, True)
        assert await done(tag="n2", topics=["t5", "t0", "none"]) == BulkOutcome(2, 2, {DELAYED: 2}, True)
        expected = 5 + 5 + 5
        assert await done(state="delayed", topics=["t1*"]) == BulkOutcome(expected, expected, {DELAYED: expected}, True)
        expected = 12 * 7 - 12 - 4 - 2 - expected
        assert await done(tag="all") == BulkOutcome(expected, expected, {DELAYED: expected}, True)


@pytest.mark.parametrize("way", ["in before", "out after"])
async def test_a_topic_is_found_whose_jobs_move_while_topics_are_looked_for(
    driver: EngineDriver, mover: Mover, way: str
) -> None:
    await put_many(driver, 5)
    if way == "in before":
        await shelve(mover)
    look = mover.topics_with_tag

    async def look_and_move(tag: str) -> list[str]:
        if way == "in before":
            await mover.load(TOPIC, [f"j{n}" for n in range(5)])
        found = await look(tag)
        if way == "out after":
            await shelve(mover)
        return found

    mover.topics_with_tag = look_and_move  # type: ignore[method-assign]
    assert await cancel(driver, select=TAG) == BulkOutcome(5, 5, {DELAYED: 5}, True)


async def test_ids_with_a_tag_are_read_while_no_job_moves(driver: EngineDriver, mover: Mover) -> None:
    await put_many(driver, 5)
    await shelve(mover)
    look, loads = mover.with_tag, []

    async def look_later(*args: Any, **options: Any) -> list[str]:
        loads.append(asyncio.create_task(mover.load(TOPIC, [f"j{n}" for n in range(5)])))
        await asyncio.sleep(0.05)
        return await look(*args, **options)

    mover.with_tag = look_later  # type: ignore[method-assign]
    assert await driver.engine.sweeps.run(Sweep(verb="purge", topic=TOPIC, tag="x")) == 5
    await asyncio.gather(*loads)


# Time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time of calls that keep jobs in the store."""
    now = [0.0]
    for module in (delayed_ranges, shelf):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return iter([now])


@pytest.mark.usefixtures("small_steps")
async def test_jobs_are_kept_in_the_store_as_long_as_a_call_takes(
    driver: EngineDriver, mover: Mover, clock: Iterator[list[float]]
) -> None:
    now, kept = next(clock), []
    await put_many(driver, 40)
    await shelve(mover, 20)
    keep = mover.keep

    async def note_and_keep(topic: str) -> None:
        kept.append(now[0])
        await keep(topic)

    async def pass_time() -> None:
        now[0] += 5

    mover.keep = note_and_keep  # type: ignore[method-assign]
    around_scripts(driver.engine, "bulk_cancel", pass_time)
    assert (await cancel(driver, select=STATE)).done == 40
    assert max(later - earlier for earlier, later in pairwise(kept)) <= 30 - 2 * 5
    assert now[0] - kept[-1] <= 30


@pytest.mark.parametrize("select", [STATE, TAG, {"ids": [{"topic": TOPIC, "id": "j30"}]}])
async def test_a_call_on_selected_jobs_ends_if_jobs_may_have_left_the_store(
    driver: EngineDriver, mover: Mover, clock: Iterator[list[float]], select: Any
) -> None:
    await fill_and_be_slow(driver, mover, "bulk_cancel", next(clock))
    with pytest.raises(StoreUnavailable, match="may have left"):
        await cancel(driver, select=select)


@pytest.mark.parametrize("conditions", [{}, {"tag": "x"}, {"ids": ("j30",)}])
async def test_a_purge_ends_if_jobs_may_have_left_the_store(
    driver: EngineDriver, mover: Mover, clock: Iterator[list[float]], conditions: Any
) -> None:
    await fill_and_be_slow(driver, mover, "purge", next(clock))
    with pytest.raises(StoreUnavailable, match="may have left"):
        await driver.engine.sweeps.run(Sweep(verb="purge", topic=TOPIC, **conditions))


async def test_an_id_is_not_free_if_its_job_may_have_left_a_former_partition_again(
    driver: EngineDriver, clock: Iterator[list[float]]
) -> None:
    now, partitions = next(clock), driver.engine.partitions
    await driver.topics.set(TOPIC, TopicSettings(partitions=4))
    layout = partitions.known.layout_of(TOPIC)
    job_id = next(f"j{number}" for number in range(100) if layout.home(TOPIC, f"j{number}") != TOPIC)
    assert await partitions.held_by_former(TOPIC, layout, [job_id]) == {}

    async def pass_time() -> None:
        now[0] += 6

    around_scripts(driver.engine, "held_ids", pass_time)
    held = await partitions.held_by_former(TOPIC, layout, [job_id])
    assert held is not None
    assert isinstance(held[job_id], StoreUnavailable)


async def test_a_partition_has_the_ids_of_jobs_that_cannot_be_read(
    driver: EngineDriver, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_many(driver, 2)
    await shelve(mover)

    def damaged_page(*_: object, **__: object) -> Page:
        return Page([], 2, (2, "j1"), False, ("j0", "j1"))

    monkeypatch.setattr(Rows, "page", damaged_page)
    ids = [ids async for ids in driver.engine.partitions._ids_of(TOPIC)]
    assert set().union(*ids) == {"j0", "j1"}


async def test_a_search_by_tag_ends_if_jobs_may_have_left_the_store(
    driver: EngineDriver, mover: Mover, clock: Iterator[list[float]]
) -> None:
    await fill_and_be_slow(driver, mover, "search", next(clock))
    with pytest.raises(StoreUnavailable, match="may have left"):
        await driver.engine.topics.search(TOPIC, topics.JobFilter(tag="x"), limit=10)


async def fill_and_be_slow(driver: EngineDriver, mover: Mover, verb: str, now: list[float]) -> None:
    """Let each call of a script take 32 s."""
    await put_many(driver, 40)
    await shelve(mover, 20)

    async def pass_time() -> None:
        now[0] += 16

    around_scripts(driver.engine, verb, pass_time)


# Tasks


@pytest.mark.parametrize(
    ("kind", "fields", "step"),
    [
        ("cancel", {"call": {"select": STATE}}, 4),
        ("reschedule", {"call": {"select": STATE, "by": 60}}, 0),
        ("reschedule", {"call": {"select": STATE, "by": 60}}, 4),
        ("reschedule", {"call": {"select": STATE, "by": -60}}, 4),
        ("reschedule", {"call": {"select": TAG, "by": 60}}, 4),
        ("purge", {}, 2),
    ],
)
async def test_another_process_goes_on_with_a_task(
    driver: EngineDriver, mover: ShelfInProcess, kind: str, fields: dict[str, Any], step: int
) -> None:
    before = await put_many(driver, 1000)
    await shelve(mover, 600)
    driver.move_clock(0.005)
    spec = await spec_of(driver.engine, kind, **fields)
    async with started_engine(driver.server.url, movable_clock=True, shelf=mover) as other:
        goes_on = killed_in_step(other, kind if kind == "purge" else f"bulk_{kind}", step)
        await other.task_runner.begin("t1", spec)
        async with asyncio.timeout(BUSY_S):
            while step and await due_times(driver) == before:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert before.items() & (await due_times(driver)).items(), "it has not ended"
        mover._kept_until_s.clear()  # the process has been gone for so long
        await shelve(mover)
        driver.move_clock(5)
        await driver.engine.task_runner.look()
        assert await counted(driver) == ("done", 1000, 1000)
        after = await due_times(driver)
        goes_on()  # what the first process was about to do changes nothing
        await asyncio.sleep(0.1)
    assert await due_times(driver) == after
    if kind == "reschedule":
        by_ms = fields["call"]["by"] * 1000
        assert after == {name: due + by_ms for name, due in before.items()}
    else:
        assert after == {}


async def test_an_undo_needs_no_other_permissions_than_the_documented_ones(
    driver: EngineDriver, mover: Mover, server: StoreServer
) -> None:
    await put_many(driver, 5)
    await shelve(mover, 3)
    server.command("ACL", "SETUSER", USER, "reset", f">{PASSWORD}", *documented_permissions())
    try:
        async with started_engine(as_user(server.url), movable_clock=True, shelf=mover) as engine:
            call = {"select": TAG, "request_id": "r", "undo": True}
            assert (await engine.bulk.cancel(CancelSelected.model_validate(call))).done == 5
            assert (await engine.undos.undoable("r", None)).jobs == 5
            assert await engine.undos.undo_cancel("r", None) == UndoOutcome(5, 0)
    finally:
        server.command("ACL", "DELUSER", USER)
