"""`deferd.testing` as users' tests see it: the context manager, and the pytest plugin of the built package."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from deferd import Context, Retry, Worker
from deferd.contract.errors import InvalidInput
from deferd.testing import ServiceForTests, ServiceNotStarted, start_service
from deferd.version import how_to_install
from tests.acceptance.http_calls import NO_TLS
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
GONE_S = 20.0


@pytest.fixture
def service(clocked_service: ServiceForTests) -> ServiceForTests:
    clocked_service.purge()
    return clocked_service


def processes_of(folder: str) -> list[str]:
    """Command lines of the processes with this directory."""
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if folder in command:
            commands.append(command)
    return commands


def folder_of(service: ServiceForTests) -> str:
    found = re.search(r" in (\S+deferd-testing-\w+)/data", service.log)
    assert found is not None, service.log
    return found[1]


@pytest.mark.slow
def test_at_the_end_no_process_and_no_file_is_left() -> None:
    with start_service() as service:
        folder = folder_of(service)
        assert len(processes_of(folder)) == 3, "the service, its store and the reaper of that"
        assert httpx.get(f"{service.url}/readyz", verify=NO_TLS).status_code == 200
    assert processes_of(folder) == []
    assert not Path(folder).exists()


@pytest.mark.slow
def test_a_service_ends_when_its_tests_are_killed() -> None:
    script = (
        "import sys, time\nfrom deferd.testing import start_service\n"
        "with start_service('--workers', '2') as service:\n    print(service.log, flush=True)\n    time.sleep(60)\n"
    )
    with tempfile.TemporaryDirectory() as temporary:  # a killed service leaves a folder behind
        environment = {**os.environ, "TMPDIR": temporary}
        with subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
        ) as tests:
            assert tests.stdout is not None
            folders = (re.search(r" in (\S+deferd-testing-\w+)/data", line) for line in tests.stdout)
            folder = next(found[1] for found in folders if found)
            assert processes_of(folder)
            tests.send_signal(signal.SIGKILL)
        wait_until(lambda: not processes_of(folder), GONE_S, "its processes have ended")


def test_a_failed_start_shows_the_log() -> None:
    with (
        pytest.raises(ServiceNotStarted, match=r"--tick .* is 'never', but must be a number"),
        start_service("--tick", "never"),
    ):
        pass


def test_the_wait_for_the_start_is_bounded() -> None:
    began = time.monotonic()
    with pytest.raises(ServiceNotStarted, match=r"did not serve within 0\.01 s"), start_service(start_timeout=0.01):
        pass
    assert time.monotonic() - began < GONE_S


def test_deferd_variables_of_the_environment_have_no_effect(service: ServiceForTests) -> None:
    """There are wrong ones when it starts."""
    with service.client() as client:
        assert client.is_ready()


def test_a_day_passes_in_no_time(service: ServiceForTests) -> None:
    with service.client() as client:
        client.put("trash", {"file": 7}, delay=timedelta(hours=24))
        began = time.monotonic()
        service.clock.advance(hours=23, minutes=59)
        assert client.pop("trash", wait=0) == []
        service.clock.advance(timedelta(minutes=1))
        [job] = client.pop("trash", wait=0)
        assert job.body == {"file": 7}
        assert time.monotonic() - began < 10


def test_the_clock_returns_the_time_of_the_service(service: ServiceForTests) -> None:
    before = service.clock.now()
    after = service.clock.advance(timedelta(hours=1), days=1, hours=1, minutes=1, seconds=0.5)
    passed_s = (after - before - timedelta(days=1, hours=2, minutes=1, seconds=0.5)).total_seconds()
    assert 0 <= passed_s < 30
    assert timedelta(0) <= service.clock.now() - after < timedelta(seconds=30)
    assert before.tzinfo is UTC
    assert before >= datetime.now(UTC) - timedelta(seconds=5)


def test_a_purge_leaves_no_job_and_no_topic(service: ServiceForTests) -> None:
    with service.client() as client:
        client.put("delayed", delay=60)
        client.put("held")
        client.pop("held")
        client.set_topic("set", {"ttl": None, "retain": 60})
        client.put("paused")
        client.pause("paused")
        client.put("grouped", group="a")
        client.pause_group("grouped", "a")
        for _ in range(2):  # what a rate has counted is gone, too
            service.purge()
            assert list(client.topics()) == []
            rate = {"rate": {"count": 1, "per": 3600}}
            client.set_topic("grouped", {"limits": {**rate, "per_group": rate}})
            client.put("grouped", group="a")
            assert len(client.pop("grouped", wait=0)) == 1


def test_purge_removes_whatever_acts_by_itself(service: ServiceForTests) -> None:
    with service.client() as client:
        client.put_calendar("shop", [{"days": ["mon"], "from": "08:00", "to": "18:00", "zone": "UTC"}])
        for number in range(3):
            client.put_schedule(f"nightly-{number}", topic="night", at=["03:00"], window="shop")
        client.pause_schedule("nightly-2")
        client.set_push("pushed", "https://hooks.example.com/", secrets=["whsec_" + b64encode(bytes(32)).decode()])
        client.put("many", tags=["all"])
        client.start_purge("many")
        for name in ("open", "sealed"):
            client.set_batch(name, on_end="completed")
            client.put("of-a-batch", batch=name)
        client.set_batch("sealed", seal=True)
        service.purge()
        assert [*client.schedules(), *client.calendars(), *client.batches(), *client.topics()] == []
        assert [*client.tasks(), *client.activity()] == []
        service.clock.advance(days=7)
        assert list(client.topics()) == []


def test_the_clock_refuses_to_pass_too_many_runs(service: ServiceForTests) -> None:
    with service.client() as client:
        client.put_schedule("beat", topic="pulse", every=60)
        client.put_schedule("once", topic="pulse", every=1, max_runs=2)
        before = service.clock.now()
        refusal = "until then there are 525[0-9]{3}, 5255[0-9]{2} of them of 'beat': pause schedules"
        with pytest.raises(InvalidInput, match=refusal):
            service.clock.advance(days=365)
        assert service.clock.now() - before < timedelta(minutes=1)
        client.pause_schedule("beat")
        service.clock.advance(days=365)
        assert client.schedule("once").runs == 2


def test_a_long_move_of_the_clock_says_how_far_it_is(
    service: ServiceForTests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("deferd.testing.service._MOVE_S", 0.0)
    with service.client() as client:
        client.put_schedule("beat", topic="pulse", every=60)
        before = service.clock.now()
        service.clock.advance(minutes=3)
        assert service.clock.now() - before >= timedelta(minutes=3)
        assert client.schedule("beat").runs == 3
        assert client.schedule("beat").missed == 0
    said = [record.getMessage() for record in caplog.records if record.name == "deferd.testing"]
    text = "the clock is moved by 0:03:00 and is at [0-9: -]{19}: about [12] runs of schedules are left, most of 'beat'"
    assert re.fullmatch(text, said[0])


def test_a_worker_runs_until_it_is_idle(service: ServiceForTests) -> None:
    worker = Worker("http://127.0.0.1:9", key="of another service", grace=30)
    closed: list[int] = []

    @worker.handler("orders.close")
    async def close(number: int, context: Context) -> None:
        if context.job.attempt == 1 and number == 2:
            raise Retry(delay=60)
        closed.append(number)
        async with service.async_client() as client:
            await client.put("orders.closed", number)

    @worker.handler("orders.closed")
    def note_closed(number: int) -> None:
        closed.append(-number)

    with service.client() as client:
        client.put("orders.close", 1)
        client.put("orders.close", 2)
        client.put("orders.close", 3, delay=timedelta(hours=1))
        client.put("orders.closed", 4)
        client.pause("orders.closed")
        service.run_until_idle(worker)
        assert closed == [1]
        client.resume("orders.closed")
        service.run_until_idle(worker)
        assert closed == [1, -4, -1]
        service.clock.advance(hours=1)
        service.run_until_idle(worker)
        assert sorted(closed) == [-4, -3, -2, -1, 1, 2, 3]
        assert client.topic("orders.close").counts["dead"] == 0


def test_a_worker_is_idle_when_its_groups_wait(service: ServiceForTests) -> None:
    worker, done = Worker(), []

    @worker.handler("accounts")
    def work(step: str, context: Context) -> None:
        if context.job.attempt == 1 and step == "open":
            raise Retry(delay=60)
        done.append(step)

    with service.client() as client:
        client.set_topic("accounts", {"limits": {"per_group": {"max_in_flight": 1}}})
        for step in ("open", "close"):
            client.put("accounts", step, group="customer-7")
        client.put("accounts", "other", group="customer-8")
        client.pause_group("accounts", "customer-9")
        client.put("accounts", "paused", group="customer-9")
        service.run_until_idle(worker, timeout=10)
        assert done == ["other"]
        service.clock.advance(minutes=1)
        service.run_until_idle(worker, timeout=10)
        assert done == ["other", "open", "close"]
        client.resume_group("accounts", "customer-9")
        service.run_until_idle(worker, timeout=10)
        assert done[3:] == ["paused"]


def test_a_worker_is_idle_within_milliseconds_and_only_when_its_schedules_are_put(service: ServiceForTests) -> None:
    worker, took_s = Worker(), []

    @worker.schedule("0 3 * * *", topic="nightly")
    def nightly() -> None: ...

    with service.client() as client:
        for _ in range(5):  # what else the machine does must not be counted
            service.purge()
            began = time.monotonic()
            service.run_until_idle(worker)
            took_s.append(time.monotonic() - began)
            assert [schedule.name for schedule in client.schedules()] == ["nightly"]
    assert min(took_s) < 0.1


def test_the_service_is_that_of_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "a folder" / "deferd"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "of another environment: $1"\nexec {sys.executable} -m deferd "$@"\n')
    command.chmod(0o700)
    monkeypatch.setenv("DEFERD_TESTING_COMMAND", f"'{command}'")
    with start_service() as service, service.client() as client:
        client.put("t")
        assert service.log.startswith("of another environment: serve\n")
    with (
        pytest.raises(ServiceNotStarted, match=r"cannot be run: .*'/nonexistent/deferd'"),
        start_service(command=["/nonexistent/deferd"]),
    ):
        pass


@pytest.mark.slow
def test_a_worker_that_is_never_idle_is_stopped_with_an_error(service: ServiceForTests) -> None:
    worker = Worker()
    threads = {*threading.enumerate()}

    @worker.handler("long")
    async def long(_: object) -> None:
        await asyncio.sleep(600)

    with service.client() as client:
        client.put("long")
        with pytest.raises(TimeoutError, match=r"not idle after 0\.5 s: long has [01] ready, [01] reserved"):
            service.run_until_idle(worker, timeout=0.5)
    wait_until(lambda: {*threading.enumerate()} <= threads, GONE_S, "its threads have ended")
    with pytest.raises(ValueError, match="at least one handler"):
        service.run_until_idle(Worker())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of an installed package with its entry points; its dependencies are those of this run."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheel")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=50)
    [wheel] = (folder / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run_pytest(installed: Path, project: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a project that has the package installed and no configuration."""
    project.mkdir(exist_ok=True)
    (project / "test_it.py").write_text(source, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:valkey",
            "test_it.py",
        ],
        cwd=project,
        env=environment | {"PYTHONPATH": os.pathsep.join((str(project), str(installed)))},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.slow
