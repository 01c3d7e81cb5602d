"""Real services, and a real Chromium that looks at their consoles.

A test takes `open_page`: a page that fails its test on any console error, violation of the Content-Security-Policy,
request to another host, and file that does not load. Without Chromium these tests are skipped by name; in CI they fail.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.acceptance.api.keyed_service import KeysFile, keys_of_every_kind
from tests.acceptance.console.job_pages import Producer
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.programs import require_browser, require_program
from tests.waiting import wait_until

PREFIX = "/x/deferd"
START_S = 20.0
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says of a form of the console's own page."""
EVERYTHING = ("read", "put", "pop", "cancel", "admin")
CALL_TIMEOUT_MS = 10_000
SHOWN_MS = 15_000  # a look at all topics is kept for up to 5 s, and a page polls every 2 s
_WATCH_POLICY = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} blocked ${event.blockedURI} ${event.sample}`));
"""
_READ_OFTEN = """
document.addEventListener("DOMContentLoaded", () => {
  for (const region of document.querySelectorAll("[data-every='2']")) region.dataset.every = 0.5;
});
"""
"""Read the regions of a page four times as often as usual."""


@dataclass
class Watched:
    """A page with what went wrong on it. `expected_statuses` are of responses that the test provokes."""

    page: Page
    host: str
    problems: list[str] = field(default_factory=list)
    expected_statuses: set[int] = field(default_factory=set)

    def watch(self) -> None:
        """Note problems from now on."""
        self.page.on("console", lambda message: self._on_console(message.type, message.text))
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("request", lambda request: self._on_request(request.url))
        self.page.on("response", lambda response: self._on_response(response.status, response.url))

    def _on_console(self, kind: str, text: str) -> None:
        if kind not in {"error", "warning"}:
            return
        if any(f"status of {status}" in text or f"Code {status}" in text for status in self.expected_statuses):
            return
        if 0 in self.expected_statuses and "net::ERR_" in text:
            return
        self.problems.append(f"console: {text}")

    def _on_request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self.host:
            self.problems.append(f"request to another host: {url}")

    def _on_response(self, status: int, url: str) -> None:
        if status >= 400 and status not in self.expected_statuses:
            self.problems.append(f"{status}: {url}")


OpenPage = Callable[..., Watched]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For modules without async tests: Playwright's event loop runs in this thread until the module ends."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=SHOWN_MS)
        browser = playwright.chromium.launch(executable_path=require_browser(), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened_pages(browser: Browser) -> Iterator[OpenPage]:
    """Opens a URL in a context of its own, with options of Playwright's `new_context` (viewport, color_scheme ...).

    With `beside` it is another tab of that page's context. Its regions are read often, so that a test soon sees what
    has changed, but with `at_leisure`.
    """
    opened: list[tuple[BrowserContext, Watched]] = []

    def open_url(
        url: str, *, token: str | None = None, beside: Watched | None = None, at_leisure: bool = False, **options: Any
    ) -> Watched:
        if beside is None:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
            context.set_default_timeout(CALL_TIMEOUT_MS)
            context.add_init_script(_WATCH_POLICY)
            if not at_leisure:
                context.add_init_script(_READ_OFTEN)
        else:
            context = beside.page.context
        watched = Watched(context.new_page(), urlsplit(url).netloc)
        opened.append((context, watched))
        watched.watch()
        watched.page.goto(url)
        if token is not None:
            watched.page.get_by_label("Key", exact=True).fill(token)
            watched.page.get_by_role("button", name="Log in").click()
            watched.page.wait_for_url(lambda at: not at.endswith("/login") and "/login?" not in at)
        return watched

    yield open_url
    problems = [problem for _, watched in opened for problem in watched.problems]
    for context in {context for context, _ in opened}:
        context.close()
    assert problems == []


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    with opened_pages(browser) as open_url:
        yield open_url


@pytest.fixture(scope="session")
def without_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(data_dir=tmp_path_factory.mktemp("console")) as service:
        yield service


@pytest.fixture
def browser_like(without_keys: ServiceProcess) -> Iterator[httpx.Client]:
    """A browser without scripts at the console without keys."""
    with httpx.Client(base_url=without_keys.url, headers=OWN_PAGE, timeout=10, verify=NO_TLS) as client:
        yield client


@pytest.fixture
def jobs(without_keys: ServiceProcess, topic: str) -> Iterator[Producer]:
    with Producer(without_keys.url, topic) as producer:
        yield producer


@dataclass(frozen=True)
class KeyedService:
    """A service with a key for each scope, named like it; its tokens are in `keys.tokens`."""

    service: ServiceProcess
    keys: KeysFile

    @property
    def url(self) -> str:
        """Where the service listens."""
        return self.service.url


@contextlib.contextmanager
def console(service: KeyedService, name: str) -> Iterator[httpx.Client]:
    """A browser without scripts that has logged in with the key of this name."""
    with httpx.Client(base_url=service.url, headers=OWN_PAGE, timeout=10, verify=NO_TLS) as client:
        client.post("/console/login", data={"key": service.keys.tokens[name]})
        yield client


@contextlib.contextmanager
def console_without_read(service: KeyedService, scope: str) -> Iterator[httpx.Client]:
    """A browser without scripts whose key, which could read at the log-in, has only this scope since then."""
    name = f"lost-{scope}"
    service.keys.add(name, "read")
    known = {"Authorization": f"Bearer {service.keys.tokens[name]}"}

    def responds(status: int) -> Callable[[], bool]:
        return lambda: httpx.get(f"{service.url}/topics", headers=known, verify=NO_TLS).status_code == status

    wait_until(responds(200), START_S, "the key is known")
    with console(service, name) as client:
        service.keys.add(name, scope)
        wait_until(responds(403), START_S, "the key can't read")
        yield client


@pytest.fixture(scope="session")
def with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedService]:
    """Its keys have one scope each; one more, `everything`, has all."""
    folder = tmp_path_factory.mktemp("console-keys")
    keys = keys_of_every_kind(folder / "keys.toml")
    keys.add("everything", *EVERYTHING)
    with running_service("--log-format", "json", "--keys-file", str(keys.path), data_dir=folder / "service") as service:
        yield KeyedService(service, keys)


@pytest.fixture(scope="session")
def masking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedService]:
    """A service that masks fields, and has the name of an environment. The limits of some of its keys are used up at
    once, or by a selection.
    """
    folder = tmp_path_factory.mktemp("console-masks")
    keys = KeysFile(folder / "keys.toml")
    keys.add("reader", "read")
    keys.add("operator", *EVERYTHING)
    keys.add("canceller", "read", "cancel")
    keys.add("slow", "read", "cancel", more="requests_per_second = 0.1\nburst = 3")
    keys.add("lister", "read", "cancel", more="requests_per_second = 1\nburst = 40")
    for name in ("limited", "another"):
        keys.add(name, "read", "cancel", "put", more="requests_per_second = 10\nburst = 30")
    shown = ("--console-mask", "password,*.token", "--environment", "production", "--environment-color", "red")
    flags = ("--keys-file", str(keys.path), *shown)
    with running_service(*flags, data_dir=folder / "service") as service:
        yield KeyedService(service, keys)


@pytest.fixture
def masked_jobs(masking: KeyedService, topic: str) -> Iterator[Producer]:
    with Producer(masking.url, topic, masking.keys.tokens["operator"]) as producer:
        yield producer


@pytest.fixture(scope="session")
def behind_prefix(with_keys: KeyedService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the service with keys behind an nginx that strips PREFIX."""
    folder = tmp_path_factory.mktemp("console-proxy")
    folder.chmod(0o755)
    with running_prefix_proxy(with_keys.service, folder) as url:
        yield url


@contextlib.contextmanager
def running_prefix_proxy(service: ServiceProcess, folder: Path) -> Iterator[str]:
    """An nginx that passes what is below PREFIX, without it, to the service."""
    program = require_program("nginx")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    paths = "".join(f"{kind}_temp_path {folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ {paths} access_log off; "
        f"server {{ listen 127.0.0.1:{port}; location {PREFIX}/ {{ proxy_pass http://127.0.0.1:{service.port}/; "
        "proxy_set_header Host $http_host; proxy_http_version 1.1; } } }",
        encoding="utf-8",
    )
    process = subprocess.Popen([program, "-p", folder, "-c", file], stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}{PREFIX}"

    def is_ready() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/readyz", verify=NO_TLS).status_code == 200
        return False

    try:
        wait_until(is_ready, START_S, "the proxy forwards requests")
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=START_S)
