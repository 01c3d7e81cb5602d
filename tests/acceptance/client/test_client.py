"""The client against a real service: what each method does. For its errors see test_client_errors.py."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

import deferd
from deferd import (
    AsyncClient,
    Client,
    Delivery,
    InvalidInput,
    JobExists,
    PutJob,
    PutResult,
    TopicNotFound,
    TopicSettings,
    Window,
    WindowDict,
)
from deferd.contract.model import FinishItem, JobState
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.client.lossy_proxy import lossy_proxy
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


# What a put finds under its id


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


# Windows, spread and calendars


def closed_now() -> WindowDict:
    """A window that opens in about two hours, for an hour."""
    begin = datetime.now(UTC) + timedelta(hours=2)
    return {"from": f"{begin:%H:%M}", "to": f"{begin + timedelta(hours=1):%H:%M}"}


def test_windows_spreads_and_settings_are_objects_or_plain_values(client: Client, topic: str) -> None:
    window = closed_now()
    assert client.put(topic, id="a", window=Window.model_validate(window)).window == window
    changed = client.change(topic, "a", window=None, spread=timedelta(minutes=1))
    assert (changed.window, changed.spread) == (None, 60)
    several = client.put(topic, window=[{**window, "except": [date(2030, 1, 1)]}, {"from": "03:00", "to": "03:01"}])
    assert several.window == [{**window, "except": ["2030-01-01"]}, {"from": "03:00", "to": "03:01"}]
    view = client.set_topic(topic, TopicSettings.model_validate({"window": window, "spread": 5}))
    assert (view.settings.spread, view.fields["settings"]["window"]) == (5, window)


async def test_calendars_are_objects_and_are_listed(async_client: AsyncClient, topic: str) -> None:
    window = Window.model_validate(closed_now())
    put = await async_client.put_calendar(topic, [window, {"days": ["mon"], "to": "00:01"}])
    assert await async_client.calendar(topic) == put == deferd.Calendar(name=topic, windows=put.windows)
    assert put in await async_client.calendars()
    await async_client.delete_calendar(topic)


async def test_a_placed_put_whose_response_was_lost_is_recognized(shared_service: ServiceProcess, topic: str) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            proxy.lose_responses(1)
            put = await client.put(topic, id="a", window=closed_now(), spread=60, delay=1)
            assert put.asked_for is not None
            proxy.lose_responses(1)
            assert (
                await client.put(topic, id="b", spread=3600, run_at=datetime(2030, 1, 1, tzinfo=UTC))
            ).spread == 3600


def test_the_command_line_knows_windows_and_calendars(shared_service: ServiceProcess, topic: str) -> None:
    shell, window, name = Shell(shared_service.url), closed_now(), f"cli.{topic}"
    [job] = shell.json("put", topic, "--id", "a", "--window", json.dumps(window), "--spread", "1m")
    assert (job["window"], job["spread"]) == (window, 60)
    shown = shell.good("get", topic, "a")
    assert "asked for" in shown
    assert window["from"] in shown
    assert "asked for" in shell.good("put", topic, "--id", "b", "--window", json.dumps([window]))
    assert "there is no calendar" in shell.refused(3, "calendar", name)
    [made] = shell.json("calendar", name, "--set", json.dumps(window))
    assert made == {"name": name, "windows": [window]}
    assert made in shell.json("calendars")
    assert name in shell.good("calendars")
    assert window["from"] in shell.good("calendar", name)
    [view] = shell.json("topic", topic, "--window", name, "--spread", "10s")
    assert (view["settings"]["window"], view["settings"]["spread"]) == (name, 10)
    assert name in shell.good("topic", topic)
    [free] = shell.json("put", topic, "--id", "c", "--window", "none", "--spread", "none")
    assert free["state"] == "ready"
    [view] = shell.json("topic", topic, "--window", "none")
    assert (view["settings"]["window"], view["settings"]["spread"]) == (None, 10)
    [changed] = shell.json("change", topic, "a", "--window", "none", "--spread", "none", "--delay", "0")
    assert changed["state"] == "ready"
    shell.refused(2, "calendar", name, "--set", "[]", "--delete")
    assert shell.good("calendar", name, "--delete") == f"{name} deleted\n"
    shell.refused(2, "put", topic, "--window", "{")


def test_a_wait_goes_on_after_a_restart_of_the_service(tmp_path: Path) -> None:
    with (
        ServiceProcess(tmp_path, preloaded=True) as service,
        Client(service.url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.put("restarts", id="a", retain=60)
        waited = pool.submit(client.wait, "restarts", "a", timeout=40)
        service.wait_for_job_waits(1)
        assert service.stop() == 0
        service.start()
        service.wait_for_job_waits(1)
        assert not waited.done()
        [held] = client.pop("restarts")
        client.finish(held, "done")
        job = waited.result(20)
    assert (job.outcome, job.result) == ("finished", "done")
