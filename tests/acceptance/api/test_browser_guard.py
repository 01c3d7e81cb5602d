"""A service without keys trusts its machine, but not the web pages that a browser there shows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.acceptance.http_calls import Http
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import Wire, connected

both_entry_points = pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])


async def send(wire: Wire, method: str, path: str, *headers: str, through_asgi: bool = False) -> tuple[int, str]:
    """The status and the detail of the response."""
    chunked = ("Transfer-Encoding: chunked",) if through_asgi else ()
    head = "\r\n".join((f"{method} {path} HTTP/1.1", *headers, *chunked, "", ""))
    wire.send(head.encode(), b"0\r\n\r\n" if through_asgi else b"")
    response = await wire.read_response()
    return response.status, response.json().get("detail", "") if response.body.startswith(b"{") else ""


OF_ANOTHER_SITE = [
    ("Host: 127.0.0.1:8000", "Sec-Fetch-Site: cross-site"),
    ("Host: 127.0.0.1:8000", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"),
    ("Host: 127.0.0.1:8000", "Origin: https://shop.example.com"),
    ("Host: 127.0.0.1:8000", "Origin: http://127.0.0.1:3000"),
    ("Host: 127.0.0.1:8000", "Origin: null"),
    ("Host:", "Origin: null"),
    ("Host:", "Origin:"),
    ("Host:", "Sec-Fetch-Site: same-site", "Origin: null"),
    ("Host: localhost", "Origin: localhost"),
    ("Host: localhost", "Origin: app://localhost"),
    ("Host: localhost", "Origin: https://shop.example.com", "Origin: http://localhost"),
    ("Host: localhost", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin"),
    ("Host: localhost:8000", "Sec-Fetch-Site: same-site", "Origin: null"),
    ("Host: b.corp.internal", "Sec-Fetch-Site: same-site", "Origin: http://a.corp.internal"),
    ("Host: b.corp.internal", "Sec-Fetch-Site: same-site", "Referer: http://a.corp.internal/page"),
    ("Host: [::1]:8000", "Sec-Fetch-Site: same-site", "Origin: http://[::2]:8000"),
]


@both_entry_points
async def test_a_page_of_another_site_pops_nothing(
    http: Http, shared_service: ServiceProcess, through_asgi: bool
) -> None:
    await http.put_job("j")
    async with connected(shared_service.port) as wire:
        for headers, method in itertools.product(OF_ANOTHER_SITE, ("GET", "POST")):
            status, detail = await send(
                wire, method, f"/topics/{http.topic}/pop?wait=0", *headers, through_asgi=through_asgi
            )
            assert (status, "refuses requests of web pages of other sites" in detail) == (403, True), headers
    assert (await http.get_job("j"))["attempts"] == 0
    assert (await http.pop_one())["attempt"] == 1


BROWSER = ("User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Accept-Language: de")
"""The headers of any browser; with a GET to a host that it does not know as this machine it may send no others."""


@both_entry_points
@pytest.mark.parametrize("host", ["0.0.0.0:8000", "vm", "kubernetes.docker.internal:8000", "localhost"])
async def test_an_image_of_a_page_pops_nothing_where_browsers_send_few_headers(
    http: Http, shared_service: ServiceProcess, host: str, through_asgi: bool
) -> None:
    await http.put_job("j")
    async with connected(shared_service.port) as wire:
        for referer in ((), ("Referer: http://shop.example.com/",), ("Referer: nothing",)):
            path = f"/topics/{http.topic}/pop?wait=0"
            headers = (f"Host: {host}", *BROWSER, *referer)
            assert (await send(wire, "GET", path, *headers, through_asgi=through_asgi))[0] == 403
            assert (await send(wire, "GET", f"/jobs/{http.topic}/j", *headers, through_asgi=through_asgi))[0] == 200
    assert (await http.get_job("j"))["attempts"] == 0


@both_entry_points
@pytest.mark.parametrize("host", ["rebound.example.com", "Rebound.Example.COM.:8000", "127.0.0.1.example.com", "a.b:1"])
async def test_a_site_whose_name_resolves_to_loopback_reads_and_changes_nothing(
    http: Http, shared_service: ServiceProcess, host: str, through_asgi: bool
) -> None:
    await http.put_job("j")
    async with connected(shared_service.port) as wire:
        for path in (f"/topics/{http.topic}/pop?wait=0", f"/jobs/{http.topic}/j", "/topics", "/metrics", "/docs"):
            status, detail = await send(
                wire, "GET", path, f"Host: {host}", "Sec-Fetch-Site: same-origin", through_asgi=through_asgi
            )
            assert (status, f"public name such as {host}" in detail) == (403, True), path
            assert "--keys-file" in detail
            assert "--allowed-host (DEFERD_ALLOWED_HOST)" in detail
    assert (await http.get_job("j"))["attempts"] == 0


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/audit", ("Host: vm:8000", *BROWSER), 403),
        ("/topics", ("Host: vm:8000", *BROWSER), 200),
        ("/audit", ("Host: localhost", "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"), 200),
    ],
)
async def test_a_head_is_admitted_as_a_get(
    shared_service: ServiceProcess, path: str, headers: tuple[str, ...], status: int
) -> None:
    async with connected(shared_service.port) as wire:
        assert (await send(wire, "GET", path, *headers))[0] == status
        wire.send("\r\n".join((f"HEAD {path} HTTP/1.1", *headers, "", "")).encode())
        assert (await wire.head()).startswith(f"HTTP/1.1 {status} ")


OF_PROGRAMS = [
    ("Host: localhost:8000", "Sec-Fetch-Site: same-origin", "Origin: http://localhost:8000"),
    ("Host: localhost:8000", "Sec-Fetch-Site: same-site", "Origin: http://localhost:3000"),
    ("Host: localhost:8000", "Sec-Fetch-Site: same-site", "Referer: http://LOCALHOST:3000/page"),
    ("Host: [::1]:8000", "Sec-Fetch-Site: same-site", "Origin: http://[::1]:3000"),
    ("Host: LOCALHOST", "Sec-Fetch-Site: none"),
    ("Host: 127.0.0.1:8000", "Origin: http://127.0.0.1:8000"),
    ("Host: [::1]:8000", "Origin: http://[::1]:8000"),
    ("Host: 192.168.7.1:80",),
    ("Host: deferd",),
    ("Host: deferd.localhost",),
    ("Host: host.docker.internal:8000",),
    ("Host: vm:8000", *BROWSER, "Referer: http://vm:8000/docs"),
    ("Host: vm:8000", "User-Agent: Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.1"),
]


@both_entry_points
async def test_other_programs_on_the_machine_are_served(
    http: Http, shared_service: ServiceProcess, through_asgi: bool
) -> None:
    async with connected(shared_service.port) as wire:
        for number, headers in enumerate(OF_PROGRAMS):
            await http.put_job(f"j{number}")
            for path in (f"/topics/{http.topic}/pop?wait=0", "/docs"):
                status, _ = await send(wire, "GET", path, *headers, through_asgi=through_asgi)
                assert status == 200, headers
            assert (await http.get_job(f"j{number}"))["state"] == "reserved", headers


async def test_the_docs_page_refuses_to_be_framed(http: Http) -> None:
    assert (await http.get("/docs")).headers["x-frame-options"] == "DENY"


async def test_pages_may_be_linked_to_and_health_is_public(shared_service: ServiceProcess) -> None:
    async with connected(shared_service.port) as wire:
        link = ("Host: localhost", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
        assert (await send(wire, "GET", "/docs", *link))[0] == 200
        for path in ("/healthz", "/readyz"):
            assert (await send(wire, "GET", path, "Host: jobs.example.com"))[0] == 200


OPENED = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")


@both_entry_points
@pytest.mark.parametrize(
    "how",
    [
        OPENED,
        ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"),
        ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: empty"),
        ("Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"),
        ("Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"),
        ("Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: style"),
        ("Sec-Fetch-Dest: a kind that is not known yet",),
    ],
    ids=" ".join,
)
async def test_addresses_that_a_browser_opens_or_loads_into_a_page_have_no_effect(
    http: Http, shared_service: ServiceProcess, how: tuple[str, ...], through_asgi: bool
) -> None:
    await http.put_job("j")
    of_topic, of_job = f"/topics/{http.topic}", f"/jobs/{http.topic}/j"
    effects = [("GET", f"{of_topic}/pop?wait=0"), ("POST", f"{of_topic}/pop?wait=0")]
    effects += [("POST", f"{of_topic}/pause"), ("DELETE", of_job)]
    async with connected(shared_service.port) as wire:
        for site in ("none", "same-origin", "same-site"):
            headers = ("Host: localhost:8000", f"Sec-Fetch-Site: {site}", *how)
            for method, path in effects:
                status, detail = await send(wire, method, path, *headers, through_asgi=through_asgi)
                assert (status, "has effects" in detail) == (403, True), (site, method, path)
            for path in (of_topic, of_job, f"{of_topic}/audit", "/schedules?limit=1"):
                assert (await send(wire, "GET", path, *headers, through_asgi=through_asgi))[0] == 200, (site, path)
    job = await http.get_job("j")
    assert (job["state"], job["attempts"]) == ("ready", 0)


async def test_an_unknown_page_of_the_same_site_has_no_effect(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("j")
    headers = ("Host: localhost", "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty")
    async with connected(shared_service.port) as wire:
        assert (await send(wire, "GET", f"/topics/{http.topic}/pop?wait=0", *headers))[0] == 403
        assert (await send(wire, "GET", f"/jobs/{http.topic}/j", *headers))[0] == 200
    assert (await http.get_job("j"))["attempts"] == 0


async def test_a_page_of_the_service_itself_may_fetch(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("j")
    headers = ("Host: localhost", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty")
    async with connected(shared_service.port) as wire:
        assert (await send(wire, "GET", f"/topics/{http.topic}/pop?wait=0", *headers))[0] == 200
    assert (await http.get_job("j"))["attempts"] == 1


async def test_insecure_listens_everywhere_says_what_that_means_and_allows_no_public_name(
    tmp_path: Path, topic: str
) -> None:
    with running_service("--host", "0.0.0.0", DEFERD_INSECURE="true", data_dir=tmp_path) as service:  # noqa: S104
        assert "WARNING  deferd: --insecure: no key is required" in service.lines[0]
        async with connected(service.port) as wire:
            path = f"/topics/{topic}/pop?wait=0"
            for host in ("localhost", "192.168.7.1:8000", "deferd"):
                assert (await send(wire, "GET", path, f"Host: {host}"))[0] == 200
            for url in (path, "/docs"):
                assert (await send(wire, "GET", url, "Host: jobs.example.com"))[0] == 403
            assert (await send(wire, "GET", path, "Host: localhost", "Sec-Fetch-Site: cross-site"))[0] == 403


@pytest.mark.parametrize(
    ("flags", "environment", "allowed", "refused"),
    [
        (
            ("--allowed-host", "Jobs.example.com", "--allowed-host", "*.example.org"),
            {"DEFERD_ALLOWED_HOST": "unused.example"},
            ("jobs.example.com", "JOBS.EXAMPLE.COM.:8000", "a.example.org", "a.b.example.org", "localhost"),
            ("example.com", "other.example.com", "example.org", "jobs.example.com.evil.example", "unused.example"),
        ),
        ((), {"DEFERD_ALLOWED_HOST": "*"}, ("any.example", "127.0.0.1"), ()),
    ],
    ids=["flags", "any"],
)
async def test_allowed_hosts_are_served_but_not_pages_of_other_sites(
    tmp_path: Path,
    flags: tuple[str, ...],
    environment: dict[str, str],
    allowed: tuple[str, ...],
    refused: tuple[str, ...],
) -> None:
    with running_service(*flags, data_dir=tmp_path, **environment) as service:
        async with connected(service.port) as wire:
            for url in ("/topics/t/pop?wait=0", "/docs"):
                for host in allowed:
                    assert (await send(wire, "GET", url, f"Host: {host}"))[0] == 200, host
                for host in refused:
                    assert (await send(wire, "GET", url, f"Host: {host}"))[0] == 403, host
            for elsewhere in (
                ("Sec-Fetch-Site: cross-site",),
                ("Sec-Fetch-Site: same-site", "Origin: https://user-pages.example.com"),
            ):
                headers = (f"Host: {allowed[0]}", *elsewhere)
                assert (await send(wire, "GET", "/topics/t/pop?wait=0", *headers))[0] == 403
