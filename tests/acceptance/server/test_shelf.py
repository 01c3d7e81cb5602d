"""Services whose delayed jobs are on the shelf, in real time: no job is lost or late when a process is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.engine.shelf import PAGE_S, Status
from deferd.server.shelf_process import NICENESS
from deferd.store.data_dir import DataDirectory
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.shelving import status_of
from tests.waiting import BUSY_S, wait_until

JOBS = 1000
LATE_S = 1.0
GONE_S = 15.0
SHELVED_S = 10.0


def shelving(folder: Path, *flags: str) -> ServiceProcess:
    """A service that puts all delayed jobs on the shelf."""
    return ServiceProcess(folder, "--shelf-after", "0s", *flags, preloaded=True)


@contextlib.contextmanager
def calls_of(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, verify=NO_TLS, timeout=30) as calls:
        yield calls


def status(service: ServiceProcess) -> Status | None:
    """How the shelf is doing; None while its process does not respond."""
    try:
        return status_of(service.data_dir)
    except StoreUnavailable:
        return None


def shelf_pid(service: ServiceProcess) -> int | None:
    """The process of the shelf; None when none runs."""
    pid = int((service.data_dir / "shelf.lock").read_text())
    with contextlib.suppress(OSError):
        return pid if b"shelf_process" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    return None


def kill_shelf(service: ServiceProcess) -> None:
    """SIGKILL its process, and wait until another one serves."""
    pid = shelf_pid(service)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: (found := status(service)) is not None and found.fault is None, GONE_S, "another one serves")
    assert shelf_pid(service) != pid


def wait_for_jobs_on_the_shelf(service: ServiceProcess, number: int) -> None:
    wait_until(
        lambda: (found := status(service)) is not None and found.jobs == number, SHELVED_S, f"{number} are there"
    )


def put(calls: httpx.Client, number: int, *, delay: float, topic: str = "t") -> None:
    jobs = [{"topic": topic, "id": f"j{at}", "delay": delay} for at in range(number)]
    results = calls.post("/jobs/batch", json={"jobs": jobs}).json()["results"]
    assert {result["status"] for result in results} == {201}


def pop_all(calls: httpx.Client, number: int, *, within_s: float) -> list[tuple[dict[str, Any], float]]:
    """Each job of the topic, and how many seconds after its due time it came."""
    popped: list[tuple[dict[str, Any], float]] = []
    end_s = time.monotonic() + within_s
    while len(popped) < number and time.monotonic() < end_s:
        jobs = calls.get("/topics/t/pop", params={"count": 100, "wait": 1}).json()["jobs"]
        now_s = time.time()
        popped += [(job, now_s - datetime.fromisoformat(job["due_at"]).timestamp()) for job in jobs]
    return popped


def test_jobs_on_the_shelf_come_back_when_they_are_due(tmp_path: Path) -> None:
    with shelving(tmp_path, "--workers", "2") as service, calls_of(service) as calls:
        put(calls, JOBS, delay=6)
        wait_for_jobs_on_the_shelf(service, JOBS)
        assert calls.get("/topics/t").json()["counts"]["delayed"] == JOBS
        popped = pop_all(calls, JOBS, within_s=15)
        assert {job["id"] for job, _ in popped} == {f"j{at}" for at in range(JOBS)}
        assert len(popped) == JOBS
        assert min(late_s for _, late_s in popped) >= 0
        assert max(late_s for _, late_s in popped) < LATE_S + BUSY_S
        found = status(service)
        assert found is not None
        assert (found.jobs, found.moved_out, found.moved_in, found.jobs_behind) == (0, JOBS, JOBS, 0)
        assert service.stop() == 0
    assert shelf_pid(service) is None
    assert not (service.data_dir / "shelf.sock").exists()


@pytest.mark.slow
def test_the_death_of_the_shelf_delays_jobs_by_its_restart_only(tmp_path: Path) -> None:
    with shelving(tmp_path) as service, calls_of(service) as calls:
        put(calls, JOBS, delay=7)
        put(calls, 3, delay=86_400, topic="far")
        wait_for_jobs_on_the_shelf(service, JOBS + 3)
        kill_shelf(service)
        assert calls.get("/jobs/far/j0").json()["state"] == "delayed"
        assert calls.delete("/jobs/far/j1").status_code == 200
        assert calls.get("/jobs/far/none").status_code == 404
        popped = pop_all(calls, JOBS, within_s=15)
        assert len({job["id"] for job, _ in popped}) == len(popped) == JOBS
        assert min(late_s for _, late_s in popped) >= 0
        assert max(late_s for _, late_s in popped) < LATE_S + BUSY_S
        service.wait_logged("the shelf's process exited unexpectedly (signal 9")


@pytest.mark.slow
def test_without_its_process_calls_that_need_the_shelf_fail_and_no_others(tmp_path: Path) -> None:
    with shelving(tmp_path) as service, calls_of(service) as calls:
        put(calls, 3, delay=86_400, topic="far")
        wait_for_jobs_on_the_shelf(service, 3)
        pid = shelf_pid(service)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            assert calls.post("/jobs", json={"topic": "t", "id": "now"}).status_code == 201
            assert calls.get("/topics/t/pop").json()["jobs"][0]["id"] == "now"
            began_s = time.monotonic()
            response = calls.get("/jobs/far/j0")
            assert time.monotonic() - began_s < 5 + BUSY_S
            assert response.status_code == 503
            assert response.json()["detail"] == "the shelf did not respond in time"
            assert calls.get("/jobs/t/now").status_code == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        assert calls.get("/jobs/far/j0").status_code == 200


@pytest.mark.slow
def test_a_service_that_stops_kills_a_process_that_does_not_end(tmp_path: Path) -> None:
    with shelving(tmp_path) as service:
        pid = shelf_pid(service)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        assert service.stop() == 0
        assert shelf_pid(service) is None


def test_its_process_comes_after_service_and_store(tmp_path: Path) -> None:
    with shelving(tmp_path) as service:
        pid, store_pid, own = shelf_pid(service), service.store_pid(), os.getpriority(os.PRIO_PROCESS, 0)
        assert pid is not None
        assert store_pid is not None
        threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {min(own + NICENESS, 19)}
        assert os.getpriority(os.PRIO_PROCESS, store_pid) == own


def test_a_data_directory_may_have_a_long_path(tmp_path: Path) -> None:
    """Its sockets are in the system's temporary directory then."""
    with shelving(tmp_path / ("long" * 25)) as service, calls_of(service) as calls:
        put(calls, 3, delay=86_400)
        assert calls.get("/jobs/t/none").status_code == 404
        socket = DataDirectory(service.data_dir).shelf_socket
        assert socket.parent != service.data_dir
        assert socket.exists()
        assert service.stop() == 0
        assert not socket.parent.exists()


