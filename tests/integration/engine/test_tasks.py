"""Tasks: all selected jobs exactly once and nothing else, also when processes end, hang or lose the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from deferd.contract.errors import RateLimited, StoreUnavailable, TaskNotFound
from deferd.contract.model import JobState
from deferd.engine import tasks, topic_sweeps
from deferd.engine.engine import Engine
from deferd.engine.inspection import redriven_jobs
from deferd.engine.inspection.redriven_jobs import Became
from deferd.engine.tasks import Task, request_of
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job, started_engine
from tests.waiting import BUSY_S

MANY = 1500
CHANGE = {"operation": "cancel_selected_jobs", "by": "ops", "via": "api", "topic": TOPIC, "filter": None}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits. The lease itself stays: tests move the clock."""
    monkeypatch.setattr(tasks, "_NOTE_EVERY_S", 0.01)
    monkeypatch.setattr(tasks, "_RETRY_S", 0.01)


async def spec_of(engine: Engine, kind: str, **fields: Any) -> dict[str, Any]:
    now_ms = await engine.sweeps.now_ms(TOPIC)
    return {
        "kind": kind,
        "begun": now_ms,
        "cutoff": now_ms,
        "limit": None,
        "visible": None,
        "topic": TOPIC,
        "change": CHANGE,
        "sweep": {"topic": TOPIC},
        **fields,
    }


def call(**fields: Any) -> dict[str, Any]:
    return {"select": {"state": "delayed", "topics": [TOPIC]}, **fields}


async def put_many(driver: EngineDriver, prefix: str = "j", number: int = MANY, **fields: Any) -> set[str]:
    ids = [f"{prefix}{index}" for index in range(number)]
    for start in range(0, number, 500):
        await driver.puts.put_many([job(job_id, **{"delay": 3600, **fields}) for job_id in ids[start : start + 500]])
    return set(ids)


async def ended(engine: Engine, task_id: str = "t1") -> Task:
    for _ in range(1000):
        task = await engine.tasks.get(task_id)
        if task.state != "running":
            await asyncio.sleep(0)
            return task
        await asyncio.sleep(0.01)
    raise AssertionError("the task does not end")


async def counted(driver: EngineDriver, task_id: str = "t1") -> tuple[str, int, int | None]:
    task = await ended(driver.engine, task_id)
    return task.state, task.done, task.total


async def due_times(driver: EngineDriver) -> dict[str, int]:
    found: dict[str, int] = {}
    cursor = None
    while True:
        page, cursor = await driver.topics.jobs(TOPIC, JobState.DELAYED, cursor, 1000)
        found |= {one.id: one.due_at_ms for one in page}
        if cursor is None:
            return found


async def test_cancel(driver: EngineDriver) -> None:
    await put_many(driver)
    await driver.put("ready")
    driver.move_clock(0.005)
    spec = await spec_of(driver.engine, "cancel", call=call())
    driver.move_clock(0.005)
    later = await put_many(driver, "later", 300)
    task = await driver.engine.task_runner.begin("t1", spec)
    assert (task.state, task.done, task.total) == ("running", 0, None)
    assert await counted(driver) == ("done", MANY, MANY)
    assert set(await due_times(driver)) == later
    assert await driver.state("ready") is JobState.READY
    assert (await driver.engine.task_runner.begin("t1", spec)).state == "done"
    assert set(await due_times(driver)) == later
    recorded, _ = await driver.engine.activity.page(lambda _: True, None, 10)
    assert [(one.change.operation, one.change.count, one.change.subject) for one in recorded] == [
        ("cancel_selected_jobs", MANY, "t1")
    ]


@pytest.mark.parametrize("kind", ["reschedule", "purge"])
async def test_what_was_noted_is_deleted_ten_minutes_after_the_end(driver: EngineDriver, kind: str) -> None:
    """And expires a minute later, when its process is gone."""
    await put_many(driver, number=10)
    driver.move_clock(0.005)
    runner = driver.engine.task_runner
    await runner.begin("t1", await spec_of(driver.engine, kind, call=call(by=60)))
    assert await counted(driver) == ("done", 10, 10)
    while not runner._to_forget or runner._running:
        await asyncio.sleep(0.01)
    [key] = driver.server.command("KEYS", f"deferd:{{0}}:bulk/{kind}/task/t1/*")
    assert 650_000 < driver.server.command("PTTL", key) <= 660_000
    await runner.forget_ended()
    assert driver.server.command("EXISTS", key) == 1
    [(at_s, action)] = runner._to_forget
    assert 590 < at_s - time.monotonic() <= 600
    runner._to_forget[0] = (time.monotonic(), action)
    await runner.forget_ended()
    assert driver.server.command("EXISTS", key) == 0
    assert not runner._to_forget


