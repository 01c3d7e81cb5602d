"""Redrives and purges of large jobs: a step ends at a megabyte of records, and nothing is skipped or counted twice."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.model import JobState
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.topic_sweeps import Pace, Sweep
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs

LARGE = 600_000
"""Bytes: two such jobs are more than 1 MiB."""
JOBS = 8
NAMES = {f"j{number:02}" for number in range(JOBS)}
ODD = {name for name in NAMES if int(name[1:]) % 2}


async def bury(driver: EngineDriver, name: str, size: int) -> None:
    is_odd = name not in NAMES - ODD
    await driver.put(name, body="x" * size, tags=["odd"] if is_odd else [])
    await driver.pop_one()
    await driver.deliveries.bury(TOPIC, name, ANY_RECEIPT, error="odd" if is_odd else "even")


async def fill(driver: EngineDriver, size: int) -> int:
    """Put dead jobs, and a last one that died later than the time in ms that it returns."""
    for name in sorted(NAMES):
        await bury(driver, name, size)
    driver.move_clock(0.005)
    cutoff_ms = await driver.engine.sweeps.now_ms(TOPIC)
    driver.move_clock(0.005)
    await bury(driver, "late", size)
    return cutoff_ms


def watch_steps(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each step looks at, as its script says."""
    looked: list[int] = []
    run = driver.engine._scripts.run

    async def watched(verb: str, *args: Any, **options: Any) -> Any:
        reply = await run(verb, *args, **options)
        if verb in {"redrive", "purge"}:
            looked.append(reply[4])
        return reply

    monkeypatch.setattr(driver.engine._scripts, "run", watched)
    return looked


def of_state(driver: EngineDriver, state: str) -> set[str]:
    return {name.decode() for name in driver.server.command("ZRANGE", f"{KEY}:{state}", 0, -1)}


# Conditions, the jobs that they mean, and how many a step may look at: the tags are not in the record.
CASES: list[tuple[dict[str, Any], set[str], int]] = [
    ({}, NAMES, 2),
    ({"reason": "buried"}, NAMES, 2),
    ({"error": "odd"}, ODD, 2),
    ({"error": "odd", "tag": "odd", "reason": "buried"}, ODD, 2),
    ({"tag": "odd"}, ODD, 2),
    ({"ids": tuple(sorted(NAMES))}, NAMES, 2),
    ({"ids": (*sorted(NAMES), "none"), "tag": "odd", "reason": "buried"}, ODD, 4),
]


@pytest.mark.parametrize("size", [LARGE, 10])
@pytest.mark.parametrize("case", CASES, ids=["+".join(conditions) or "all" for conditions, _, _ in CASES])
@pytest.mark.parametrize("verb", ["redrive", "purge"])
async def test_a_step_with_a_cutoff_ends_at_a_megabyte(
    driver: EngineDriver,
    monkeypatch: pytest.MonkeyPatch,
    verb: Any,
    case: tuple[dict[str, Any], set[str], int],
    *,
    size: int,
) -> None:
    conditions, meant, at_once = case
    cutoff_ms = await fill(driver, size)
    sweep = Sweep(verb=verb, topic=TOPIC, state=JobState.DEAD, cutoff_ms=cutoff_ms, **conditions)
    looked = watch_steps(driver, monkeypatch)

    preview = await driver.engine.sweeps.preview(sweep, 100)
    assert (preview.matched, preview.is_complete) == (len(meant), True)
    assert sorted(preview.samples) == sorted((name, JobState.DEAD) for name in meant)
    assert of_state(driver, "dead") == NAMES | {"late"}
    steps: list[int] = []

    def on_step(count: int) -> bool:
        steps.append(count)
        return True

    pace = Pace(request="x/y", kept_ms=60_000, on_step=on_step)
    assert await driver.engine.sweeps.run(sweep, pace) == len(meant)

    assert of_state(driver, "dead") == NAMES - meant | {"late"}
    assert of_state(driver, "ready") == (meant if verb == "redrive" else set())
    assert sum(steps) == len(meant)
    assert driver.server.command("HGET", "deferd:{0}:bulk/x/y", "done") == b"%d" % len(meant)
    if size == LARGE:
        assert max(looked) <= at_once
    else:
        assert max(looked) >= len(meant)


async def test_a_redrive_of_all_ends_a_step_at_a_megabyte(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(driver, LARGE)
    looked = watch_steps(driver, monkeypatch)
    assert await redrive_jobs(driver.engine, TOPIC) == JOBS + 1
    assert sum(looked) == JOBS + 1
    assert max(looked) == 2


async def test_a_purge_of_reserved_jobs_ends_a_step_at_a_megabyte(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        await driver.put(name, body="x" * LARGE)
        await driver.pop_one()
    looked = watch_steps(driver, monkeypatch)
    assert await purge_jobs(driver.engine, TOPIC, state=JobState.RESERVED) == JOBS
    assert (sum(looked), max(looked)) == (JOBS, 2)


async def test_a_purge_without_a_condition_of_the_record_reads_none(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(driver, LARGE)
    looked = watch_steps(driver, monkeypatch)
    assert await purge_jobs(driver.engine, TOPIC, state=JobState.DEAD) == JOBS + 1
    assert looked == [JOBS + 1]


@pytest.mark.parametrize("conditions", [{}, {"error": "odd"}, {"tag": "odd"}])
async def test_a_limited_redrive_of_large_jobs(driver: EngineDriver, conditions: dict[str, Any]) -> None:
    cutoff_ms = await fill(driver, LARGE)
    sweep = Sweep(verb="redrive", topic=TOPIC, cutoff_ms=cutoff_ms, limit=3, **conditions)
    preview = await driver.engine.sweeps.preview(sweep, 100)
    assert (preview.matched, preview.is_complete, len(preview.samples)) == (3, False, 3)
    assert await driver.engine.sweeps.run(sweep) == 3
    assert of_state(driver, "ready") == {name for name, _ in preview.samples}
    assert await driver.engine.sweeps.run(sweep.with_limit(None)) == len(ODD if conditions else NAMES) - 3


async def test_the_ids_that_are_taken_go_after_the_last_step(driver: EngineDriver) -> None:
    for name in NAMES:
        await driver.put(name, body="x" * LARGE, retain=600, unique_for=600)
        await driver.queue.finish(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
    driver.move_clock(0.005)
    cutoff_ms = await driver.engine.sweeps.now_ms(TOPIC)
    driver.server.command("ZADD", f"{KEY}:taken", 9 * 10**15, "gone")
    sweep = Sweep(verb="purge", topic=TOPIC, state=JobState.FINISHED, cutoff_ms=cutoff_ms, frees_taken=True)
    assert await driver.engine.sweeps.run(sweep) == JOBS
    assert of_state(driver, "finished") | of_state(driver, "taken") == set()
