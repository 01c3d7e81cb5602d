"""Waits for what becomes of a job: each script that ends one wakes them, and lost messages only delay them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.errors import JobNotFound, StoreUnavailable
from deferd.contract.model import CancelItem, FinishItem, JobState, PutJob
from deferd.engine import job_waits, metrics
from deferd.engine.engine import Engine
from deferd.engine.job_waits import Waited
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S, until

End = Callable[[EngineDriver], Awaitable[object]]


@pytest.fixture(autouse=True)
def only_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait ends because its job is checked."""
    monkeypatch.setattr(job_waits, "_CHECK_EVERY_S", 3600.0)


@pytest.fixture
async def driver(store: Store, server: StoreServer) -> AsyncIterator[EngineDriver]:
    """A started engine whose clock the test moves."""
    engine = Engine(store, movable_clock=True, dead_retention_ms=3_600_000)
    await engine.start()
    yield EngineDriver(engine, server)
    await engine.close()


async def advance(driver: EngineDriver, seconds: float) -> None:
    assert driver.engine.clock is not None
    await driver.engine.clock.advance(round(seconds * 1000))


async def begin(engine: Engine, job_id: str = "a", **options: Any) -> asyncio.Task[Waited]:
    """A call that waits for a job by now."""
    before = waits()
    call = asyncio.create_task(engine.waits.wait(TOPIC, job_id, 60_000, **options))
    await until(lambda: call.done() or waits() > before, "the call waits")
    return call


def waits() -> int:
    """How many calls wait for a job, which they have read."""
    value: float = metrics.JOB_WAITS._value.get()
    return round(value)


async def result_of(call: asyncio.Task[Waited]) -> Waited:
    async with asyncio.timeout(BUSY_S):
        return await call


def raw(driver: EngineDriver, job_id: str = "a") -> bytes:
    found: bytes = driver.server.command("HGET", f"{KEY}:pool", job_id)
    return found


def written(driver: EngineDriver) -> int:
    """How often a field of a hash was written."""
    calls: int = driver.server.command("INFO", "commandstats")["cmdstat_hset"]["calls"]
    return calls


def is_noted(driver: EngineDriver) -> bool:
    return b'"wt":1' in raw(driver) and driver.server.command("EXISTS", f"{KEY}:ends") == 1


async def cancel_selected(driver: EngineDriver) -> None:
    await driver.engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "x"}}))


async def finish_with_follow_up(driver: EngineDriver) -> None:
    await driver.put("a", body="next", if_reserved="after", on_conflict="replace")
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)


async def paused_for(driver: EngineDriver, seconds: float) -> None:
    await driver.topics.pause(TOPIC)
    await advance(driver, seconds)


