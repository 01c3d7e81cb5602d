"""An audit looks at the shelf, too."""

from __future__ import annotations

import time

import pytest

from deferd.contract.errors import JobExists, StoreUnavailable
from deferd.contract.model import ChangeJob, JobState, PutJob, TopicSettings
from deferd.contract.operations.audits import FindingKind
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import KEY, TOPIC
from tests.shelving import Shelved

FAR_MS = 100_000_000


async def put(shelved: Shelved, *ids: str) -> None:
    for job_id in ids:
        await shelved.put(job_id, int(time.time() * 1000) + FAR_MS, ["x"])
    await shelved.move_out()


async def test_jobs_on_the_shelf_are_counted_and_consistent(shelved: Shelved) -> None:
    await put(shelved, "a", "b", "c")
    report = await shelved.engine.consistency.audit_topic(TOPIC)
    assert (report.clean, report.checked, report.counts[JobState.DELAYED]) == (True, 3, 3)
    assert report.sums["live"] == 3
    assert (await shelved.engine.consistency.audit_store()).clean


async def test_a_job_that_is_in_both_places_stays_in_the_store(shelved: Shelved, store: Store) -> None:
    await put(shelved, "a", "b")
    unaware = Engine(store)
    await unaware.puts.put(PutJob(topic=TOPIC, id="a", delay=9, body="unaware"))
    await unaware.close()
    audit = shelved.engine.consistency.audit_topic
    assert (await audit(TOPIC)).findings.counts == {FindingKind.ON_SHELF_TOO: 1}
    assert (await audit(TOPIC, repair=True)).findings.counts[FindingKind.ON_SHELF_TOO] == 1
    assert [job.id for job in shelved.rows.jobs(TOPIC, ["a", "b"])] == ["b"]
    assert (await shelved.engine.queue.get(TOPIC, "a")).body == b'"unaware"'
    assert FindingKind.ON_SHELF_TOO not in (await audit(TOPIC, repair=True)).findings.counts
    assert (await audit(TOPIC)).clean


async def test_a_wrong_number_is_named_and_repaired(shelved: Shelved, store: Store) -> None:
    await put(shelved, "a", "b")
    await store.call("HSET", f"{KEY}:shelf", "jobs", 7)
    audit = shelved.engine.consistency.audit_topic
    found = await audit(TOPIC, repair=True)
    [finding] = [one for one in found.findings.examples if one.kind is FindingKind.SHELF_MISCOUNTED]
    assert finding.detail == "7 are counted, 2 are there"
    assert (await audit(TOPIC)).clean


async def test_jobs_that_are_counted_where_there_is_no_shelf_are_named(shelved: Shelved, store: Store) -> None:
    """Its folder was deleted."""
    await put(shelved, "a", "b")
    without = Engine(store)
    found = await without.consistency.audit_topic(TOPIC)
    assert found.findings.counts == {FindingKind.SHELF_MISCOUNTED: 1}
    assert found.findings.examples[0].detail == "2 are counted, 0 are there"
    await without.consistency.audit_topic(TOPIC, repair=True)
    assert (await without.topics.get(TOPIC)).counts[JobState.DELAYED] == 0
    assert (await without.consistency.audit_topic(TOPIC)).clean
    await without.close()


async def test_an_audit_says_when_the_shelf_cannot_be_read(shelved: Shelved, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(shelved, "a")

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("the shelf cannot be reached")

    monkeypatch.setattr(shelved.mover, "page", fails)
    report = await shelved.engine.consistency.audit_topic(TOPIC)
    assert (report.clean, report.unchecked) == (False, "the jobs on the shelf: the shelf cannot be reached")


async def test_a_shelf_that_the_store_has_forgotten_is_asked_again_after_a_repair(
    shelved: Shelved, store: Store
) -> None:
    """For the ids of puts, too."""
    await put(shelved, "a")
    await store.call("DEL", f"{KEY}:shelf")
    await shelved.engine.consistency.audit_topic(TOPIC, repair=True)
    with pytest.raises(JobExists):
        await put(shelved, "a")
    assert (await shelved.engine.consistency.audit_topic(TOPIC)).clean


async def test_groups_count_their_jobs_on_the_shelf(shelved: Shelved, store: Store) -> None:
    """Also a job that keeps the place of its group there: nothing else of that is handed out."""
    engine, audit = shelved.engine, shelved.engine.consistency.audit_topic
    await engine.topics.set(TOPIC, TopicSettings.model_validate({"limits": {"per_group": {"max_in_flight": 1}}}))
    for job_id in ("first", "second"):
        await engine.puts.put(PutJob(topic=TOPIC, id=job_id, group="g"))
    await engine.puts.put(PutJob(topic=TOPIC, id="far", group="g", priority=5, delay=FAR_MS / 1000))
    header_like_a_priority = {"pr": "x"}
    await engine.puts.put(PutJob(topic=TOPIC, id="plain", headers=header_like_a_priority, delay=FAR_MS / 1000))
    assert await popped(engine) == ["first"]
    await engine.deliveries.release(TOPIC, "first", ANY_RECEIPT, delay_ms=FAR_MS)
    await shelved.move_out()
    assert {job.id for job in shelved.rows.jobs(TOPIC, ["first", "far"])} == {"first", "far"}
    assert await store.call("HGET", f"{KEY}:groups", "g") == b"3 0 0 first"
    assert await popped(engine) == []
    assert (await audit(TOPIC)).clean
    await store.call("HSET", f"{KEY}:groups", "g", "1 0 2 gone")
    assert (await audit(TOPIC, repair=True)).findings.counts == {FindingKind.GROUP_WRONG: 1}
    assert await store.call("HGET", f"{KEY}:groups", "g") == b"3 0 0 "
    assert await popped(engine) == ["second"]
    await engine.cancels.cancel(TOPIC, "far")
    await engine.queue.change(TOPIC, "first", ChangeJob(delay=0))
    await engine.queue.finish(TOPIC, "second", ANY_RECEIPT)
    assert await popped(engine) == ["first"]
    await engine.queue.finish(TOPIC, "first", ANY_RECEIPT)
    assert not await store.call("EXISTS", f"{KEY}:groups")
    assert (await audit(TOPIC)).clean


async def popped(engine: Engine) -> list[str]:
    return [job.id for job in (await engine.queue.pop(TOPIC, [PopRequest(10)])).jobs[0]]