@pytest.mark.slow(seconds=10)
def test_jobs_on_the_shelf_outlive_a_killed_service(tmp_path: Path) -> None:
    with shelving(tmp_path) as service:
        with calls_of(service) as calls:
            put(calls, JOBS, delay=6)
            wait_for_jobs_on_the_shelf(service, JOBS)
        service.kill()
        service.start()
        with calls_of(service) as calls:
            popped = pop_all(calls, JOBS, within_s=15)
        assert len({job["id"] for job, _ in popped}) == len(popped) == JOBS
        assert min(late_s for _, late_s in popped) >= 0
        pid = shelf_pid(service)
        service.kill()
        wait_until(lambda: shelf_pid(service) is None, GONE_S, "the process of the shelf has ended")
        assert pid is not None


@pytest.mark.slow
def test_a_service_ends_the_shelf_of_a_killed_one_that_is_still_served(tmp_path: Path) -> None:
    with shelving(tmp_path, "--workers", "2") as service:
        with calls_of(service) as calls:
            put(calls, 3, delay=86_400, topic="far")
            wait_for_jobs_on_the_shelf(service, 3)
            assert calls.get("/jobs/far/j0").json()["state"] == "delayed"  # one of them has connected to the shelf
        before = shelf_pid(service)
        stopped = service.server_process_pids()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            service.kill()
            assert shelf_pid(service) == before
            service.port = 0
            service.start()
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert shelf_pid(service) not in {None, before}
        with calls_of(service) as calls:
            assert calls.get("/jobs/far/j2").json()["state"] == "delayed"
        service.wait_logged("the shelf's process of an earlier service")


def test_without_the_setting_all_jobs_come_back(tmp_path: Path) -> None:
    with shelving(tmp_path) as service, calls_of(service) as calls:
        put(calls, JOBS, delay=86_400)
        wait_for_jobs_on_the_shelf(service, JOBS)
    with ServiceProcess(tmp_path, preloaded=True) as service, calls_of(service) as calls:
        wait_for_jobs_on_the_shelf(service, 0)
        assert calls.get("/topics/t").json()["counts"]["delayed"] == JOBS
        service.wait_logged("--shelf-after is not set: jobs on the shelf come back")


@pytest.mark.slow
def test_a_shelf_whose_files_are_damaged_says_so_and_stops_nothing_else(tmp_path: Path) -> None:
    with shelving(tmp_path) as service, calls_of(service) as calls:
        put(calls, 3, delay=86_400, topic="far")
        wait_for_jobs_on_the_shelf(service, 3)
    [manifest] = (service.data_dir / "shelf").glob("MANIFEST-*")
    whole = manifest.read_bytes()
    manifest.write_bytes(b"x" * len(whole))
    with shelving(tmp_path) as service, calls_of(service) as calls:
        assert calls.post("/jobs", json={"topic": "t", "id": "now"}).status_code == 201
        assert calls.get("/jobs/t/now").status_code == 200
        response = calls.get("/jobs/far/j0")
        assert response.status_code == 503
        assert "the shelf's files cannot be used" in response.json()["detail"]
        service.wait_logged("the shelf's files cannot be used")
        assert service.output().count("the shelf's files cannot be used") == 1
        manifest.write_bytes(whole)
        wait_for_jobs_on_the_shelf(service, 3)
        assert calls.get("/jobs/far/j0").status_code == 200


