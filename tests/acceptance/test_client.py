"""The client against a real service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deferd.client import AsyncClient, CallRefused, NoAnswer
from deferd.model import FinishItem, PutJob
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
async def client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client


async def test_jobs_go_round_in_batches(client: AsyncClient, topic: str) -> None:
    jobs = [{"topic": topic, "id": f"j{number}", "body": {"n": number}} for number in range(1500)]
    put = await client.put_many(jobs)
    assert [result.id for result in put] == [f"j{number}" for number in range(1500)]
    assert {result.status for result in put} == {201}
    popped = [*await client.pop(topic, count=1000), *await client.pop(topic, count=1000)]
    assert [delivery.body["n"] for delivery in popped] == list(range(1500))
    finished = await client.finish_many(
        topic, [FinishItem(id=delivery.id, receipt=delivery.receipt) for delivery in popped]
    )
    assert {result.status for result in finished} == {200}
    assert await client.pop(topic, wait=0) == []


async def test_a_job_goes_round_alone(client: AsyncClient, topic: str) -> None:
    put = await client.put({"topic": topic, "id": "a", "body": {"n": 1}, "retain": 60})
    assert (put.topic, put.id, put.state, put.body) == (topic, "a", "ready", {"n": 1})
    [delivery] = await client.pop(topic)
    await client.finish(delivery, result=["done"])
    kept = await client.put(PutJob(topic=topic, id="a", on_conflict="keep"))
    assert (kept.state, kept.result) == ("finished", ["done"])


async def test_a_put_of_a_taken_id_is_refused_kept_or_replaced(client: AsyncClient, topic: str) -> None:
    await client.put({"topic": topic, "id": "a", "body": "old"})
    with pytest.raises(CallRefused) as refused:
        await client.put({"topic": topic, "id": "a", "body": "new"})
    assert (refused.value.status, refused.value.code) == (409, "job_exists")
    assert (await client.put({"topic": topic, "id": "a", "body": "new", "on_conflict": "keep"})).body == "old"
    assert (await client.put({"topic": topic, "id": "a", "body": "new", "on_conflict": "replace"})).body == "new"


async def test_a_finish_of_a_delivery_that_is_over_is_refused(client: AsyncClient, topic: str) -> None:
    await client.put({"topic": topic})
    [first] = await client.pop(topic, ttr=0.1)
    [second] = await client.pop(topic, wait=5)
    with pytest.raises(CallRefused) as refused:
        await client.finish(first)
    assert (refused.value.status, refused.value.code) == (409, "receipt_stale")
    await client.finish(second)


async def test_a_purge_removes_and_counts_all_jobs(client: AsyncClient, topic: str) -> None:
    await client.put_many([{"topic": topic, "delay": delay} for delay in (0, 0, 60)])
    await client.pop(topic)
    assert await client.purge(topic) == 3
    with pytest.raises(CallRefused) as refused:
        await client.purge(topic)
    assert (refused.value.status, refused.value.code) == (404, "topic_not_found")


async def test_each_job_of_a_batch_has_its_own_answer(client: AsyncClient, topic: str) -> None:
    put = await client.put_many([{"topic": topic, "id": "a"}, {"topic": topic, "id": "a"}])
    assert [(result.status, result.code) for result in put] == [(201, None), (409, "job_exists")]


async def test_a_refusal_carries_its_status_and_code(client: AsyncClient) -> None:
    with pytest.raises(CallRefused) as refused:
        await client.put_many([{"topic": "no topic"}])
    assert (refused.value.status, refused.value.code) == (422, "validation")


async def test_a_service_that_is_not_there_gives_no_answer() -> None:
    async with AsyncClient("http://127.0.0.1:9", timeout=2) as client:
        with pytest.raises(NoAnswer):
            await client.pop("orders", wait=0)
