"""How both clients end deliveries: snoozes, finishes with jobs that follow, and what a lost response does to those."""

from __future__ import annotations

from datetime import timedelta

from deferd import AsyncClient, Client, Job
from deferd.contract.model import AttemptEnd
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess


def test_the_blocking_client_snoozes_and_finishes_with_puts(shared_service: ServiceProcess, topic: str) -> None:
    with Client(shared_service.url) as client:
        client.put(topic, id="a", deadline=timedelta(hours=1), time_limit=60, dead_retain=5, max_attempts=9)
        [held] = client.pop(topic)
        assert (held.deadline, held.time_limit, held.dead_retain) == (3600, 60, 5)
        assert held.deadline_at == held.due_at + timedelta(hours=1)
        client.release(held, delay=0.1, count=False)
        [held] = client.pop(topic)
        assert (held.attempt, held.snoozes, [*held.attempts_log]) == (1, 1, [])
        client.release(held, delay=0, error="no")
        [held] = client.pop(topic, consumer="w1")
        [ended] = held.attempts_log
        assert (ended.attempt, ended.how, ended.by, ended.error) == (1, AttemptEnd.RELEASED, None, "no")
        client.finish(held, put=[{"topic": topic, "id": "b", "delay": timedelta(minutes=1)}])
        assert client.get(topic, "b").state == "delayed"
        changed = client.change(topic, "b", deadline=9, time_limit=timedelta(seconds=8))
        assert (changed.deadline, changed.time_limit) == (9, 8)
        assert client.change(topic, "b", deadline=None).deadline is None


async def test_a_finish_without_response_is_repeated_and_puts_once(shared_service: ServiceProcess, topic: str) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            await client.put(topic, id="a")
            [held] = await client.pop(topic)
            proxy.lose_responses()
            await client.finish(held, put=[{"topic": topic, "body": 1}])
            jobs: list[Job] = [job async for job in client.jobs(topic)]
            assert [job.body for job in jobs] == [1]