@pytest.mark.slow
def test_operators_see_the_shelf_and_that_it_hangs(tmp_path: Path) -> None:
    with shelving(tmp_path) as service, calls_of(service) as calls:
        shell = Shell(service.url)
        put(calls, 3, delay=86_400, topic="far")
        wait_for_jobs_on_the_shelf(service, 3)
        wait_until(lambda: calls.get("/system").json()["shelf"]["jobs"] == 3, SHELVED_S, "it is read again")
        shelf = calls.get("/system").json()["shelf"]
        assert (shelf["moved_out"], shelf["moved_in"], shelf["jobs_behind"], shelf["behind"]) == (3, 0, 0, 0)
        assert (shelf["loads_ahead"], "fault" in shelf) == (0, False)
        assert shelf["moved_out_per_second"] > 0
        assert calls.get("/topics/far").json()["shelved"] == calls.get("/topics").json()["topics"][0]["shelved"] == 3
        assert re.search(r"^on the shelf +3$", shell.good("topic", "far"), re.MULTILINE)
        assert re.search(r"^shelf +3 jobs, ", shell.good("system"), re.MULTILINE)
        assert "On the shelf</dt><dd>3<" in calls.get("/console/topics/far").text
        page = calls.get("/console/system").text
        assert re.search(r"Delayed jobs on the shelf</dt><dd>3<", page)
        assert "jobs are loaded in time" in page
        assert not [one for one in calls.get("/now").json()["alerts"] if one["code"] == "shelf_behind"]

        _asks_why(calls, shell)

        found = metrics(calls)
        assert (found["deferd_shelf_up"], found["deferd_shelf_jobs"]) == (1, 1)
        assert (found['deferd_shelf_moved_total{way="out"}'], found['deferd_shelf_moved_total{way="in"}']) == (3, 2)
        assert found["deferd_shelf_behind_seconds"] == 0
        assert "deferd_shelf_bytes" in found

        pid = shelf_pid(service)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            _sees_that_it_hangs(calls, shell)
        finally:
            os.kill(pid, signal.SIGCONT)


def _asks_why(calls: httpx.Client, shell: Shell) -> None:
    """Only the look that loads a job says where it was."""
    why = calls.get("/jobs/far/j0/why").json()
    assert (why["state"], why["shelved"]) == ("delayed", True)
    assert why["reasons"][0]["text"].endswith(
        "It was on the shelf, on disk, where jobs stay until they are due; this look has loaded it."
    )
    assert "shelved" not in calls.get("/jobs/far/j0/why").json()
    assert "this look has loaded it" in calls.get("/console/topics/far/jobs/j1").text
    assert shell.good("why", "far", "j1").startswith("far/j1 is delayed\n")
    assert calls.get("/topics/far").json()["shelved"] == 1


def _sees_that_it_hangs(calls: httpx.Client, shell: Shell) -> None:
    def alerts() -> list[dict[str, Any]]:
        began_s = time.monotonic()
        found = calls.get("/now").json()["alerts"]
        assert time.monotonic() - began_s < PAGE_S + BUSY_S
        return [one for one in found if one["code"] == "shelf_behind"]

    wait_until(lambda: alerts() != [], 15, "the alert")
    [alert] = alerts()
    assert (alert["severity"], alert["why"]) == ("critical", "the shelf did not respond in time")
    done = shell.run("now")
    text = "the shelf did not respond in time: calls that need its jobs fail"
    began_s = time.monotonic()
    assert (done.returncode, text in done.stdout, text in calls.get("/").text) == (6, True, True)
    assert calls.get("/system").json()["shelf"] == {"fault": "the shelf did not respond in time"}
    assert "be read or moved: the shelf did not respond in time." in calls.get("/console/system").text
    assert re.search(r"^shelf +cannot be used: the shelf did not", shell.good("system"), re.MULTILINE)
    forecast = calls.get("/forecast").json()
    assert (forecast["complete"], forecast["unreadable_shards"], forecast["delayed"]) == (False, [], 2)
    assert "Some of what comes due is missing" in calls.get("/console/topics/far").text
    done = shell.run("forecast")
    assert (done.returncode, "some are missing" in done.stderr) == (0, True)
    found = metrics(calls)
    assert (found["deferd_store_up"], found["deferd_shelf_up"]) == (1, 0)
    assert time.monotonic() - began_s < 4 * PAGE_S + BUSY_S
    assert "deferd_shelf_jobs" not in found
    assert calls.get("/topics/far").json()["shelved"] == 1


def metrics(calls: httpx.Client) -> dict[str, float]:
    lines = [line for line in calls.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
