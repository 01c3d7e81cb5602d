"""The documented proxies, with their configurations, before a real service: nginx of docker-compose.yml, and HAProxy of
docs/deployment/haproxy.cfg."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from deferd.api import problem_details
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.server.restart_load import Endpoints, running_load
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer
from tests.ports import free_port
from tests.unit.project.test_deployment_files import COMPOSE, nginx_config
from tests.waiting import until, wait_until

START_S = 20.0
BODY_BYTES = 4096

HAPROXY_CONFIG = Path(__file__).parents[3] / "docs/deployment/haproxy.cfg"


def haproxy_on_this_machine(config: str, port: int, replicas: Sequence[int]) -> str:
    """The configuration with the ports of a test."""
    ports = iter(replicas)
    config = config.replace("maxconn 32768", "maxconn 1000").replace("bind :8000", f"bind 127.0.0.1:{port}")
    servers = [f"    server {number} 127.0.0.1:{next(ports)}\n" for number in range(len(replicas))]
    return re.sub(r"( {4}server .*\n)+", "".join(servers), config)


def nginx_on_this_machine(config: str, port: int, replicas: Sequence[int], folder: Path) -> str:
    """The configuration with the ports and folders of a test, and without Docker's DNS."""
    paths = "".join(f"{kind}_temp_path {folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = re.sub(r"listen 8000", f"listen 127.0.0.1:{port}", config)
    config = config.replace("127.0.0.1:8001", f"127.0.0.1:{free_port()}")
    servers = [rf"server 127.0.0.1:{replica} \1;" for replica in replicas]
    config = re.sub(r"server deferd:8000 resolve (.*);", "\n".join(servers), config)
    config = re.sub(r"worker_(processes|rlimit_nofile|connections) .*;", "", config)
    return f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\n" + config.replace(
        "http {", "http {\n" + paths, 1
    )


@contextlib.contextmanager
def running_proxy(kind: str, replicas: Sequence[int], folder: Path, environment: dict[str, str]) -> Iterator[str]:
    port = free_port()
    command: list[str | Path]
    file, log = folder / "proxy.conf", folder / "error.log"
    if kind == "nginx":
        text = nginx_on_this_machine(nginx_config(environment), port, replicas, folder)
        command = ["nginx", "-e", log, "-p", folder, "-c", file]
    else:
        text = haproxy_on_this_machine(HAPROXY_CONFIG.read_text(encoding="utf-8"), port, replicas)
        command = ["haproxy", "-db", "-f", file]
    file.write_text(text, encoding="utf-8")
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        wait_until(is_ready, START_S, "the proxy listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_S)


class Proxied(NamedTuple):
    """A service, and the URL of the proxy before it."""

    url: str
    service: ServiceProcess


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.needs(kind)) for kind in ("nginx", "haproxy")],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def proxied(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    names = "jobs.example.com *.example.org"
    environment = {
        "DEFERD_ALLOWED_HOST": names,
        "DEFERD_MAX_BODY_BYTES": str(BODY_BYTES),
        "DEFERD_TRUSTED_PROXY": "127.0.0.1",
    }
    service_environment = {"DEFERD_INSECURE": COMPOSE["services"]["deferd"]["environment"]["DEFERD_INSECURE"]}
    folder = tmp_path_factory.mktemp("proxied")
    folder.chmod(0o755)
    with (
        running_service(data_dir=folder / "service", **service_environment, **environment) as service,
        running_proxy(kind, [service.port], folder, environment) as url,
    ):
        yield Proxied(url, service)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:8000", "127.0.0.1", "[::1]:8000", "proxy", "a.localhost", "JOBS.example.com:8000"),
        *("a.b.example.org", "printer.local", "host.docker.internal:8000", "jobs.test", "nas.home.arpa"),
    ],
)
def test_it_forwards_requests_for_its_own_names(proxied: Proxied, host: str) -> None:
    assert httpx.get(f"{proxied.url}/topics", headers={"Host": host}, verify=NO_TLS).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["rebound.example.com", "rebound.example.net:8000", "example.org", "127.0.0.1.example.net", "1.2.3.4.nip.io"],
)
def test_it_refuses_requests_for_other_names(proxied: Proxied, kind: str, host: str) -> None:
    """nginx by itself; HAProxy leaves that to the service."""
    response = httpx.get(f"{proxied.url}/topics", headers={"Host": host}, verify=NO_TLS)
    status = 421 if kind == "nginx" else 403
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert response.json()["status"] == status
    assert "DEFERD_ALLOWED_HOST" in response.json()["detail"]


