"""Workers in several languages keep the protocol of docs/other-languages.md: each test runs with each of them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from deferd import AsyncClient, FixedBackoff
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_process import WorkerProcess
from tests.acceptance.worker.worker_runs import in_state
from tests.go_toolchain import go
from tests.programs import require_program
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=3)

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "workers"
BUILD_S = 280.0
LINES_MAX = 150
STOP_S = 12.0
"""Longer than any stop takes, and shorter than a pop waits."""
Start = Callable[..., WorkerProcess]


class Language(NamedTuple):
    """The program that it needs, its source, and the command that runs that; {source} and {built} are paths."""

    needs: str
    source: str
    command: tuple[str, ...]


LANGUAGES = {
    "go": Language("go", "worker.go", ("{built}",)),
    "javascript": Language("node", "worker.mjs", ("node", "{source}")),
    "php": Language("php", "worker.php", ("php", "{source}")),
    "python": Language(sys.executable, "worker.py", (sys.executable, "{source}")),
}


@pytest.fixture(scope="module", params=LANGUAGES)
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a worker."""
    language = LANGUAGES[request.param]
    require_program(language.needs)
    paths = {"source": FOLDER / language.source, "built": tmp_path_factory.mktemp("built") / "worker"}
    if "{built}" in language.command:
        go(FOLDER, "build", "-o", str(paths["built"]), language.source, timeout_s=BUILD_S)
    return [word.format(**paths) for word in language.command]


@pytest.fixture
def start(command: list[str], shared_service: ServiceProcess, topic: str) -> Start:
    """Start the worker for the test's topic, with further variables."""

    def start(url: str = shared_service.url, **variables: str) -> WorkerProcess:
        environment = {"DEFERD_URL": url, "DEFERD_TOPIC": topic, "DEFERD_GRACE": "10", **variables}
        return WorkerProcess(command=command, environment=environment)

    return start


async def stopped(worker: WorkerProcess) -> None:
    """SIGTERM ends the worker in order, and soon, also while a pop waits."""
    began_s = time.monotonic()
    worker.send(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait) == 0
    assert time.monotonic() - began_s < STOP_S


async def test_each_outcome_is_reported(client: AsyncClient, topic: str, start: Start) -> None:
    for do in ("fail", "snooze", "reject", "ok"):
        body = {"do": do, "seconds": 600}
        await client.put(topic, body, id=do, retain=60, backoff=FixedBackoff(seconds=1000))
    with start() as worker:
        await in_state(client, topic, "ok", "finished")
        failed = await in_state(client, topic, "fail", "delayed")
        snoozed = await in_state(client, topic, "snooze", "delayed")
        rejected = await in_state(client, topic, "reject", "dead")
        await stopped(worker)
    assert (failed.attempts, failed.snoozes) == (1, 0)
    assert "failed as the job says" in str(failed.last_error)
    assert (snoozed.attempts, snoozed.snoozes) == (0, 1)
    assert "rejected as the job says" in str(rejected.last_error)
    assert failed.due_at is not None
    assert snoozed.due_at is not None
    assert 300 < (failed.due_at - snoozed.due_at).total_seconds() < 500  # its backoff and the delay of the snooze


async def test_a_cancel_ends_the_handler_and_nothing_is_reported(
    client: AsyncClient, topic: str, start: Start, proxy: LossyProxy
) -> None:
    await client.put(topic, {"do": "sleep", "seconds": 600}, id="a", ttr=1)
    with start(proxy.url) as worker:
        await asyncio.to_thread(worker.wait_for, "began a")
        await client.cancel(topic, "a")
        await asyncio.to_thread(worker.wait_for, "cancelled a")
        await client.put(topic, {"do": "ok"}, id="next", retain=60)
        await in_state(client, topic, "next", "finished")
        await stopped(worker)
    reports = [path for path in paths(proxy) if path.endswith(("/finish", "/release", "/bury"))]
    assert len(reports) == 1, reports  # that of the next job