async def test_an_hour_after_its_end_a_task_gives_way_to_a_new_one(driver: EngineDriver) -> None:
    await put_many(driver, "first", 3)
    driver.move_clock(0.005)
    first = await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "cancel", call=call()))
    assert await counted(driver) == ("done", 3, 3)
    await put_many(driver, "second", 2)
    driver.move_clock(3590)
    spec = await spec_of(driver.engine, "cancel", call=call())
    assert (await driver.engine.task_runner.begin("t1", spec)).started_ms == first.started_ms
    driver.move_clock(20)
    spec = await spec_of(driver.engine, "cancel", call=call(select={"state": "ready", "topics": [TOPIC]}))
    await put_many(driver, "third", 1, delay=None)
    driver.move_clock(20)
    spec |= {"cutoff": spec["cutoff"] + 10_000}
    task = await driver.engine.task_runner.begin("t1", spec)
    assert (task.state, task.done, task.total, task.ended_ms) == ("running", 0, None, None)
    assert task.started_ms > first.started_ms
    assert driver.server.command("PTTL", "deferd:{0}:task/t1") == -1
    assert await counted(driver) == ("done", 1, 1)
    assert await driver.counts() == {"delayed": 2}


def killed_in_step(engine: Engine, verb: str, step: int) -> Callable[[], None]:
    """Let the engine stop for ever in a step of this script; returns what lets it go on, as after a SIGSTOP."""
    run, steps, goes_on = engine._scripts.run, [0], asyncio.Event()

    async def run_or_hang(called: str, *args: Any, **options: Any) -> Any:
        if called == "task_progress":
            await asyncio.sleep(0)
        if called in {verb, "task_progress"} and steps[0] >= step:
            await goes_on.wait()
        if called == verb and not args[1][1].count(b'"dry_run"') and not args[1][1].count(b'"samples"'):
            steps[0] += 1
        return await run(called, *args, **options)

    engine._scripts.run = run_or_hang  # type: ignore[method-assign, assignment]
    return goes_on.set


@pytest.mark.parametrize(
    ("kind", "verb", "fields", "step"),
    [
        ("cancel", "bulk_cancel", {"call": call()}, 4),
        ("reschedule", "bulk_reschedule", {"call": call(by=60)}, 0),
        ("reschedule", "bulk_reschedule", {"call": call(by=60)}, 4),
        ("reschedule", "bulk_reschedule", {"call": call(by=-60)}, 1),
        ("reschedule", "bulk_reschedule", {"call": {"select": {"tag": "x"}, "by": 60}}, 4),
        ("purge", "purge", {"limit": None}, 1),
    ],
)
async def test_another_process_goes_on(
    driver: EngineDriver, kind: str, verb: str, fields: dict[str, Any], step: int
) -> None:
    await put_many(driver, tags=["x"])
    before = await due_times(driver)
    driver.move_clock(0.005)
    spec = await spec_of(driver.engine, kind, **fields)
    async with started_engine(driver.server.url, movable_clock=True) as other:
        goes_on = killed_in_step(other, verb, step)
        await other.task_runner.begin("t1", spec)
        await asyncio.sleep(0.2)
        driver.move_clock(0.005)
        later = await put_many(driver, "later", 200, tags=["x"])
        await driver.engine.task_runner.look()
        assert (await driver.engine.tasks.get("t1")).state == "running"
        driver.move_clock(5)
        await driver.engine.task_runner.look()
        assert await counted(driver) == ("done", MANY, MANY)
        after = await due_times(driver)
        goes_on()  # what the first process was about to do changes nothing
        await asyncio.sleep(0.1)
    assert await due_times(driver) == after
    assert later <= set(after)
    if kind == "reschedule":
        by_ms = fields["call"]["by"] * 1000
        assert {name: due for name, due in after.items() if name in before} == {
            name: due + by_ms for name, due in before.items()
        }
    else:
        assert set(after) == later
    assert (await driver.engine.tasks.get("t1")).done == MANY


