"""A finish that is repeated, because its response was lost, finds what the first one did."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.errors import JobNotFound, ReceiptStale
from deferd.contract.model import FinishItem, PutJob
from deferd.engine.record import ANY_RECEIPT, JobRecord, Receipt
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs


async def hold(driver: EngineDriver, **fields: Any) -> JobRecord:
    await driver.put(body="held", **fields)
    return await driver.pop_one()


async def follow(driver: EngineDriver, **fields: Any) -> None:
    await driver.puts.put(job(**({"body": "next", "on_conflict": "replace", "if_reserved": "after"} | fields)))


async def finish(driver: EngineDriver, held: JobRecord) -> None:
    await driver.queue.finish(TOPIC, "a", held.receipt)


async def finish_in_a_batch(driver: EngineDriver, held: JobRecord) -> None:
    [result] = await driver.queue.finish_many(TOPIC, [FinishItem(id="a", receipt=str(held.receipt))])
    if result.code is not None:
        raise AssertionError(result.code)


async def finish_and_put(driver: EngineDriver, held: JobRecord) -> None:
    await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job("chained", on_conflict="reject")])


FINISHES = pytest.mark.parametrize("again", [finish, finish_in_a_batch, finish_and_put])


FOLLOW_UPS: list[dict[str, Any]] = [{}, {"on_conflict": "append"}, {"delay": 600, "tags": ["t"]}]


@FINISHES
@pytest.mark.parametrize("is_popped", [False, True])
async def test_it_succeeds_when_the_follow_up_has_taken_the_place(
    driver: EngineDriver, again: Any, is_popped: bool
) -> None:
    for fields in FOLLOW_UPS:
        await check_that_it_succeeds(driver, again, fields, is_popped=is_popped)
        await purge_jobs(driver.engine, TOPIC)


async def check_that_it_succeeds(driver: EngineDriver, again: Any, fields: dict[str, Any], *, is_popped: bool) -> None:
    held = await hold(driver, retain=60)
    await follow(driver, **fields)
    await again(driver, held)
    if is_popped:
        driver.move_clock(600)
        await driver.run_timer()
        popped = {one.id: one for one in await driver.pop(2)}["a"]
    tally = driver.server.command("HGETALL", f"{KEY}:tally")
    before = await driver.queue.get(TOPIC, "a")
    for _ in range(2):
        await again(driver, held)
    assert await driver.queue.get(TOPIC, "a") == before
    assert driver.server.command("HGETALL", f"{KEY}:tally") == tally
    if is_popped:
        await finish(driver, popped)
        with pytest.raises(JobNotFound):
            await finish(driver, held)


@pytest.mark.parametrize("follows", [False, True])
async def test_it_succeeds_within_the_same_batch(driver: EngineDriver, follows: bool) -> None:
    held = await hold(driver, retain=60)
    if follows:
        await follow(driver)
    receipts = (held.receipt, held.receipt, Receipt(held.nonce + 1, 1), None)
    items = [FinishItem(id="a", receipt=None if receipt is None else str(receipt)) for receipt in receipts]
    results = await driver.queue.finish_many(TOPIC, items)
    assert [result.code for result in results] == [None, None, "receipt_stale", "receipt_stale"]
    await driver.run_timer()
    assert await driver.counts() == ({"ready": 1} if follows else {"finished": 1})


@FINISHES
async def test_it_succeeds_when_the_finish_put_a_job_with_the_same_id(driver: EngineDriver, again: Any) -> None:
    for fields in ({}, {"delay": 5}, {"on_conflict": "append"}):
        held = await hold(driver)
        [result] = await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job(body="once more", **fields)])
        assert result.status == 201
        before = await driver.queue.get(TOPIC, "a")
        await again(driver, held)
        assert await driver.queue.get(TOPIC, "a") == before
        assert await driver.counts() == ({"delayed": 1} if "delay" in fields else {"ready": 1})
        assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
        await driver.cancels.cancel(TOPIC, "a")


async def test_it_succeeds_when_the_finish_replaced_the_kept_job(driver: EngineDriver) -> None:
    held = await hold(driver, retain=60)
    again = job(body="once more", conflict_with="live")
    for _ in range(2):
        await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [again])
    assert (await driver.pop_one()).body == b'"once more"'


async def test_other_receipts_stay_stale(driver: EngineDriver) -> None:
    first = await hold(driver)
    await driver.deliveries.release(TOPIC, "a", first.receipt, delay_ms=0)
    await driver.run_timer()
    held = await driver.pop_one()
    await follow(driver)
    await finish(driver, held)
    nonce, attempt = held.receipt
    for receipt in (first.receipt, Receipt(nonce, attempt + 1), Receipt(nonce + 1, attempt), ANY_RECEIPT):
        with pytest.raises(ReceiptStale):
            await driver.queue.finish(TOPIC, "a", receipt)
    for verb in (driver.deliveries.touch, driver.deliveries.bury, driver.deliveries.release):
        with pytest.raises(ReceiptStale):
            await verb(TOPIC, "a", held.receipt)


async def test_a_delivery_that_did_not_finish_the_job_stays_stale(driver: EngineDriver) -> None:
    held = await hold(driver)
    await follow(driver)
    await driver.deliveries.bury(TOPIC, "a", held.receipt)
    with pytest.raises(ReceiptStale):
        await finish(driver, held)


async def test_a_put_in_the_place_of_the_follow_up_forgets_it(driver: EngineDriver) -> None:
    held = await hold(driver)
    await follow(driver)
    await finish(driver, held)
    await driver.put(body="other", on_conflict="replace")
    with pytest.raises(ReceiptStale):
        await finish(driver, held)


async def test_a_plain_job_remembers_nothing(driver: EngineDriver) -> None:
    held = await hold(driver)
    await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job("b", body=1)])
    await driver.puts.put_many([PutJob(topic=TOPIC, id="c", body=1)])
    b, c = (driver.server.command("HGET", f"{KEY}:pool", job_id) for job_id in "bc")
    assert len(b) == len(c) == 26 + 1


async def test_an_unreadable_record_fails_no_other_finish(driver: EngineDriver) -> None:
    held = await hold(driver)
    await driver.put("b")
    other = await driver.pop_one()
    driver.server.command("HSET", f"{KEY}:pool", "a", b"\0" * 22 + b'\x03\0\0\0{"p' + b"null")
    driver.server.command("ZREM", f"{KEY}:reserved", "a")
    items = [FinishItem(id=one.id, receipt=str(one.receipt)) for one in (held, other)]
    assert [result.code for result in await driver.queue.finish_many(TOPIC, items)] == ["receipt_stale", None]