async def test_a_job_of_a_killed_worker_is_delivered_once_more(client: AsyncClient, topic: str, start: Start) -> None:
    await client.put(topic, {"do": "sleep", "seconds": 600}, id="a", ttr=1, retain=60)
    with start() as worker:
        await asyncio.to_thread(worker.wait_for, "began a")
        await asyncio.to_thread(worker.kill_all)
    [delivery] = await client.pop(topic, wait=20)
    assert (delivery.id, delivery.attempt) == ("a", 2)
    await client.finish(delivery)
    assert (await in_state(client, topic, "a", "finished")).attempts == 2


async def test_a_stop_lets_the_handler_end_keeps_its_lease_and_pops_no_other_job(
    client: AsyncClient, topic: str, start: Start
) -> None:
    await client.put(topic, {"do": "sleep", "seconds": 1.7}, id="held", ttr=1, retain=60)
    with start() as worker:
        await asyncio.to_thread(worker.wait_for, "began held")
        await client.put(topic, {"do": "ok"}, id="more")
        await stopped(worker)
    held, more = await client.get(topic, "held"), await client.get(topic, "more")
    assert (held.state, held.attempts, held.result) == ("finished", 1, "done: sleep")
    assert (more.state, more.attempts) == ("ready", 0)


async def test_a_stop_returns_the_job_whose_handler_exceeds_its_grace(
    client: AsyncClient, topic: str, start: Start
) -> None:
    await client.put(topic, {"do": "sleep", "seconds": 600}, id="a")
    with start(DEFERD_GRACE="0.3") as worker:
        await asyncio.to_thread(worker.wait_for, "began a")
        await stopped(worker)
    released = await in_state(client, topic, "a", "ready")  # delayed until the timer has seen that it is due
    assert (released.attempts, released.last_error) == (1, "the worker stopped")
    assert any("cancelled a" in line for line in worker.lines)


async def test_a_pop_whose_response_was_lost_returns_the_same_job(
    client: AsyncClient, topic: str, start: Start, proxy: LossyProxy
) -> None:
    proxy.lose_responses()
    await client.put(topic, {"do": "ok"}, id="a", ttr=600, retain=60)
    with start(proxy.url) as worker:
        assert (await in_state(client, topic, "a", "finished")).attempts == 1
        await stopped(worker)


async def test_a_stop_gives_back_the_job_of_a_pop_without_a_response(
    client: AsyncClient, topic: str, start: Start, proxy: LossyProxy
) -> None:
    proxy.hang()
    await client.put(topic, {"do": "ok"}, id="a")
    with start(proxy.url) as worker:
        await until(proxy.is_done, "the service has handed out the job")
        await stopped(worker)
    returned = await client.get(topic, "a")
    assert (returned.state, returned.attempts) == ("ready", 0)
    assert "began a" not in "".join(worker.lines)


async def test_a_refused_call_is_repeated_after_its_retry_after(
    client: AsyncClient, topic: str, start: Start, proxy: LossyProxy
) -> None:
    refusals = {"/pop?": (429, "rate_limited"), "/finish ": (503, "store_unavailable")}
    for path, (status, code) in refusals.items():
        problem = {"type": "about:blank", "title": "later", "status": status, "detail": "later", "code": code}
        headers = ("Content-Type: application/problem+json", "Retry-After: 1")
        proxy.respond(status, *headers, sent=False, body=json.dumps(problem).encode(), to=path)
    await client.put(topic, {"do": "ok"}, id="a", retain=60)
    with start(proxy.url, DEFERD_KEY="secret") as worker:
        assert (await in_state(client, topic, "a", "finished")).attempts == 1
        await stopped(worker)
    for path in refusals:
        requests = zip(proxy.heads, proxy.received_s, strict=True)
        first_s, second_s, *_ = (received_s for head, received_s in requests if path in head)
        assert second_s - first_s >= 1
    assert all("\r\nauthorization: bearer secret" in head.lower() for head in proxy.heads)


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_worker_is_short(language: Language) -> None:
    assert len((FOLDER / language.source).read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def paths(proxy: LossyProxy) -> list[str]:
    """The paths of the requests so far, without their queries."""
    return [head.split(" ")[1].partition("?")[0] for head in proxy.heads]
