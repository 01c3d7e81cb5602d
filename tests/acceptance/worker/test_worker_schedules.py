"""Schedules that a worker declares and registers when it starts."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from deferd import AsyncClient, Context, InvalidInput, ScheduleNotFound, StoreUnavailable, Worker, job
from deferd.cli.framework.exit_codes import USAGE
from deferd.client.requests import ApiRequest
from tests.acceptance.cli.command_line import environment
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import WITHIN_S, serving
from tests.waiting import until


async def registered(client: AsyncClient, name: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await client.schedule(name)
            except ScheduleNotFound:
                await asyncio.sleep(0.02)
            else:
                return


async def test_a_handler_gets_the_runs_of_its_schedule(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url)
    runs: asyncio.Queue[tuple[str, dict[str, int]]] = asyncio.Queue()

    @worker.schedule(every=timedelta(seconds=1), job={"body": {"n": 1}, "ttr": timedelta(seconds=30)})
    @worker.handler(topic)
    async def handle(body: dict[str, int], context: Context) -> None:
        assert context.job.ttr == 30
        runs.put_nowait((context.job.id, body))

    async with serving(worker), asyncio.timeout(WITHIN_S):
        first, second = await runs.get(), await runs.get()
    assert first[0] != second[0]
    assert first[0].startswith(f"{topic}:")
    assert first[1] == {"n": 1}
    await client.delete_schedule(topic)


async def test_schedules_have_names_topics_and_policies(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    worker = Worker(shared_service.url)

    @worker.handler(f"{topic}.b")  # in any order
    @worker.schedule("0 3 * * *", zone="Europe/Berlin", overlap="skip", catch_up="none")
    @worker.schedule(at=["09:00"], days=["mon"], name=f"{topic}.weekly")
    async def handle() -> None: ...

    @worker.schedule("@daily", topic=f"{topic}.own", name=f"{topic}.own-daily", max_runs=3)
    async def own() -> None: ...

    assert set(worker.topics) == {f"{topic}.b", f"{topic}.own"}
    async with serving(worker):
        await registered(client, f"{topic}.own-daily")
    named = {one.name: one async for one in client.schedules(prefix=topic)}
    assert {name: one.topic for name, one in named.items()} == {
        f"{topic}.b": f"{topic}.b",
        f"{topic}.weekly": f"{topic}.b",
        f"{topic}.own-daily": f"{topic}.own",
    }
    daily = named[f"{topic}.b"]
    assert (daily.cron, daily.zone, daily.overlap, daily.catch_up) == ("0 3 * * *", "Europe/Berlin", "skip", "none")
    assert named[f"{topic}.own-daily"].definition["max_runs"] == 3

    # A start changes nothing that is the same, and ends no pause.
    await client.pause_schedule(f"{topic}.weekly")
    before = [one.fields async for one in client.schedules(prefix=topic)]
    caplog.clear()
    async with serving(worker):
        await until(lambda: caplog.text.count("is registered") == len(named), "all are registered again")
    assert [one.fields async for one in client.schedules(prefix=topic)] == before
    for name in named:
        await client.delete_schedule(name)


async def test_the_function_names_the_topic_when_nothing_else_does(
    client: AsyncClient, shared_service: ServiceProcess
) -> None:
    worker = Worker(shared_service.url)

    @worker.schedule("@daily")
    def clean_up_at_night() -> None: ...

    async with serving(worker):
        await registered(client, "clean_up_at_night")
    assert (await client.schedule("clean_up_at_night")).topic == "clean_up_at_night"
    await client.delete_schedule("clean_up_at_night")


class Report(BaseModel):
    of: str


async def test_runs_have_the_options_of_the_job_definition(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url)
    report = job(topic, Report, delay=60, max_attempts=3, ttr=7)

    @worker.schedule("@daily", job={"body": Report(of="all"), "ttr": 9})
    @worker.handler(report)
    async def handle(report: Report) -> None: ...

    async with serving(worker):
        await registered(client, topic)
    assert (await client.schedule(topic)).job == {"body": {"of": "all"}, "max_attempts": 3, "ttr": 9}
    await client.delete_schedule(topic)

    @worker.schedule("@hourly", name=f"{topic}.bad", job={"body": {"for": "all"}})
    @worker.handler(job(f"{topic}.bad", Report))
    async def handle_bad(report: Report) -> None: ...

    with pytest.raises(InvalidInput, match=rf"schedule\.{topic}\.bad\.of: Field required"):
        await worker.serve()


async def test_a_definition_that_the_service_refuses_ends_the_start(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url)
    began = asyncio.Event()

    @worker.schedule("0 0 30 2 *")
    @worker.handler(topic)
    async def handle() -> None:
        began.set()

    await client.put(topic, id="a")
    with pytest.raises(InvalidInput, match=rf"schedule\.{topic}\.cron: never runs: no date is day of month '30'"):
        async with asyncio.timeout(WITHIN_S):
            await worker.serve()
    assert not began.is_set()
    assert (await client.get(topic, "a")).attempts == 0


class LateRegistration(AsyncClient):
    """A client whose puts of schedules fail until the event is set."""

    def __init__(self, url: str, may_register: asyncio.Event) -> None:
        super().__init__(url, retry_for=0)
        self._may_register = may_register

    async def send(self, call: ApiRequest[Any], *, retry_for: float | None = None) -> Any:
        if call.path.startswith("/schedules/") and not self._may_register.is_set():
            raise StoreUnavailable("the store is loading")
        return await super().send(call, retry_for=retry_for)


async def test_handlers_do_not_wait_for_a_registration_that_is_retried(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    handled = asyncio.Event()
    worker = Worker(lambda: LateRegistration(shared_service.url, handled))

    @worker.schedule("@daily", name=f"{topic}.daily")
    @worker.handler(topic)
    async def handle() -> None:
        handled.set()

    await client.put(topic)
    async with serving(worker), asyncio.timeout(WITHIN_S):
        await handled.wait()
        await registered(client, f"{topic}.daily")
    await client.delete_schedule(f"{topic}.daily")


async def test_a_refusal_that_comes_late_stops_the_worker_in_an_orderly_way(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    may_register = asyncio.Event()
    worker = Worker(lambda: LateRegistration(shared_service.url, may_register))

    @worker.schedule("0 0 30 2 *")
    @worker.handler(topic)
    async def handle() -> str:
        may_register.set()
        await asyncio.sleep(0.5)
        return "done"

    await client.put(topic, id="a", retain=60)
    with pytest.raises(InvalidInput, match=r"\.cron: never runs"):
        async with asyncio.timeout(WITHIN_S):
            await worker.serve()
    assert (await client.get(topic, "a")).result == "done"


def test_declarations_are_checked() -> None:
    worker = Worker()
    with pytest.raises(TypeError, match="unexpected keyword argument 'crn'"):
        worker.schedule(crn="@daily")(print)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="the name of a schedule has the form of a topic, unlike 'a b'"):
        worker.schedule("@daily", name="a b")(print)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, InvalidInput, "must have exactly one of `cron`, `every` and `at`: it has none"),
        ({"cron": "@daily", "every": 5}, InvalidInput, "it has `cron` and `every`"),
        ({"every": 0.5}, InvalidInput, r"schedule\.reports\.every: Input should be greater than or equal to 1"),
    ],
)
async def test_an_invalid_definition_ends_the_start_before_the_first_request(
    options: dict[str, object], error: type[Exception], text: str
) -> None:
    worker = Worker("http://127.0.0.1:9")

    @worker.schedule(**options)  # type: ignore[arg-type]
    @worker.handler("reports")
    async def handle() -> None: ...

    with pytest.raises(error, match=text):
        await worker.serve()


async def test_a_schedule_needs_one_topic_and_a_name_of_its_own() -> None:
    worker = Worker()

    @worker.schedule("@daily")
    @worker.handler("reports.*")
    async def of_a_pattern() -> None: ...

    with pytest.raises(ValueError, match=r"needs a topic: the function handles reports\.\*"):
        await worker.serve()

    worker = Worker()

    @worker.schedule("@daily")
    @worker.schedule("@hourly")
    @worker.handler("reports")
    async def twice() -> None: ...

    with pytest.raises(ValueError, match="two schedules are named 'reports': give each a name"):
        await worker.serve()


def test_the_command_says_in_a_line_what_is_wrong_with_a_schedule(
    shared_service: ServiceProcess, tmp_path: Path, topic: str
) -> None:
    program = f"""
from deferd import Worker

worker = Worker()

@worker.schedule("0 0 30 2 *")
@worker.handler({topic!r})
def handle() -> None: ...
"""
    (tmp_path / "night.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "-m", "deferd", "worker", "night:worker"],
        cwd=tmp_path,
        env=environment(shared_service.url),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == USAGE
    sentence = (
        f"deferd: schedule.{topic}.cron never runs: no date is day of month '30' in month '2' (it is '0 0 30 2 *')"
    )
    assert ran.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in ran.stderr
