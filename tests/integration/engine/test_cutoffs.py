"""Cutoffs: a redrive, purge or call on many jobs acts on what its preview counted, and on nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.model import FinishItem, JobState
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.topic_sweeps import Pace, Sweep
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs

MANY = 2500


async def bury(driver: EngineDriver, job_id: str, error: str | None = None, **fields: Any) -> None:
    await driver.put(job_id, **fields)
    popped = await driver.pop_one()
    assert popped.id == job_id
    await driver.deliveries.bury(TOPIC, job_id, ANY_RECEIPT, error=error)


async def ids(driver: EngineDriver, state: JobState | None = None) -> set[str]:
    found: set[str] = set()
    cursor = None
    while True:
        page, cursor = await driver.topics.jobs(TOPIC, state, cursor, 1000)
        found |= {job.id for job in page}
        if cursor is None:
            return found


def sweep(verb: Any, **conditions: Any) -> Sweep:
    return Sweep(verb=verb, topic=TOPIC, **conditions)


async def cancel(driver: EngineDriver, select: dict[str, Any], **fields: Any) -> BulkOutcome:
    return await driver.engine.bulk.cancel(CancelSelected.model_validate({"select": select, **fields}))


async def test_a_purge_with_a_cutoff_leaves_what_was_put_since(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"old{number}", delay=60) for number in range(MANY)])
    await driver.put("ready")
    await driver.put("held")
    await driver.pop(2)
    await driver.put("taken", retain=60, unique_for=60)
    await driver.pop_one()
    await driver.queue.finish_many(TOPIC, [FinishItem(id="taken")])
    preview = await driver.engine.sweeps.preview(sweep("purge"), 10)
    assert (preview.matched, len(preview.samples)) == (MANY + 3, 10)
    driver.move_clock(0.005)
    await driver.puts.put_many([job(f"new{number}", delay=30) for number in range(MANY)])
    await driver.put("now")
    kept = {f"new{number}" for number in range(MANY)} | {"now"}
    assert await driver.engine.sweeps.run(sweep("purge", cutoff_ms=preview.cutoff_ms)) == MANY + 3
    assert await ids(driver) == kept
    assert await driver.engine.sweeps.run(sweep("purge", cutoff_ms=preview.cutoff_ms)) == 0
    assert await purge_jobs(driver.engine, TOPIC) == MANY + 1


@pytest.mark.parametrize("verb", ["redrive", "purge"])
async def test_jobs_of_one_error(driver: EngineDriver, verb: str) -> None:
    for number in range(4):
        await bury(driver, f"smtp{number}", f"SMTP 421: message {number} refused")
    await bury(driver, "other", "SMTP 550: no such user")
    await bury(driver, "none")
    group = sweep(verb, error="SMTP 421: message * refused", reason="buried")
    preview = await driver.engine.sweeps.preview(group, 2)
    assert (preview.matched, len(preview.samples)) == (4, 2)
    driver.move_clock(0.005)
    await bury(driver, "smtp4", "SMTP 421: message 4 refused")
    with_cutoff = replace(group, cutoff_ms=preview.cutoff_ms)
    assert await driver.engine.sweeps.run(with_cutoff) == 4
    assert await ids(driver, JobState.DEAD) == {"other", "none", "smtp4"}
    assert await driver.engine.sweeps.run(group) == 1
    assert await driver.engine.sweeps.run(sweep(verb, error="")) == 1
    assert await ids(driver, JobState.DEAD) == {"other"}
    assert await driver.engine.sweeps.run(sweep(verb, error="SMTP 550: no such user", reason="expired")) == 0
    assert await driver.engine.sweeps.run(sweep(verb, error="SMTP *: no such user")) == 0


async def test_a_limited_redrive_of_one_error(driver: EngineDriver) -> None:
    for number in range(5):
        await bury(driver, f"j{number}", "x", tags=["even"] if number % 2 == 0 else [])
    preview = await driver.engine.sweeps.preview(sweep("redrive", error="x", limit=3), 10)
    assert (preview.matched, preview.is_complete, len(preview.samples)) == (3, False, 3)
    assert await driver.engine.sweeps.run(sweep("redrive", error="x", limit=2)) == 2
    assert await driver.engine.sweeps.run(sweep("purge", error="x", tag="even")) in {1, 2, 3}
    assert {job_id for job_id in await ids(driver, JobState.DEAD) if int(job_id[1]) % 2 == 0} == set()


async def test_jobs_that_died_before_0_2_count_as_dead_by_then(driver: EngineDriver) -> None:
    await bury(driver, "old")
    raw = driver.server.command("HGET", f"{KEY}:pool", "old")
    length = int.from_bytes(raw[22:26], "little")
    extra = json.loads(raw[26 : 26 + length])
    del extra["da"]
    text = json.dumps(extra).encode()
    driver.server.command(
        "HSET", f"{KEY}:pool", "old", raw[:22] + len(text).to_bytes(4, "little") + text + raw[26 + length :]
    )
    now_ms = await driver.engine.sweeps.now_ms(TOPIC)
    assert await driver.engine.sweeps.run(sweep("redrive", cutoff_ms=now_ms - 60_000)) == 0  # it was put later
    early = {"ids": [{"topic": TOPIC, "id": "old"}], "cutoff": "2020-01-01T00:00:00Z"}
    assert (await cancel(driver, early)).matched == 0
    late = {**early, "cutoff": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()}
    assert (await cancel(driver, late, dry_run=True)).was == {JobState.DEAD: 1}
    assert await driver.engine.sweeps.run(sweep("redrive", cutoff_ms=now_ms)) == 1


async def test_a_job_that_cannot_be_read_is_left_by_a_cutoff(driver: EngineDriver) -> None:
    await bury(driver, "a")
    await bury(driver, "b")
    driver.server.command("HSET", f"{KEY}:pool", "a", "short")
    now_ms = await driver.engine.sweeps.now_ms(TOPIC)
    assert await driver.engine.sweeps.run(sweep("purge", state=JobState.DEAD, cutoff_ms=now_ms)) == 1


async def test_the_scripts_count_what_a_named_sweep_has_done(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"j{number}", delay=60) for number in range(100)])
    steps: list[int] = []

    def on_step(count: int) -> bool:
        steps.append(count)
        return len(steps) < 3

    pace = Pace(jobs=30, request="purge/x", kept_ms=60_000, on_step=on_step)
    assert await driver.engine.sweeps.run(sweep("purge"), pace) == 90
    assert steps == [30, 30, 30]
    assert driver.server.command("HGET", "deferd:{0}:bulk/purge/x", "done") == b"90"
    assert 0 < driver.server.command("PTTL", "deferd:{0}:bulk/purge/x") <= 60_000


async def test_the_samples_of_a_purge_by_tag_have_their_own_states(driver: EngineDriver) -> None:
    await bury(driver, "dead", tags=["x"])
    await driver.put("held", tags=["x"])
    await driver.pop()
    await driver.put("late", tags=["x"], delay=60)
    await driver.put("now", tags=["x"])
    preview = await driver.engine.sweeps.preview(sweep("purge", tag="x"), 10)
    expected = {"dead": JobState.DEAD, "held": JobState.RESERVED, "late": JobState.DELAYED, "now": JobState.READY}
    assert dict(preview.samples) == expected
