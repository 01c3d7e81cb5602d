"""The proxy of docker-compose.yml, as a real nginx with its configuration, before a real service."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer
from tests.ports import free_port
from tests.unit.project.test_deployment_files import COMPOSE, nginx_config
from tests.waiting import wait_until

NGINX = shutil.which("nginx")
START_S = 20.0
CALLERS = 12

pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx is installed")


def on_this_machine(config: str, port: int, services: Sequence[ServiceProcess], folder: Path) -> str:
    """The configuration with the ports and folders of a test, and without Docker's DNS."""
    paths = "".join(f"{kind}_temp_path {folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = re.sub(r"listen 8000", f"listen 127.0.0.1:{port}", config)
    config = config.replace("127.0.0.1:8001", f"127.0.0.1:{free_port()}")
    replicas = [rf"server 127.0.0.1:{service.port} \1;" for service in services]
    config = re.sub(r"server deferd:8000 resolve (.*);", "\n".join(replicas), config)
    config = re.sub(r"worker_(processes|rlimit_nofile|connections) .*;", "", config)
    return f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\n" + config.replace(
        "http {", "http {\n" + paths, 1
    )


@contextlib.contextmanager
def running_proxy(services: Sequence[ServiceProcess], folder: Path, environment: dict[str, str]) -> Iterator[str]:
    assert NGINX is not None
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(on_this_machine(nginx_config(environment), port, services, folder), encoding="utf-8")
    log = folder / "error.log"
    process = subprocess.Popen([NGINX, "-e", log, "-p", folder, "-c", file])

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/readyz", verify=NO_TLS).status_code == 200
        return False

    try:
        wait_until(is_ready, START_S, "the proxy forwards requests")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_S)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {"DEFERD_ALLOWED_HOST": "jobs.example.com *.example.org"}
    service_environment = {"DEFERD_INSECURE": COMPOSE["services"]["deferd"]["environment"]["DEFERD_INSECURE"]}
    folder = tmp_path_factory.mktemp("proxied")
    folder.chmod(0o755)
    with (
        running_service(data_dir=folder / "service", **service_environment, **environment) as service,
        running_proxy([service], folder, environment) as url,
    ):
        yield url


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:8000", "127.0.0.1", "[::1]:8000", "proxy", "a.localhost", "JOBS.example.com:8000"),
        *("a.b.example.org", "printer.local", "host.docker.internal:8000", "jobs.test", "nas.home.arpa"),
    ],
)
def test_it_forwards_requests_for_its_own_names(proxied: str, host: str) -> None:
    assert httpx.get(f"{proxied}/topics", headers={"Host": host}, verify=NO_TLS).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["rebound.example.com", "rebound.example.net:8000", "example.org", "127.0.0.1.example.net", "1.2.3.4.nip.io"],
)
def test_it_refuses_requests_for_other_names(proxied: str, host: str) -> None:
    response = httpx.get(f"{proxied}/topics", headers={"Host": host}, verify=NO_TLS)
    assert (response.status_code, response.headers["content-type"]) == (421, "application/problem+json")
    assert response.json()["status"] == 421
    assert "DEFERD_ALLOWED_HOST" in response.json()["detail"]


@pytest.mark.slow
def test_no_call_fails_while_the_replicas_restart_in_turn(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    stop = threading.Event()
    with contextlib.ExitStack() as running:
        store = running.enter_context(StoreServer(tmp_path / "store")).mark_used()
        replicas = [
            running.enter_context(running_service("--redis-url", store.url, data_dir=tmp_path / name)) for name in "ab"
        ]
        url = running.enter_context(running_proxy(replicas, tmp_path, {}))
        callers = running.enter_context(ThreadPoolExecutor(CALLERS))
        running.callback(stop.set)
        calls = [callers.submit(put_and_cancel, url, number, stop) for number in range(CALLERS)]
        for replica in replicas * 2:
            replica.stop()
            replica.start()
        stop.set()
        statuses: Counter[int] = sum((call.result() for call in calls), Counter())

    assert statuses.keys() == {200, 201}
    assert min(statuses.values()) > 100


def put_and_cancel(url: str, caller: int, stop: threading.Event) -> Counter[int]:
    """Put jobs and cancel each until stopped; the statuses of the responses."""
    statuses: Counter[int] = Counter()
    with httpx.Client(base_url=url, verify=NO_TLS, trust_env=False) as client:
        for number in itertools.count():
            if stop.is_set():
                return statuses
            job_id = f"{caller}-{number}"
            statuses[client.post("/jobs", json={"topic": "orders", "id": job_id, "delay": 600}).status_code] += 1
            statuses[client.delete(f"/jobs/orders/{job_id}").status_code] += 1
    raise AssertionError("unreachable")
