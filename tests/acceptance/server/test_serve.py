"""`deferd serve` as processes: ownership, failed starts, shutdown, restarts, and what survives a crash."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.acceptance.api.test_keys_and_listening import refused
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import request
from tests.integration.store.store_servers import StoreServer
from tests.waiting import wait_until

START_S = 30.0
STOP_S = 10.0
workers = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])


def put_orders(url: str, number: int) -> None:
    with httpx.Client(verify=NO_TLS) as client:
        for n in range(number):
            job = {"topic": "orders", "id": f"order-{n}", "delay": 100}
            assert client.post(f"{url}/jobs", json=job).status_code == 201


def has_order(url: str, n: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/jobs/orders/order-{n}", verify=NO_TLS).status_code == 200
    return False


@contextlib.contextmanager
def waiting_pops(service: ServiceProcess, number: int) -> Iterator[list[httpx.Response]]:
    """This number of consumers wait on an empty topic; after the block their responses are in the list."""
    responses: list[httpx.Response] = []
    with ThreadPoolExecutor(number) as consumers:
        url = f"{service.url}/topics/empty/pop?wait=60"
        pops = [consumers.submit(httpx.get, url, timeout=70) for _ in range(number)]
        service.wait_for_waiting_pops(number)
        yield responses
        responses.extend(pop.result(STOP_S) for pop in pops)


@contextlib.contextmanager
def waiting_for_a_job(service: ServiceProcess, number: int) -> Iterator[list[httpx.Response]]:
    """This number of callers wait for the end of a job; after the block their responses are in the list."""
    responses: list[httpx.Response] = []
    job = {"topic": "later", "id": "a", "delay": 600}
    httpx.post(f"{service.url}/jobs", json=job, verify=NO_TLS).raise_for_status()
    with ThreadPoolExecutor(number) as callers:
        url = f"{service.url}/jobs/later/a?wait=60"
        waits = [callers.submit(httpx.get, url, timeout=70) for _ in range(number)]
        service.wait_for_job_waits(number)
        yield responses
        responses.extend(wait.result(STOP_S) for wait in waits)


@contextlib.contextmanager
def unfinished_request(service: ServiceProcess) -> Iterator[None]:
    """A request in progress whose client has sent only half of its body."""
    head = "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    with socket.create_connection(("127.0.0.1", service.port), START_S) as slow:
        slow.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert slow.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        slow.sendall(b"{")
        yield


def accepts(port: int) -> bool:
    """Whether a service on this port accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), START_S):
        return True
    return False


@workers
def test_it_logs_where_it_listens_and_exits_with_0_after_responding_to_all_that_wait(
    tmp_path: Path, workers: int
) -> None:
    with ServiceProcess(tmp_path, "--workers", str(workers)) as service:
        [greeting] = service.lines
        pages = f"console: {service.url}/  docs: {service.url}/docs"
        assert f"listening on {service.url}  {pages}  store: embedded valkey " in greeting
        assert greeting.endswith(f" in {service.data_dir}\n")
        with (
            httpx.Client(verify=NO_TLS) as idle,
            waiting_for_a_job(service, 3) as jobs,
            waiting_pops(service, 5) as responses,
        ):
            assert idle.get(f"{service.url}/healthz").status_code == 200
            began = time.monotonic()
            assert service.stop() == 0
            assert time.monotonic() - began < STOP_S
    assert [(response.status_code, response.json()) for response in responses] == [(200, {"jobs": []})] * 5
    seen = [(job.status_code, job.json()["state"], "outcome" in job.json()) for job in jobs]
    assert seen == [(200, "delayed", False)] * 3
    assert [line.split(": ", 1)[1] for line in service.lines[1:]] == ["stopping: SIGTERM\n", "stopped\n"]


@workers
def test_an_idle_connection_gets_one_more_response_and_then_the_service_ends(tmp_path: Path, workers: int) -> None:
    flags = ("--drain-idle-timeout", "60", "--workers", str(workers))
    with ServiceProcess(tmp_path, *flags, preloaded=True) as service, httpx.Client(verify=NO_TLS) as idle:
        job = {"topic": "orders", "id": "a"}
        assert "connection" not in idle.post(f"{service.url}/jobs", json=job).headers
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not accepts(service.port), START_S, "the service has begun to stop")

        cancelled = idle.delete(f"{service.url}/jobs/orders/a")

        assert (cancelled.status_code, cancelled.headers["connection"]) == (200, "close")
        began = time.monotonic()
        assert service.process.wait(50) == 0
        assert time.monotonic() - began < 30  # it does not wait out the 60 s


@workers
def test_no_connection_is_reset_when_the_service_stops(tmp_path: Path, workers: int) -> None:
    """A caller cannot know whether a request without a response had an effect, so a proxy does not repeat it."""
    statuses: list[bytes] = []

    def call_until_refused(port: int, caller: int) -> None:
        for number in itertools.count():
            try:
                connection = socket.create_connection(("127.0.0.1", port), START_S)
            except ConnectionRefusedError:
                return
            with connection:
                connection.sendall(request("POST", "/jobs", {"topic": "orders", "id": f"{caller}-{number}"}))
                statuses.append(connection.recv(4096)[9:12])

    flags = ("--workers", str(workers))
    with ServiceProcess(tmp_path, *flags, preloaded=True) as service, ThreadPoolExecutor(32) as pool:
        callers = [pool.submit(call_until_refused, service.port, caller) for caller in range(32)]
        wait_until(lambda: len(statuses) > 200, START_S, "the callers call")
        service.process.send_signal(signal.SIGTERM)
        for caller in callers:
            caller.result(START_S)
        assert service.process.wait(STOP_S) == 0
    assert set(statuses) == {b"201"}


