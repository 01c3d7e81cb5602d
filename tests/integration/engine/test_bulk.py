"""The largest calls, which are sent to the store in several steps."""

from __future__ import annotations

import asyncio

from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import FinishItem, JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.store.connection import connect
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S

TOPIC = "bulk"
IDS = [f"j{n:04d}" for n in range(limits.BATCH_MAX)]


async def test_an_id_that_occurs_twice_in_a_batch_is_put_once(engine: Engine) -> None:
    batch = [PutJob(topic=TOPIC, id=job_id) for job_id in [*IDS[:-1], IDS[0]]]

    put = await engine.puts.put_many(batch)

    assert (201, 409) == (put[0].status, put[-1].status)


async def test_many_large_calls_at_the_same_time_all_complete(engine: Engine) -> None:
    topics = [f"{TOPIC}{n}" for n in range(4)]
    await asyncio.gather(
        *(engine.puts.put_many([PutJob(topic=topic, id=job_id) for job_id in IDS]) for topic in topics)
    )
    pops = await asyncio.gather(*(engine.dispatcher.pop([topic], count=limits.POP_COUNT_MAX) for topic in topics))
    assert [IDS] * len(topics) == [[job.id for job in jobs] for jobs in pops]


async def test_jobs_that_a_failing_store_did_not_confirm_have_status_503(server: StoreServer) -> None:
    """Jobs before the failure are confirmed; whether later ones were stored is unknown."""
    store = await connect(server.url, timeout_s=0.5)
    engine = Engine(store)
    await engine.puts.put_many([PutJob(topic=TOPIC, id=job_id) for job_id in IDS])
    popped = await engine.dispatcher.pop([TOPIC], count=limits.POP_COUNT_MAX)
    finishing = asyncio.ensure_future(
        engine.queue.finish_many(TOPIC, [FinishItem(id=job.id, receipt=str(job.receipt)) for job in popped])
    )
    async with asyncio.timeout(10):
        while (await engine.topics.get(TOPIC)).counts[JobState.RESERVED] == len(IDS):
            pass
    server.pause()
    try:
        results = await finishing
    finally:
        server.unpause()
        await store.close()
    statuses = [result.status for result in results]
    assert IDS == [result.id for result in results]
    assert 200 == statuses[0]
    assert statuses == sorted(statuses)
    assert set(statuses) <= {200, 503}


async def test_bulk_calls_to_a_store_that_hangs_fail_together(server: StoreServer) -> None:
    """Their waits must not add up: each call ends within the store's time-out."""
    store = await connect(server.url, timeout_s=0.5)
    engine = Engine(store)
    await engine.ping()
    server.pause()
    began = asyncio.get_running_loop().time()
    try:
        responses = await asyncio.gather(
            *(engine.puts.put_many([PutJob(topic=TOPIC, id=job_id) for job_id in IDS]) for _ in range(12)),
            *(engine.queue.finish_many(TOPIC, [FinishItem(id=job_id) for job_id in IDS]) for _ in range(4)),
            *(engine.queue.pop(TOPIC, [PopRequest(500)]) for _ in range(4)),
            return_exceptions=True,
        )
        took_s = asyncio.get_running_loop().time() - began
    finally:
        server.unpause()
    assert {StoreUnavailable} == {type(response) for response in responses}
    assert took_s < BUSY_S  # one after the other, they take 10 s
    assert (await engine.puts.put_many([PutJob(topic=TOPIC, id="after")]))[0].status == 201
    await store.close()