def test_the_plugin_costs_nothing_until_it_is_used(installed: Path, tmp_path: Path) -> None:
    """So it is harmless where the dependencies of the service are not installed."""
    ran = run_pytest(
        installed,
        tmp_path,
        """
import sys
import tempfile

def test_nothing_is_imported(pytestconfig):
    assert pytestconfig.pluginmanager.get_plugin("deferd") is not None
    assert sorted(name for name in sys.modules if name.partition(".")[0] == "deferd") == [
        "deferd", "deferd.testing", "deferd.testing.pytest_plugin"
    ]
    assert not {"httpx", "pydantic", "redis", "fastapi", "pydantic_settings"} & sys.modules.keys()
""",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_plugin_gives_each_test_an_empty_service_and_shows_its_log_if_it_fails(
    installed: Path, tmp_path: Path
) -> None:
    ran = run_pytest(
        installed,
        tmp_path,
        """
from datetime import UTC, datetime, timedelta

import pytest

urls = set()

@pytest.mark.parametrize("number", [1, 2])
def test_a_job_a_day_ahead(deferd_service, number):
    urls.add(deferd_service.url)
    with deferd_service.client() as client:
        assert list(client.topics()) == []
        client.put("trash", number, id="the-same", delay=86_400)
        deferd_service.clock.advance(hours=24)
        [job] = client.pop("trash", wait=0)
        assert job.body == number

def test_that_fails(deferd_service):
    with deferd_service.client() as client:
        client.put("t", traceparent="wrong")

def test_it_was_one_service_whose_clock_stays_moved(deferd_service):
    assert len(urls) == 1
    assert deferd_service.clock.now() > datetime.now(UTC) + timedelta(hours=47)
""",
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "InvalidInput" in ran.stdout
    assert ran.stdout.count("- deferd service log -") == 1
    assert "1 failed, 3 passed" in ran.stdout


@pytest.mark.slow
def test_without_the_service_installed_only_tests_that_use_it_fail_and_say_why(installed: Path, tmp_path: Path) -> None:
    """As with the base install: the project hides a dependency of the service from all its processes."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pydantic_settings'] = None\n")
    ran = run_pytest(
        installed,
        tmp_path,
        """
def test_that_uses_it(deferd_service):
    pass

def test_that_does_not():
    pass
""",
    )
    assert ran.returncode == 1
    assert how_to_install("server") in ran.stdout
    assert "1 passed, 1 error" in ran.stdout