def test_first_requests_that_wait_for_their_turn_get_responses_when_the_service_stops(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, preloaded=True) as service, contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), START_S)) for _ in range(900)
        ]
        with service.frozen():  # so that all have come when it begins with the first
            for number, connection in enumerate(connections):
                connection.sendall(request("POST", "/jobs", {"topic": "orders", "id": f"{number}"}))
            service.process.send_signal(signal.SIGTERM)
        assert [connection.recv(4096)[9:12] for connection in connections] == [b"201"] * 900
        assert service.process.wait(STOP_S) == 0


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_idle_connections(tmp_path: Path) -> None:
    flags = ("--drain-idle-timeout", "60")
    with ServiceProcess(tmp_path, *flags, preloaded=True) as service, httpx.Client(verify=NO_TLS) as idle:
        assert idle.get(f"{service.url}/healthz").status_code == 200
        service.process.send_signal(signal.SIGINT)
        wait_until(lambda: not accepts(service.port), START_S, "the service has begun to stop")
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(STOP_S) == 1


@pytest.mark.slow
def test_an_unfinished_request_is_aborted_after_the_drain_timeout(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "--drain-timeout", "0.5", preloaded=True) as service, unfinished_request(service):
        began = time.monotonic()
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(STOP_S) == 0
        assert 0.5 < time.monotonic() - began < 10
    assert "Traceback" not in service.output()


@pytest.mark.slow
@workers
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path, workers: int) -> None:
    flags = ("--drain-timeout", "60", "--workers", str(workers))
    with ServiceProcess(tmp_path, *flags, preloaded=True) as service, unfinished_request(service):
        service.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping: SIGINT" in service.output(), START_S, "it has begun to stop")
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(STOP_S) == 1


@pytest.mark.slow
def test_a_second_service_on_the_same_directory_or_port_is_refused(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, preloaded=True) as first:
        same_directory = refused("--data-dir", str(first.data_dir), folder=tmp_path / "other")
        same_port = refused("--port", str(first.port), folder=tmp_path / "other")

        assert f"in use by another deferd service (process {first.process.pid})" in same_directory
        assert f"cannot listen on 127.0.0.1 port {first.port}" in same_port


@pytest.mark.slow
def test_a_refused_store_is_one_line(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", maxmemory_policy="volatile-ttl", requirepass="sesame") as server:
        line = refused("--redis-url", server.url, folder=tmp_path)

    assert "maxmemory-policy volatile-ttl" in line
    assert "sesame" not in line


@pytest.mark.slow
def test_server_processes_get_the_secrets_of_a_store_without_showing_them(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", requirepass="sesame") as server:
        with ServiceProcess(tmp_path, "--workers", "2", environment={"DEFERD_REDIS_URL": server.url}) as service:
            put_orders(service.url, 1)
            shown = [
                (entry / "cmdline").read_bytes()
                for entry in Path("/proc").glob("[0-9]*")
                if (entry / "cmdline").exists()
            ]
        assert f"at redis://{server.address}\n" in service.lines[0]
    assert "sesame" not in service.output()
    assert not any(b"sesame" in command for command in shown)


@pytest.mark.slow
def test_json_logs_are_json_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "--log-format", "json", preloaded=True) as service:
        assert service.stop() == 0

    records = [json.loads(line) for line in service.lines]
    assert records[0]["url"] == service.url
    assert records[-1]["message"] == "stopped"


@pytest.mark.slow
def test_after_a_sigkill_of_service_and_store_every_acknowledged_job_is_there(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "--workers", "2", preloaded=True) as service:
        put_orders(service.url, 20)
        service.kill_store()
        service.kill()

        service.start()
        assert all(has_order(service.url, n) for n in range(20))


@pytest.mark.slow
def test_the_metrics_of_each_server_process_are_those_of_all(tmp_path: Path) -> None:
    put = re.compile(r'deferd_puts_total\{outcome="created",topic="orders"\} (\S+)')
    with ServiceProcess(tmp_path, "--workers", "2", preloaded=True) as service:
        for n in range(20):  # each on a connection of its own, which goes to either process
            job = {"topic": "orders", "id": f"order-{n}", "delay": 100}
            assert httpx.post(f"{service.url}/jobs", json=job, verify=NO_TLS).status_code == 201
        for _ in range(20):
            [counted] = put.findall(httpx.get(f"{service.url}/metrics", verify=NO_TLS).text)
            assert float(counted) == 20


@pytest.mark.slow
def test_server_processes_and_a_store_that_die_are_restarted(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "--workers", "2", "--log-level", "debug", preloaded=True) as service:
        put_orders(service.url, 1)
        before = [int(pid) for pid in re.findall(r"server process \d is serving \(pid (\d+)\)", service.output())]
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        service.kill_store()

        wait_until(lambda: service.output().count(" is serving (pid") == 3, START_S, "there is another server process")
        wait_until(lambda: has_order(service.url, 0), START_S, "it works again")
        assert service.stop() == 0
    death = r"server process \d exited unexpectedly \(signal 9: it was killed, .*\); restarting it now"
    assert re.search(death, service.output())
