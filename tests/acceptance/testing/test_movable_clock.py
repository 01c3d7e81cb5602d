"""`deferd serve --test-clock`: a clock that tests move over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS, Http, moment, ok, problem, refusal
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.preloaded import run_preloaded

DAY_S = 86_400


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["1 worker", "2 workers"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """With the longest tick and several shards, so that only the jump itself can wake the timer."""
    flags = ("--test-clock", "--workers", str(request.param), "--shards", "3", "--tick", "60")
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("moved")) as service:
        yield service


@pytest.fixture
def http_client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield client


def advance(client: httpx.Client, seconds: float) -> dict[str, Any]:
    return ok(client.post("/testing/clock", json={"advance": seconds}))


def put(client: httpx.Client, topic: str, **fields: Any) -> dict[str, Any]:
    return ok(client.post("/jobs", json={"topic": topic, **fields}), 201)


def pop(client: httpx.Client, topic: str, wait: float = 0) -> list[str]:
    jobs = ok(client.get(f"/topics/{topic}/pop", params={"wait": wait}))["jobs"]
    return [job["id"] for job in jobs]


def test_a_warning_is_logged_at_the_start(service: ServiceProcess) -> None:
    assert " WARNING  deferd: --test-clock: anyone who can reach this service can move its clock" in service.lines[0]
    assert service.output().count("--test-clock") == 1


def test_the_clock_is_read_and_moved(http_client: httpx.Client) -> None:
    before = ok(http_client.get("/testing/clock"))
    assert moment(before["now"]) == pytest.approx(time.time() + before["offset"], abs=5)
    after = advance(http_client, 1.5)
    assert after["offset"] == pytest.approx(before["offset"] + 1.5)
    assert moment(after["now"]) == pytest.approx(time.time() + after["offset"], abs=5)
    assert ok(http_client.get("/testing/clock"))["offset"] == after["offset"]


def test_a_job_a_day_ahead_is_delivered_at_once(http_client: httpx.Client, topic: str) -> None:
    for number in range(6):  # on all shards, popped on connections to all server processes
        put(http_client, f"{topic}-{number}", id="j", delay=DAY_S)
    assert pop(http_client, f"{topic}-0") == []
    advance(http_client, DAY_S)
    for number in range(6):
        assert ["j"] == [job["id"] for job in pop_on_its_own_connection(http_client, f"{topic}-{number}")]


def pop_on_its_own_connection(client: httpx.Client, topic: str) -> list[dict[str, Any]]:
    response = httpx.get(f"{client.base_url}/topics/{topic}/pop?wait=0", timeout=30, verify=NO_TLS)
    jobs: list[dict[str, Any]] = ok(response)["jobs"]
    return jobs


def test_jobs_that_are_put_afterwards_count_from_the_moved_clock(http_client: httpx.Client, topic: str) -> None:
    now = advance(http_client, DAY_S)["now"]
    job = put(http_client, topic, delay=10)
    assert moment(job["created_at"]) == pytest.approx(moment(now), abs=5)
    assert put(http_client, topic, run_at=now)["state"] == "ready"


def test_consumers_that_wait_get_their_jobs_within_milliseconds(
    service: ServiceProcess, http_client: httpx.Client, topic: str
) -> None:
    for number in range(4):
        put(http_client, topic, id=f"j{number}", delay=DAY_S)
    with ThreadPoolExecutor(4) as consumers:
        pops = [consumers.submit(pop_waiting, http_client, topic) for _ in range(4)]
        service.wait_for_waiting_pops(4)
        began = time.monotonic()
        advance(http_client, DAY_S)
        popped = sorted(job_id for waiting in pops for job_id in waiting.result(10))
        assert time.monotonic() - began < 10  # the pops wait 20 s
    assert popped == ["j0", "j1", "j2", "j3"]


def pop_waiting(client: httpx.Client, topic: str) -> list[str]:
    response = httpx.get(f"{client.base_url}/topics/{topic}/pop?wait=20", timeout=30, verify=NO_TLS)
    return [job["id"] for job in ok(response)["jobs"]]


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (-1, "must be at least 0 seconds"),
        (315_576_001, "must be at most 315576000 seconds"),
        ("1", "must be a number of seconds"),
    ],
)
def test_the_clock_does_not_go_back_or_too_far(http_client: httpx.Client, seconds: object, message: str) -> None:
    response = http_client.post("/testing/clock", json={"advance": seconds})
    assert refusal(response, "body.advance") == message


def test_the_clock_is_not_part_of_the_api_document(http_client: httpx.Client) -> None:
    assert not [path for path in ok(http_client.get("/openapi.json"))["paths"] if "clock" in path]


async def test_a_normal_service_has_no_movable_clock(http: Http) -> None:
    problem(await http.get("/testing/clock"), 404, "not_found")
    problem(await http.post("/testing/clock", json={"advance": 1}), 404, "not_found")


@pytest.mark.slow
def test_the_clock_stays_moved_and_its_data_directory_is_for_tests_only(tmp_path: Path) -> None:
    """Under a real clock its jobs would be late by as much as the clock was moved."""
    with (
        running_service("--test-clock", data_dir=tmp_path) as service,
        httpx.Client(base_url=service.url, verify=NO_TLS) as client,
    ):
        put(client, "t", id="j", delay=2 * DAY_S)
        advance(client, DAY_S)
        service.stop()
        words = ("serve", "--port", "0", "--data-dir", str(service.data_dir))
        refused = run_preloaded(*words, environment=os.environ)
        assert refused.returncode == 1
        [line] = refused.stderr.splitlines()
        assert "belongs to tests, which moved its clock by 86400 s: serve it with --test-clock" in line
        service.start()
        advance(client, DAY_S)
        assert pop(client, "t") == ["j"]