async def test_a_process_ends_its_work_when_another_one_has_taken_it_over(driver: EngineDriver) -> None:
    before = await put_many(driver)
    driver.move_clock(0.005)
    run, steps = driver.engine._scripts.run, [0]

    async def run_slowly(called: str, *args: Any, **options: Any) -> Any:
        if called == "bulk_cancel":
            steps[0] += 1
            await asyncio.sleep(0.1)
        return await run(called, *args, **options)

    driver.engine._scripts.run = run_slowly  # type: ignore[method-assign, assignment]
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "cancel", call=call()))
    while not steps[0]:
        await asyncio.sleep(0.01)
    driver.server.command("HSET", "deferd:{0}:task/t1", "owner", "another process")
    async with asyncio.timeout(BUSY_S):
        while driver.engine.task_runner._running:
            await asyncio.sleep(0.01)
    assert (await driver.engine.tasks.get("t1")).state == "running"
    assert 0 < len(await due_times(driver)) <= len(before)


async def test_a_process_that_stops_gives_its_tasks_up(driver: EngineDriver) -> None:
    await put_many(driver)
    driver.move_clock(0.005)
    spec = await spec_of(driver.engine, "cancel", call=call())
    async with started_engine(driver.server.url, movable_clock=True) as other:
        run, steps = other._scripts.run, [0]

        async def run_slowly(called: str, *args: Any, **options: Any) -> Any:
            if called == "bulk_cancel":
                steps[0] += 1
                await asyncio.sleep(3600 if steps[0] > 12 else 0)
            return await run(called, *args, **options)

        other._scripts.run = run_slowly  # type: ignore[method-assign, assignment]
        await other.task_runner.begin("t1", spec)
        while steps[0] < 12:
            await asyncio.sleep(0.01)
    await driver.engine.task_runner.look()
    assert await counted(driver) == ("done", MANY, MANY)


async def test_a_task_waits_for_the_store(driver: EngineDriver) -> None:
    await put_many(driver, number=600)
    driver.move_clock(0.005)
    run, calls = driver.engine._scripts.run, [0]

    async def run_or_fail(called: str, *args: Any, **options: Any) -> Any:
        calls[0] += 1
        if called == "bulk_reschedule" and calls[0] % 2:
            reply = await run(called, *args, **options)
            if calls[0] % 4 == 1:
                raise StoreUnavailable("the reply was lost")
            return reply
        return await run(called, *args, **options)

    before = await due_times(driver)
    driver.engine._scripts.run = run_or_fail  # type: ignore[method-assign, assignment]
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "reschedule", call=call(by=60)))
    assert (await counted(driver))[:2] == ("done", 600)
    assert await due_times(driver) == {name: due + 60_000 for name, due in before.items()}


@pytest.mark.parametrize("kind", ["cancel", "purge"])
async def test_stop(driver: EngineDriver, kind: str) -> None:
    await put_many(driver)
    driver.move_clock(0.005)
    run = driver.engine._scripts.run

    async def run_slowly(called: str, *args: Any, **options: Any) -> Any:
        if called in {"bulk_cancel", "purge"}:
            await asyncio.sleep(0.03)
        return await run(called, *args, **options)

    driver.engine._scripts.run = run_slowly  # type: ignore[method-assign, assignment]
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, kind, call=call()))
    while not (await driver.engine.tasks.get("t1")).done:
        await asyncio.sleep(0.01)
    await driver.engine.tasks.stop("t1")
    state, done, of = await counted(driver)
    assert state == "stopped"
    assert of == MANY
    assert 0 < done < MANY
    assert len(await due_times(driver)) == MANY - done
    await driver.engine.tasks.stop("t1")
    assert (await driver.engine.tasks.get("t1")).state == "stopped"
    for unknown in (driver.engine.tasks.stop("none"), driver.engine.tasks.get("none")):
        with pytest.raises(TaskNotFound):
            await unknown


