"""Calls that share calls of the store do not wait for those among them that must ask the shelf."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from deferd.contract.errors import JobNotFound
from deferd.contract.model import CancelItem, FinishItem, PutJob
from deferd.engine.engine import Engine
from deferd.engine.job_batches import AT_ONCE, FROM_JOBS
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, Receipt
from deferd.engine.script_arguments import encode_finish
from tests.integration.engine.engine_driver import TOPIC
from tests.shelving import Shelved
from tests.waiting import BUSY_S

CALLS: dict[str, Callable[[Engine, str, Receipt], Awaitable[object]]] = {
    "finish": lambda engine, job_id, receipt: engine.queue.finish(TOPIC, job_id, receipt),
    "touch": lambda engine, job_id, receipt: engine.deliveries.touch(TOPIC, job_id, receipt),
    "release": lambda engine, job_id, receipt: engine.deliveries.release(TOPIC, job_id, receipt),
    "bury": lambda engine, job_id, receipt: engine.deliveries.bury(TOPIC, job_id, receipt),
    "cancel": lambda engine, job_id, _: engine.cancels.cancel(TOPIC, job_id),
    "durable cancel": lambda engine, job_id, _: engine.cancels.cancel_durably(TOPIC, job_id, "memory"),
}


@pytest.fixture
async def receipt(shelved: Shelved) -> Receipt:
    """Of a job that is held."""
    await shelved.engine.puts.put(PutJob(topic=TOPIC, id="held"))
    [[job]] = (await shelved.engine.queue.pop(TOPIC, [PopRequest(1)])).jobs
    return job.receipt


@pytest.fixture
def responds(shelved: Shelved, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """When the shelf responds again."""
    responds, load = asyncio.Event(), shelved.mover.load

    async def load_later(*args: object) -> int:
        await responds.wait()
        return await load(*args)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(shelved.mover, "load", load_later)
    for module in ("queue", "deliveries"):
        monkeypatch.setattr(f"deferd.engine.{module}.OTHERS_WAIT_S", BUSY_S)
    return responds


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_on_a_job_in_the_store_does_not_wait_for_one_that_asks_the_shelf(
    shelved: Shelved,
    receipt: Receipt,
    responds: asyncio.Event,
    call: Callable[[Engine, str, Receipt], Awaitable[object]],
) -> None:
    gone = asyncio.ensure_future(call(shelved.engine, "gone", ANY_RECEIPT))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):
        await call(shelved.engine, "held", receipt)
    assert not gone.done()
    responds.set()
    with pytest.raises(JobNotFound):
        await gone


async def test_nor_does_a_call_of_a_caller_without_a_task(
    shelved: Shelved, receipt: Receipt, responds: asyncio.Event
) -> None:
    results: list[tuple[str, object]] = []
    for job_id, of_job in (("gone", ANY_RECEIPT), ("held", receipt)):
        finish = encode_finish(job_id, of_job, None)
        shelved.engine.queue.add_finish(TOPIC, finish, lambda *result, name=job_id: results.append((name, result[0])))
    await asyncio.sleep(0.2)
    assert results == [("held", 0)]
    responds.set()
    await asyncio.sleep(0.2)
    assert [name for name, _ in results] == ["held", "gone"]


async def test_a_put_without_an_id_does_not_wait_for_one_that_asks_the_shelf(
    shelved: Shelved, responds: asyncio.Event
) -> None:
    shelved.engine.shelf.note_shelved(TOPIC, 1)
    asking = asyncio.create_task(shelved.engine.puts.put(PutJob(topic=TOPIC, id="x")))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):
        await shelved.engine.puts.put(PutJob(topic=TOPIC))
    assert not asking.done()
    responds.set()
    await asking


@pytest.mark.parametrize("verb", ["cancel", "finish"])
async def test_batches_do_not_wait_for_those_that_ask_the_shelf(
    shelved: Shelved, responds: asyncio.Event, verb: str
) -> None:
    """A bulk call holds one of two slots."""
    engine, gone = shelved.engine, [f"gone{number}" for number in range(FROM_JOBS + 1)]

    async def ask() -> list[int]:
        if verb == "cancel":
            return [one.status for one in await engine.cancels.cancel_many(TOPIC, [CancelItem(id=one) for one in gone])]
        return [one.status for one in await engine.queue.finish_many(TOPIC, [FinishItem(id=one) for one in gone])]

    asking = [asyncio.create_task(ask()) for _ in range(AT_ONCE)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):
        await engine.puts.put_many([PutJob(topic=TOPIC, id=f"j{number}") for number in range(FROM_JOBS + 1)])
    assert not any(one.done() for one in asking)
    responds.set()
    assert await asyncio.gather(*asking) == [[404] * len(gone)] * AT_ONCE