def test_it_refuses_a_large_body_as_the_service_does(proxied: Proxied) -> None:
    bodies = [
        httpx.post(f"{url}/jobs", content=b"x" * (BODY_BYTES + 1), verify=NO_TLS)
        for url in (proxied.service.url, proxied.url)
    ]
    assert [response.status_code for response in bodies] == [413, 413]
    assert {response.headers["content-type"] for response in bodies} == {"application/problem+json"}
    of_service, of_proxy = (response.json() for response in bodies)
    assert of_proxy == of_service


@pytest.mark.parametrize(("source", "caller"), [("127.0.0.1", "198.51.100.7"), ("127.0.0.2", "127.0.0.2")])
def test_the_service_knows_who_calls_through_it(proxied: Proxied, topic: str, source: str, caller: str) -> None:
    """The address that a trusted proxy in front of it has appended; from elsewhere, the header says nothing."""
    headers = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7", "Forwarded": "for=203.0.113.60"}
    transport = httpx.HTTPTransport(local_address=source, verify=NO_TLS)
    with httpx.Client(base_url=proxied.url, headers=headers, transport=transport) as client:
        assert client.put(f"/topics/{topic}", json={}).is_success
        assert client.delete(f"/topics/{topic}").is_success  # it takes a way of its own through the proxy
    activity = httpx.get(f"{proxied.service.url}/activity", verify=NO_TLS).json()["activity"]
    assert {entry["by"] for entry in activity if entry["topic"] == topic} == {caller}


Handle = Callable[[socketserver.StreamRequestHandler], None]


@contextlib.contextmanager
def replica(handle: Handle) -> Iterator[int]:
    """The port of a server that does this with each connection, and closes it."""
    handler = type("Handler", (socketserver.StreamRequestHandler,), {"handle": handle})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_it_repeats_no_call_with_effects_and_reports_replicas_that_do_not_respond(kind: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    requests: list[str] = []

    def die(connection: socketserver.StreamRequestHandler) -> None:
        requests.append(connection.rfile.readline().split()[0].decode())

    with replica(die) as a, replica(die) as b, running_proxy(kind, [a, b], tmp_path, {}) as url:
        for method, times in {"POST": 1, "PATCH": 1, "DELETE": 1, "GET": 2}.items():
            requests.clear()
            response = httpx.request(method, f"{url}/jobs/orders/1", verify=NO_TLS)
            assert requests == [method] * times
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            expected = problem_details.document("store_unavailable", "no replica of the service responds")
            assert response.json() == expected


def test_a_replica_that_refuses_connections_costs_no_call(kind: str, tmp_path: Path) -> None:
    """Also no cancel: nothing was sent, so that to send it to the other one is safe."""
    tmp_path.chmod(0o755)

    def respond(connection: socketserver.StreamRequestHandler) -> None:
        connection.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    with replica(respond) as port, running_proxy(kind, [free_port(), port], tmp_path, {}) as url:
        for method in ("POST", "PATCH", "DELETE", "GET") * 5:
            assert httpx.request(method, f"{url}/jobs/orders/1", verify=NO_TLS).status_code == 200, method


def test_it_passes_on_the_response_to_a_pop_at_once(kind: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    has_arrived = threading.Event()

    def respond(connection: socketserver.StreamRequestHandler) -> None:
        connection.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\njob")
        assert has_arrived.wait(START_S)
        connection.wfile.write(b"more")

    with (
        replica(respond) as port,
        running_proxy(kind, [port], tmp_path, {}) as url,
        httpx.stream("POST", f"{url}/topics/orders.close,orders.remind/pop", timeout=10, verify=NO_TLS) as response,
    ):
        pieces = response.iter_raw()
        assert next(pieces) == b"job"
        has_arrived.set()
        assert b"".join(pieces) == b"more"


@pytest.mark.slow(seconds=30)
async def test_no_call_fails_while_the_replicas_restart_in_turn(kind: str, tmp_path: Path) -> None:
    await asyncio.to_thread(tmp_path.chmod, 0o755)
    drain_idle = {
        name: value for name, value in COMPOSE["services"]["deferd"]["environment"].items() if "DRAIN" in name
    }
    with contextlib.ExitStack() as running:
        store = running.enter_context(StoreServer(tmp_path / "store")).mark_used()
        replicas = [
            running.enter_context(running_service("--redis-url", store.url, data_dir=tmp_path / name, **drain_idle))
            for name in "ab"
        ]
        url = running.enter_context(running_proxy(kind, [replica.port for replica in replicas], tmp_path, {}))
        async with running_load(Endpoints([int(url.rpartition(":")[2])])) as outcome:
            for replica in replicas * 2:
                before = outcome.requests
                assert await asyncio.to_thread(replica.stop) == 0
                await asyncio.to_thread(replica.start)
                await until(lambda: outcome.requests > before + 500, "the callers go on")  # noqa: B023 (awaited here)

    assert outcome.is_clean, outcome.report()
