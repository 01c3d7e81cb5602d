"""Calls that an earlier request may have executed: no later error denies that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from deferd import AsyncClient, JobRef, NoAnswer, UnexpectedAnswer
from tests.acceptance.client.joining import joined
from tests.acceptance.client.lossy_proxy import LossyProxy, lossy_proxy
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def proxy(shared_service: ServiceProcess) -> Iterator[LossyProxy]:
    with lossy_proxy(shared_service.url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: LossyProxy) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(proxy.url, timeout=5, retry_for=3) as client:
        yield client


async def test_after_a_lost_batch_a_refusal_of_its_calls_is_no_answer(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    """The jobs are stored, so an error must not say that they are not: neither 429 nor Unreachable."""

    def fault() -> None:
        proxy.lose_responses()
        for _ in range(2):
            proxy.respond(429, "retry-after: 60", sent=False)

    calls = [client.put(topic, n, id=f"j{n}") for n in range(2)]
    outcomes = await joined(proxy, client, calls, client.put(topic), fault)
    assert [NoAnswer] * 2 == [type(one) for one in outcomes]
    assert all("may have been executed" in str(one) for one in outcomes)
    assert {"j0", "j1"} <= {job.id async for job in client.jobs(topic)}


async def test_a_put_whose_stored_job_cannot_be_read_is_no_answer(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    proxy.lose_responses()
    proxy.forward()
    proxy.respond(429, "retry-after: 60", sent=False)
    with pytest.raises(NoAnswer, match="may have been executed"):
        await client.put(topic, id="a")
    assert (await client.get(topic, "a")).id == "a"


async def test_a_finish_without_a_receipt_is_not_sent_again_after_a_response_that_says_nothing(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    for n in range(3):
        await client.put(topic, id=f"j{n}")
    await client.pop(topic, count=3)
    calls = [client.finish(JobRef(topic, f"j{n}")) for n in (1, 2)]
    said = b'{"results": [{"id": "j1"}, {"id": "j2", "status": 200}]}'
    before = len(proxy.heads)
    outcomes = await joined(
        proxy, client, calls, client.finish(JobRef(topic, "j0")), lambda: proxy.respond(200, sent=True, body=said)
    )
    assert [type(one) for one in outcomes] == [UnexpectedAnswer, UnexpectedAnswer]
    assert len(proxy.heads) == before + 2