ENDS: dict[str, tuple[dict[str, Any], bool, End, str]] = {
    "finish": ({}, True, lambda d: d.queue.finish(TOPIC, "a", ANY_RECEIPT), "finished"),
    "finish kept": ({"retain": 60}, True, lambda d: d.queue.finish(TOPIC, "a", ANY_RECEIPT, 1), "finished"),
    "finish with a follow-up": ({"retain": 60}, True, finish_with_follow_up, "finished"),
    "finish of many": ({}, True, lambda d: d.queue.finish_many(TOPIC, [FinishItem(id="a")]), "finished"),
    "finish with a put": (
        {},
        True,
        lambda d: d.queue.finish_and_put(TOPIC, "a", ANY_RECEIPT, [job("b")]),
        "finished",
    ),
    "pop that finishes": ({}, False, lambda d: d.queue.pops_and_finishes.pop(TOPIC, 1), "finished"),
    "bury": ({}, True, lambda d: d.deliveries.bury(TOPIC, "a", ANY_RECEIPT), "dead"),
    "bury of a job not kept": ({"dead_retain": 0}, True, lambda d: d.deliveries.bury(TOPIC, "a", ANY_RECEIPT), "dead"),
    "last release": ({"max_attempts": 1}, True, lambda d: d.deliveries.release(TOPIC, "a", ANY_RECEIPT), "dead"),
    "last lease": ({"max_attempts": 1, "ttr": 1}, True, lambda d: advance(d, 2), "dead"),
    "ttl": ({"ttl": 5, "delay": 5}, False, lambda d: paused_for(d, 11), "dead"),
    "deadline": ({"deadline": 5, "ttr": 60}, True, lambda d: advance(d, 6), "dead"),
    "cancel": ({"delay": 60}, False, lambda d: d.cancels.cancel(TOPIC, "a"), "cancelled"),
    "cancel of a held job": ({}, True, lambda d: d.cancels.cancel(TOPIC, "a"), "cancelled"),
    "cancel of many": ({}, False, lambda d: d.cancels.cancel_many(TOPIC, [CancelItem(id="a")]), "cancelled"),
    "cancel of a tag": ({"tags": ["x"], "delay": 60}, False, cancel_selected, "cancelled"),
    "purge": ({}, True, lambda d: purge_jobs(d.engine, TOPIC), "cancelled"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_each_end_wakes_those_who_wait(driver: EngineDriver, name: str) -> None:
    fields, is_held, end, outcome = ENDS[name]
    await driver.put("a", body=["body"], **fields)
    if is_held:
        await driver.pop_one()
    call = await begin(driver.engine)
    assert is_noted(driver)
    await end(driver)
    waited = await result_of(call)
    assert (waited.outcome, waited.job.body) == (outcome, b'["body"]')
    assert driver.engine.waits._waiters == {}


async def test_a_wait_writes_the_record_once_and_only_that_of_a_live_job(driver: EngineDriver) -> None:
    await driver.put("a", delay=60, headers={"h": "1"})
    first = await begin(driver.engine)
    writes = written(driver)
    second = await begin(driver.engine)
    assert written(driver) == writes
    await driver.cancels.cancel(TOPIC, "a")
    assert {(await result_of(call)).outcome for call in (first, second)} == {"cancelled"}
    await driver.put("a")
    await driver.deliveries.bury(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
    dead = raw(driver)
    assert (await driver.engine.waits.wait(TOPIC, "a", 60_000)).outcome == "dead"
    assert raw(driver) == dead
    with pytest.raises(JobNotFound):
        await driver.engine.waits.wait(TOPIC, "b", 60_000)


async def test_only_the_progress_of_a_job_that_somebody_waits_for_is_published(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("a", "b"):
        await driver.put(job_id)
    await driver.pop(2)
    call = await begin(driver.engine, until="progress")
    told: list[str] = []
    on_message = driver.engine.waits.on_message

    def tell(payload: str) -> None:
        told.append(payload)
        on_message(payload)

    monkeypatch.setattr(driver.engine._notifications, "_on_ended", tell)
    await driver.deliveries.touch(TOPIC, "b", ANY_RECEIPT, progress=0.1)
    await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT)
    await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT, progress=0.2)
    assert (await result_of(call)).job.progress == "0.2"
    [(topic, job_id, _, what)] = [payload.split(" ") for payload in told]
    assert (topic, job_id, what) == (TOPIC, "a", "progress")


async def test_a_job_that_was_redriven_at_once_had_ended(driver: EngineDriver) -> None:
    await driver.put("a", body=1)
    await driver.pop_one()
    call = await begin(driver.engine)
    await asyncio.gather(driver.deliveries.bury(TOPIC, "a", ANY_RECEIPT), driver.engine.waits._scripts.command("PING"))
    await redrive_jobs(driver.engine, TOPIC)
    assert (await result_of(call)).outcome == "dead"
    again = await begin(driver.engine)
    assert not again.done()
    await driver.cancels.cancel(TOPIC, "a")
    assert (await result_of(again)).outcome == "cancelled"


async def test_a_message_of_an_earlier_job_with_the_id_does_not_end_a_wait(driver: EngineDriver) -> None:
    await driver.put("a", body=1)
    created = (await driver.queue.get(TOPIC, "a")).created_at_ms
    call = await begin(driver.engine)
    for stale in (f"{TOPIC} a {created - 1} finished", f"{TOPIC} a", "", f"{TOPIC} a x finished", f"{TOPIC} a 1 other"):
        driver.engine.waits.on_message(stale)
    await until(lambda: waits() == 1, "it waits again")
    await driver.cancels.cancel(TOPIC, "a")
    assert (await result_of(call)).outcome == "cancelled"


async def test_a_job_that_was_put_anew_at_once_is_another_one(driver: EngineDriver) -> None:
    await driver.put("a", body="first")
    call = await begin(driver.engine)
    await advance(driver, 1)
    assert await driver.queue.pops_and_finishes.pop(TOPIC, 1)
    await driver.put("a", body="second")
    waited = await result_of(call)
    assert (waited.outcome, waited.job.body) == ("finished", b'"first"')


async def test_a_long_body_is_not_kept_during_a_wait(driver: EngineDriver) -> None:
    body = "x" * job_waits._KEPT_BYTES
    await driver.put("a", body=body)
    await driver.put("b", body=body, retain=60)
    calls = [await begin(driver.engine, job_id) for job_id in ("a", "b")]
    await driver.pop(2)
    for job_id in ("a", "b"):
        await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT)
    gone, kept = [await result_of(call) for call in calls]
    assert (gone.job.body, gone.left_out) == (b"null", len(body) + 2)
    assert (kept.job.body, kept.left_out) == (f'"{body}"'.encode(), 0)


async def test_lost_messages_delay_a_wait_until_the_jobs_are_checked(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.engine._notifications, "_on_ended", lambda _payload: None)
    monkeypatch.setattr(job_waits, "_MESSAGE_WITHIN_S", 0.05)
    for job_id in ("kept", "gone", "live"):
        await driver.put(job_id, retain=60 if job_id == "kept" else 0)
    kept, gone, live = [await begin(driver.engine, job_id) for job_id in ("kept", "gone", "live")]
    held = [popped.id for popped in await driver.pop(2)]
    for job_id in held:
        await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT, result=1)
    driver.engine.waits.on_gap()
    waited = await result_of(kept)
    assert (waited.outcome, waited.job.state, waited.job.result) == ("finished", JobState.FINISHED, b"1")
    with pytest.raises(JobNotFound):
        await result_of(gone)
    assert not live.done()
    live.cancel()


