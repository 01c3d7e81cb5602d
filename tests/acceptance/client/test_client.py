"""The client against a real service: what each method does. For its errors see test_client_errors.py."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import deferd
from deferd import (
    AsyncClient,
    Client,
    Delivery,
    InvalidInput,
    JobNotFound,
    JobRef,
    PutJob,
    TopicNotFound,
)
from deferd.contract.model import FinishItem
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def client(shared_service: ServiceProcess) -> Iterator[Client]:
    with Client(shared_service.url) as client:
        yield client


@pytest.fixture
async def async_client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client


def test_due_times_are_numbers_timedeltas_or_aware_datetimes(client: Client, topic: str) -> None:
    assert client.put(topic, delay=1800).due_at - client.put(topic).due_at >= timedelta(minutes=29)
    half_an_hour = client.put(topic, delay=timedelta(minutes=30))
    assert timedelta(minutes=30) == half_an_hour.due_at - half_an_hour.created_at
    at = datetime(2030, 1, 31, 10, 30, tzinfo=UTC) + timedelta(milliseconds=123)
    assert at == client.put(topic, run_at=at).due_at
    assert at == client.put(topic, run_at=at.astimezone()).due_at


def test_a_naive_datetime_is_refused_before_it_is_sent(client: Client, topic: str) -> None:
    naive = datetime(2030, 1, 31, 9, 30)  # noqa: DTZ001 (that is the point)
    with pytest.raises(InvalidInput, match=r"run_at.*zone"):
        client.put(topic, run_at=naive)
    with pytest.raises(InvalidInput, match=r"run_at.*zone"):
        [*client.put_many([{"topic": topic, "run_at": naive}])]
    with pytest.raises(TopicNotFound):
        client.topic(topic)


def test_an_invalid_input_names_field_value_and_limit(client: Client, topic: str) -> None:
    with pytest.raises(InvalidInput, match=r"ttr") as refused:
        client.put(topic, ttr=0.01)
    [field_error] = refused.value.field_errors
    assert (field_error.path, field_error.value) == (("body", "ttr"), 0.01)
    assert "0.1" in field_error.message


def test_a_job_can_be_named_in_place_of_its_delivery(client: Client, topic: str) -> None:
    client.put(topic, id="a")
    client.put(topic, id="b")
    first, _ = client.pop(topic, count=2)
    client.finish(JobRef(topic, "a", first.receipt))
    client.finish(JobRef(topic, "b"))
    with pytest.raises(JobNotFound):
        client.finish(JobRef(topic, "a"))


def test_put_many_sends_batches_as_results_are_consumed(client: Client, topic: str) -> None:
    taken = 0

    def jobs() -> Iterator[PutJob]:
        nonlocal taken
        for number in range(2500):
            taken += 1
            yield PutJob(topic=topic, id=f"j{number}", body=number, delay=0)

    results = client.put_many(jobs())
    assert next(results).id == "j0"
    assert taken == 1000
    rest = [*results]
    assert [f"j{number}" for number in range(1, 2500)] == [result.id for result in rest]
    assert {result.status for result in rest} == {201}
    popped = [delivery for _ in range(3) for delivery in client.pop(topic, count=1000)]
    assert list(range(2500)) == [delivery.body for delivery in popped]
    finished = client.finish_many(
        topic, [*popped[:2000], *(FinishItem(id=j.id, receipt=j.receipt) for j in popped[2000:])]
    )
    assert {result.status for result in finished} == {200}
    assert client.pop(topic, wait=0) == []


async def test_put_many_accepts_an_async_iterator(async_client: AsyncClient, topic: str) -> None:
    async def jobs() -> AsyncIterator[dict[str, object]]:
        for number in range(1001):
            yield {"topic": topic, "body": number, "delay": timedelta(days=1)}

    assert [201] * 1001 == [result.status async for result in async_client.put_many(jobs())]
    assert (await async_client.topic(topic)).counts["delayed"] == 1001


def test_an_invalid_job_in_put_many_is_named_by_its_position(client: Client, topic: str) -> None:
    jobs = [{"topic": topic, "id": f"j{number}"} for number in range(1100)]
    jobs[1050]["id"] = "not an id"
    with pytest.raises(InvalidInput) as refused:
        [*client.put_many(jobs)]
    assert (1050, "id") == refused.value.field_errors[0].path
    assert client.topic(topic).counts["ready"] == 1000


def test_a_batch_that_is_too_large_is_split(client: Client, topic: str) -> None:
    jobs = [{"topic": topic, "id": f"j{number}", "body": "x" * 20_000} for number in range(120)]
    assert [f"j{number}" for number in range(120)] == [result.id for result in client.put_many(jobs)]
    deliveries: list[Delivery] = []
    while len(deliveries) < 120:  # a pop returns at most 1 MiB
        deliveries += client.pop(topic, count=120)
    items = [{"id": job.id, "receipt": job.receipt, "result": job.body} for job in deliveries]
    assert [200] * 120 == [result.status for result in client.finish_many(topic, items)]


def test_topics_are_listed(client: Client, topic: str) -> None:
    client.put(topic, delay=3600)
    client.put(topic, id="r", retain=timedelta(minutes=1))
    view = next(view for view in client.topics() if view.topic == topic)
    assert (view.counts["delayed"], view.counts["ready"], view.paused) == (1, 1, False)
    assert view.next_due_at is not None
    assert view.oldest_ready_age is not None
    with pytest.raises(TopicNotFound) as refused:
        client.topic(f"{topic}-2")
    assert refused.value.topic == f"{topic}-2"


def test_readiness_and_metrics(client: Client) -> None:
    assert client.is_ready()
    assert "deferd_store_up 1" in client.metrics()


def test_an_invalid_job_does_not_fail_those_of_other_threads(client: Client, topic: str) -> None:
    with ThreadPoolExecutor(10) as threads:
        jobs = [threads.submit(client.put, topic, id=f"j{number}") for number in range(10)]
        with pytest.raises(InvalidInput, match=r"ttr"):
            client.put(topic, ttr=-1)
    assert [f"j{number}" for number in range(10)] == [job.result().id for job in jobs]


def test_many_threads_share_one_client(client: Client, topic: str) -> None:
    def put_pop_and_finish(number: int) -> int:
        client.put(topic, number)
        [delivery] = client.pop(topic, wait=5)
        client.finish(delivery)
        return int(delivery.body)

    with ThreadPoolExecutor(16) as threads:
        assert list(range(200)) == sorted(threads.map(put_pop_and_finish, range(200)))


def test_both_clients_have_the_same_methods() -> None:
    def methods(client: type) -> dict[str, list[str]]:
        members = inspect.getmembers(client, inspect.isfunction)
        return {name: [*inspect.signature(method).parameters][1:] for name, method in members if name[0] != "_"}

    blocking, asynchronous = methods(Client), methods(AsyncClient)
    assert asynchronous == blocking
    assert inspect.signature(Client).parameters == inspect.signature(AsyncClient).parameters


def test_all_public_names_can_be_imported() -> None:
    assert deferd.__all__ == sorted(deferd.__all__)
    aliases = {"AsyncJob", "Backoff", "BlockingJob", "DurabilityLevel", "OpeningHours", "Run", "__version__"}
    assert aliases < {*deferd.__all__}
    for name in deferd.__all__:
        assert getattr(deferd, name) is not None
        assert name in aliases or getattr(deferd, name).__name__ == name
