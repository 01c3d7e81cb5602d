"""The options of a put that decide what it finds under its id, with both clients and on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from deferd import AsyncClient, Client, JobExists, PutResult
from deferd.contract.model import JobState
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def client(shared_service: ServiceProcess) -> Iterator[Client]:
    with Client(shared_service.url) as client:
        yield client


@pytest.fixture
async def async_client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client


def test_a_conflict_says_by_which_state_and_until_when(client: Client, topic: str) -> None:
    put = client.put(topic, id="a", unique_for=timedelta(minutes=1))
    assert put.unique_for == 60
    [job] = client.pop(topic, wait=0)
    client.finish(job)
    with pytest.raises(JobExists) as taken:
        client.put(topic, id="a", on_conflict="keep")
    assert taken.value.state is JobState.FINISHED
    assert taken.value.until is not None
    assert taken.value.until > datetime.now(UTC)
    assert client.put(topic, id="a", conflict_with="live").state is JobState.READY


def test_the_results_of_a_batch_have_states(client: Client, topic: str) -> None:
    client.put(topic, id="a", delay=60)
    jobs = [{"topic": topic, "id": job_id, "on_conflict": "keep"} for job_id in ("a", "b")]
    assert list(client.put_many(jobs)) == [
        PutResult(topic=topic, id="a", status=200, durability="fsync", state=JobState.DELAYED),
        PutResult(topic=topic, id="b", status=201, durability="fsync"),
    ]


async def test_puts_that_share_a_request_get_the_same_errors(async_client: AsyncClient, topic: str) -> None:
    await async_client.put(topic, id="a", delay=60)
    results = await asyncio.gather(*(async_client.put(topic, id="a") for _ in range(20)), return_exceptions=True)
    assert {result.state for result in results if isinstance(result, JobExists)} == {JobState.DELAYED}


def test_a_follow_up_is_put_shown_and_kept(client: Client, shared_service: ServiceProcess, topic: str) -> None:
    shell = Shell(shared_service.url)
    client.put(topic, id="a")
    client.pop(topic, wait=0)
    put = client.put(topic, [1], id="a", on_conflict="replace", if_reserved="after")
    assert put.is_follow_up
    shown = client.get(topic, "a").followed_by
    assert shown is not None
    assert shown.body == [1]
    [result] = client.put_many([{"topic": topic, "id": "a", "on_conflict": "keep", "if_reserved": "after"}])
    assert result.is_follow_up
    assert "after the one" in shell.good(
        "put", topic, "2", "--id", "a", "--on-conflict", "replace", "--if-reserved", "after"
    )
    assert "was reserved" in shell.good("cancel", topic, "a", "--keep-follow-up")
    assert client.cancel(topic, "a", follow_up="keep").was is JobState.DELAYED


async def test_appends_of_many_tasks_make_one_job(async_client: AsyncClient, topic: str) -> None:
    puts = (async_client.put(topic, number, id="a", on_conflict="append", delay=30) for number in range(50))
    jobs = await asyncio.gather(*puts)
    assert sorted(job.items for job in jobs) == [*range(1, 51)]
    assert sorted((await async_client.get(topic, "a")).body) == [*range(50)]
