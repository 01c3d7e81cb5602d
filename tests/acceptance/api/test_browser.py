"""What a real browser does with addresses of a service without keys."""

from __future__ import annotations

import contextlib
import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.api.keyed_service import audit_lines
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.programs import require_browser
from tests.waiting import wait_until

PAGE_S = 50
WITHIN_S = 10.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service("--log-format", "json", data_dir=tmp_path_factory.mktemp("browsed")) as service:
        yield service


@contextlib.contextmanager
def html_site(html: str, *, redirect_to: str | None = None) -> Iterator[str]:
    """The address of another site on this machine, all of whose addresses show `html` or redirect."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if redirect_to is None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
            else:
                self.send_response(302)
                self.send_header("Location", redirect_to)
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def page_shown(address: str, profile: Path) -> str:
    """The page that the browser shows after it has opened an address."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    wait = ("--virtual-time-budget=3000", "--dump-dom")
    command = [require_browser(), *flags, f"--user-data-dir={profile}", *wait, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=PAGE_S, check=True).stdout


def put_job(service: ServiceProcess, topic: str) -> None:
    httpx.post(f"{service.url}/jobs", json={"topic": topic, "id": "j"}, verify=NO_TLS).raise_for_status()


def refused_pops(service: ServiceProcess, topic: str) -> int:
    return sum((line["topic"], line["outcome"]) == (topic, "forbidden") for line in audit_lines(service))


@pytest.mark.parametrize("way", ["typed", "redirect", "link", "frame and image"])
def test_no_way_to_open_a_pop_in_a_browser_reserves_a_job(
    service: ServiceProcess, topic: str, tmp_path: Path, way: str
) -> None:
    put_job(service, topic)
    pop = f"http://localhost:{service.port}/topics/{topic}/pop?wait=0"
    html = {
        "link": f'<a id="a" href="{pop}">a</a><script>document.getElementById("a").click()</script>',
        "frame and image": f'<iframe src="{pop}"></iframe><img src="{pop}">',
    }.get(way, "")
    with html_site(html, redirect_to=pop if way == "redirect" else None) as elsewhere:
        shown = page_shown(pop if way == "typed" else elsewhere, tmp_path)
    pops = 2 if way == "frame and image" else 1
    wait_until(lambda: refused_pops(service, topic) == pops, WITHIN_S, "the browser sent each pop, and was refused")
    if way in ("typed", "redirect"):
        assert "has effects" in shown
    job = httpx.get(f"{service.url}/jobs/{topic}/j", verify=NO_TLS).json()
    assert (job["state"], job["attempts"]) == ("ready", 0)


def test_a_person_may_read_in_a_browser(service: ServiceProcess, topic: str, tmp_path: Path) -> None:
    put_job(service, topic)
    assert '"ready":1' in page_shown(f"http://localhost:{service.port}/topics/{topic}", tmp_path)