async def test_a_topic_with_damaged_keys_does_not_end_the_checks(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.engine._notifications, "_on_ended", lambda _payload: None)
    await driver.put("a")
    await driver.puts.put(PutJob(topic="other", id="a", retain=60))
    damaged = await begin(driver.engine)
    other = asyncio.create_task(driver.engine.waits.wait("other", "a", 60_000))
    await until(lambda: waits() == 2, "both wait")
    driver.server.command("SET", f"{KEY}:dead", "x")
    await driver.queue.pops_and_finishes.pop("other", 1)
    driver.engine.waits.on_gap()
    assert (await result_of(other)).outcome == "finished"
    assert not damaged.done()
    await driver.engine.ping()


async def test_a_message_may_come_after_a_look_that_has_missed_the_job(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[str] = []
    monkeypatch.setattr(driver.engine._notifications, "_on_ended", later.append)
    await driver.put("a")
    call = await begin(driver.engine)
    await driver.cancels.cancel(TOPIC, "a")
    driver.engine.waits.wake_all()
    await until(lambda: bool(later) and waits() == 0, "it has looked")
    driver.engine.waits.on_message(later[0])
    assert (await result_of(call)).outcome == "cancelled"


async def test_a_check_costs_one_call_for_many_jobs_and_a_wait_none(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(str(number), delay=60) for number in range(600)])
    calls = [await begin(driver.engine, str(number)) for number in range(600)]

    def called(verb: str) -> int:
        return verbs.count(verb)

    verbs: list[str] = []
    run = driver.engine.waits._scripts.run

    async def counted(verb: str, *arguments: Any, **options: Any) -> Any:
        verbs.append(verb)
        return await run(verb, *arguments, **options)

    driver.engine.waits._scripts.run = counted  # type: ignore[method-assign]
    await driver.engine.waits._check_all()
    assert verbs == ["ended"] * 2
    await driver.cancels.cancel(TOPIC, "7")
    assert (await result_of(calls[7])).outcome == "cancelled"
    assert called("watch") == 1
    driver.engine.drain()
    assert {waited.outcome for waited in await asyncio.gather(*calls)} == {None, "cancelled"}


async def test_many_who_wait_for_one_job_share_their_looks(driver: EngineDriver) -> None:
    await driver.put("a", retain=60)
    await driver.pop_one()
    calls = [await begin(driver.engine) for _ in range(50)]
    looks: list[str] = []
    watch = driver.queue.watch

    async def counted(topic: str, job_id: str) -> Any:
        looks.append(job_id)
        return await watch(topic, job_id)

    driver.queue.watch = counted  # type: ignore[method-assign]
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT, result=1)
    assert {waited.job.result for waited in await asyncio.gather(*calls)} == {b"1"}
    assert len(looks) <= 2


async def test_a_drain_ends_all_waits_and_new_ones_do_not_wait(driver: EngineDriver) -> None:
    await driver.put("a")
    call = await begin(driver.engine)
    await driver.pop_one()
    driver.engine.drain()
    waited = await result_of(call)
    assert (waited.outcome, waited.job.state) == (None, JobState.RESERVED)
    async with asyncio.timeout(BUSY_S):
        assert (await driver.engine.waits.wait(TOPIC, "a", 60_000)).outcome is None


async def test_a_wait_fails_when_no_call_is_sent_to_the_store_any_more(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.put("a")
    call = await begin(driver.engine)
    error = StoreUnavailable("the store has another number of shards")

    def refuse() -> None:
        raise error

    monkeypatch.setattr(driver.engine._watch, "admit", refuse)
    driver.engine._on_mismatch(error)
    with pytest.raises(StoreUnavailable, match="another number"):
        await result_of(call)


async def test_a_wait_that_is_cancelled_leaves_nothing(driver: EngineDriver) -> None:
    await driver.put("a")
    call = await begin(driver.engine)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert driver.engine.waits._waiters == {}