async def kill_many(driver: EngineDriver, number: int) -> None:
    await put_many(driver, number=number, delay=None, ttl=600)
    await driver.pass_time(601)
    assert await driver.counts() == {"dead": number}


async def states_of(driver: EngineDriver) -> tuple[int, int]:
    counts = await driver.counts()
    return counts.get("ready", 0), counts.get("dead", 0)


async def await_states(driver: EngineDriver, ready: int, dead: int) -> None:
    async with asyncio.timeout(20):
        while await states_of(driver) != (ready, dead):
            await asyncio.sleep(0.01)


async def test_a_redrive_keeps_to_its_rate(driver: EngineDriver) -> None:
    await kill_many(driver, 12)
    spec = await spec_of(driver.engine, "redrive", sweep={"topic": TOPIC, "rate": 20.0})
    await driver.engine.task_runner.begin("t1", spec)
    assert await counted(driver) == ("done", 12, 12)
    ready, _ = await driver.topics.jobs(TOPIC, JobState.READY)
    times = sorted(one.due_at_ms for one in ready)
    assert times[5] - times[0] >= 245, "five are there at once, a quarter of a second's"
    assert times[10] - times[0] >= 490


async def test_another_process_goes_on_at_the_rate(driver: EngineDriver) -> None:
    await kill_many(driver, 6)
    spec = await spec_of(driver.engine, "redrive", sweep={"topic": TOPIC, "rate": 0.01})
    async with started_engine(driver.server.url, movable_clock=True) as other:
        goes_on = killed_in_step(other, "redrive", 1)
        await other.task_runner.begin("t1", spec)
        await await_states(driver, 1, 5)
        driver.move_clock(5)
        await driver.engine.task_runner.look()
        await await_states(driver, 2, 4)
        goes_on()
    await driver.engine.tasks.stop("t1")
    assert await counted(driver) == ("stopped", 2, 6)
    assert await states_of(driver) == (2, 4)


async def test_a_redrive_whose_reply_was_lost_waits_for_its_next_turn(driver: EngineDriver) -> None:
    await kill_many(driver, 3)
    run, steps = driver.engine._scripts.run, [0]

    async def run_and_lose_reply(called: str, *args: Any, **options: Any) -> Any:
        reply = await run(called, *args, **options)
        if called == "redrive" and b'"request"' in args[1][1]:
            steps[0] += 1
            raise StoreUnavailable("the reply was lost")
        return reply

    driver.engine._scripts.run = run_and_lose_reply  # type: ignore[method-assign, assignment]
    spec = await spec_of(driver.engine, "redrive", sweep={"topic": TOPIC, "rate": 0.01})
    await driver.engine.task_runner.begin("t1", spec)
    async with asyncio.timeout(20):
        while (await driver.engine.tasks.get("t1")).done != 1:  # as the next attempt finds
            await asyncio.sleep(0.01)
    await driver.engine.tasks.stop("t1")
    assert await counted(driver) == ("stopped", 1, 3)
    assert steps == [1]


async def became(driver: EngineDriver) -> Became:
    task = await driver.engine.tasks.get("t1")
    return await driver.engine.redriven_jobs.became(TOPIC, request_of("t1", task.spec), task.spec["cutoff"])


async def test_what_became_of_redriven_jobs(driver: EngineDriver) -> None:
    await kill_many(driver, 6)
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "redrive"))
    assert await counted(driver) == ("done", 6, 6)
    assert (await became(driver)) == Became(looked_at=6, waiting=6)
    [running, finished, buried, released] = await driver.pop(4)
    await driver.queue.finish(TOPIC, finished.id, finished.receipt)
    await driver.deliveries.bury(TOPIC, buried.id, buried.receipt, error="KeyError: 17")
    await driver.deliveries.release(TOPIC, released.id, released.receipt, error="KeyError: 18")
    [again, *_] = (await driver.topics.jobs(TOPIC, JobState.READY))[0]
    await driver.cancels.cancel(TOPIC, again.id)
    driver.move_clock(0.005)
    await driver.put(again.id, delay=60)
    found = await became(driver)
    assert found.top_errors == [("KeyError: *", 2)]
    found.errors.clear()
    assert found == Became(looked_at=6, waiting=2, retrying=1, running=1, dead=1, gone=2)
    assert running.state is JobState.RESERVED
    await driver.pass_time(601)  # longer than the ttl of what was never handed out
    assert ("expired", 1) in (await became(driver)).top_errors


