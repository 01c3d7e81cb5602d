"""How both clients end deliveries: snoozes, finishes with jobs that follow, and what a lost response does to those."""

from __future__ import annotations

from deferd import AsyncClient, Job
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess


async def test_a_finish_without_response_is_repeated_and_puts_once(shared_service: ServiceProcess, topic: str) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            await client.put(topic, id="a")
            [held] = await client.pop(topic)
            proxy.lose_responses()
            await client.finish(held, put=[{"topic": topic, "body": 1}])
            jobs: list[Job] = [job async for job in client.jobs(topic)]
            assert [job.body for job in jobs] == [1]
