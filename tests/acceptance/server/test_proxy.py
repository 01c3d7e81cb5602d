"""The proxy of docker-compose.yml, as a real nginx with its configuration, before a real service."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.ports import free_port
from tests.unit.project.test_deployment_files import COMPOSE, nginx_config
from tests.waiting import wait_until

NGINX = shutil.which("nginx")
START_S = 20.0

pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx is installed")


def on_this_machine(config: str, port: int, service_port: int, folder: Path) -> str:
    """The configuration with the ports and folders of a test, and without Docker's DNS."""
    paths = "".join(f"{kind}_temp_path {folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = re.sub(r"listen 8000", f"listen 127.0.0.1:{port}", config)
    config = re.sub(r"server deferd:8000 resolve", f"server 127.0.0.1:{service_port}", config)
    config = re.sub(r"worker_(processes|rlimit_nofile|connections) .*;", "", config)
    return f"daemon off; pid {folder}/pid; error_log stderr;\n" + config.replace("http {", "http {\n" + paths, 1)


@contextlib.contextmanager
def running_proxy(service: ServiceProcess, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    assert NGINX is not None
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(on_this_machine(nginx_config(environment), port, service.port, folder), encoding="utf-8")
    process = subprocess.Popen([NGINX, "-p", folder, "-c", file], stderr=subprocess.PIPE, text=True)

    def is_ready() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/readyz", verify=NO_TLS).status_code == 200
        return False

    try:
        wait_until(is_ready, START_S, "the proxy forwards requests")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=START_S)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {"DEFERD_ALLOWED_HOST": "jobs.example.com *.example.org"}
    service_environment = {"DEFERD_INSECURE": COMPOSE["services"]["deferd"]["environment"]["DEFERD_INSECURE"]}
    folder = tmp_path_factory.mktemp("proxied")
    folder.chmod(0o755)
    with (
        running_service(data_dir=folder / "service", **service_environment, **environment) as service,
        running_proxy(service, folder, environment) as url,
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