async def test_of_many_redriven_jobs_some_are_drawn(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_sweeps, "DRAWN", 100)
    monkeypatch.setattr(redriven_jobs, "DRAWN", 100)
    await kill_many(driver, 600)
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "redrive"))
    assert (await counted(driver))[1] == 600
    [key] = driver.server.command("KEYS", "deferd:{0}:bulk/redrive/task/t1/*/jobs")
    assert driver.server.command("ZCARD", key) == 100
    assert driver.server.command("PTTL", key) > tasks.KEPT_MS - 60_000
    assert await became(driver) == Became(looked_at=100, waiting=100)


async def test_a_task_of_another_release_fails(driver: EngineDriver) -> None:
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "dance", sweep={"topic": TOPIC, "x": 1}))
    assert (await ended(driver.engine)).state == "failed"


async def test_a_purge_of_a_topic_that_is_gone_is_done(driver: EngineDriver) -> None:
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "purge", sweep={"topic": "gone"}))
    assert await counted(driver) == ("done", 0, None)


async def test_a_key_leaves_room_for_the_tasks_of_others(driver: EngineDriver) -> None:
    tasks, spec = driver.engine.tasks, await spec_of(driver.engine, "purge", sweep={"topic": "gone"})
    for number in range(3):
        assert await tasks.begin(f"shop{number}", spec, "elsewhere", "shop")
    with pytest.raises(RateLimited, match="key 'shop' runs 3 tasks already, the most of one key"):
        await tasks.begin("shop3", spec, "elsewhere", "shop")
    assert not await tasks.begin("shop2", spec, "elsewhere", "shop"), "a repetition gets its task"
    assert await tasks.begin("ops0", spec, "elsewhere", "ops")
    await tasks.end(await tasks.get("shop1"), "elsewhere", "done")
    assert await tasks.begin("shop3", spec, "elsewhere", "shop")
    for number in range(6):
        assert await tasks.begin(f"anybody{number}", spec, "elsewhere"), "without keys nobody has a share"


async def test_bounds(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "KEPT", 12)
    spec = await spec_of(driver.engine, "purge", sweep={"topic": "gone"})
    for number in range(10):
        assert await driver.engine.tasks.begin(f"running{number}", spec, "elsewhere")
    assert not await driver.engine.tasks.begin("running3", spec, "me")
    with pytest.raises(RateLimited, match="10 tasks run already"):
        await driver.engine.task_runner.begin("t1", spec)
    task = await driver.engine.tasks.get("running0")
    assert await driver.engine.tasks.extend(task, "me") == 0
    assert not await driver.engine.tasks.end(task, "me", "done")
    for number in range(10):
        assert await driver.engine.tasks.end(await driver.engine.tasks.get(f"running{number}"), "elsewhere", "done")
        driver.move_clock(0.01)
    for number in range(5):
        assert await driver.engine.tasks.begin(f"t{number}", spec, "elsewhere")
        driver.move_clock(0.01)
    newest = [task.id for task in await driver.engine.tasks.newest(1000)]
    assert newest == [
        *(f"t{number}" for number in reversed(range(5))),
        *(f"running{number}" for number in range(9, 2, -1)),
    ]
    assert [task.id for task in await driver.engine.tasks.newest(2)] == ["t4", "t3"]
    ttl = driver.server.command("PTTL", "deferd:{0}:task/running9")
    assert 6 * 86_400_000 < ttl <= 7 * 86_400_000
    assert driver.server.command("PTTL", "deferd:{0}:task/t1") == -1
    driver.server.command("DEL", "deferd:{0}:task/running9")
    assert "running9" not in [task.id for task in await driver.engine.tasks.newest(1000)]


async def test_an_audit_of_the_store_knows_tasks(driver: EngineDriver) -> None:
    await put_many(driver, number=10)
    driver.move_clock(0.005)
    await driver.engine.task_runner.begin("t1", await spec_of(driver.engine, "cancel", call=call()))
    await counted(driver)
    found = await driver.engine.consistency.audit_store()
    assert (found.stray_keys, found.stray_count) == ([], 0)
