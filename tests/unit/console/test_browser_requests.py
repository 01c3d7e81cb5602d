"""What the console decides by headers, and how it writes values."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.console.browser_requests import cookie_paths, forwarded_prefix, is_secure, relative_root
from deferd.console.rendering import Renderer, duration, instant, number
from deferd.console.views import ROUTES
from deferd.console.visit import PageRoutes

DASH = "\N{EN DASH}"


def scope(path: str = "/console/login", **headers: str) -> dict[str, Any]:
    return {"path": path, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}


@pytest.mark.parametrize(
    ("path", "referer", "expected"),
    [
        ("/console/login", "https://a.example/console/login?next=x", "/"),
        ("/console/login", "https://a.example/x/deferd/console/login", "/x/deferd/"),
        ("/console/login", "https://a.example/console/deferd/console/login", "/console/deferd/"),
        ("/console/logout", "https://a.example/x/deferd/", "/x/deferd/"),
        ("/console/logout", "https://a.example/x/deferd/console/topics", "/x/deferd/"),
        ("/console/logout", "https://a.example/", "/"),
        ("/console/login", "", "/"),
        ("/console/login", "https://[a/x/console/login", "/"),
        ("/console/login", "https://a.example/a;Domain=b/console/login", "/"),
        ("/console/logout", "https://a.example/x/console/deferd/", "/x/console/deferd/"),
        ("/console/logout", "https://a.example/x/console/topics/console", "/x/"),
        ("/console/logout", "https://a.example/x/console/topics/console/jobs", "/x/ /x/console/topics/"),
        ("/console/logout", "https://a.example/console/topics/console/jobs", "/ /console/topics/"),
    ],
)
def test_a_cookie_is_for_the_console_below_its_prefix(path: str, referer: str, expected: str) -> None:
    assert cookie_paths(scope(path, referer=referer)) == expected.split()


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [("https", True), ("HTTPS, http", True), ("http, https", False), ("http", False), ("", False)],
)
def test_the_first_proxy_says_whether_the_browser_uses_https(forwarded: str, expected: bool) -> None:
    assert is_secure(scope(**{"x-forwarded-proto": forwarded})) is expected
    in_fields = [(b"x-forwarded-proto", proxy.encode()) for proxy in forwarded.split(", ")]
    assert is_secure({"headers": in_fields}) is expected


@pytest.mark.parametrize(
    ("headers", "prefix"),
    [
        ({"x-forwarded-prefix": "/x/deferd/"}, "/x/deferd"),
        ({"x-forwarded-prefix": "/outer, /inner"}, "/outer"),
        ({"x-forwarded-prefix": "/a b"}, ""),
        ({"referer": "https://a.example/x/console/dead"}, "/x"),
        ({"referer": "https://a.example/other/"}, ""),
        ({"referer": "https://[a/x/console/dead"}, ""),
        ({}, ""),
    ],
)
def test_the_prefix_of_a_proxy_is_known_from_it_or_from_the_page_that_polls(
    headers: dict[str, str], prefix: str
) -> None:
    assert forwarded_prefix(scope("/console/dead", **headers)) == prefix


@pytest.mark.parametrize(
    ("path", "root"),
    [("/", "./"), ("/console", "./"), ("/console/topics", "../"), ("/console/topics/t/jobs", "../../../")],
)
def test_the_root_is_relative_to_the_page(path: str, root: str) -> None:
    assert relative_root(path) == root


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, DASH),
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (59.6, "1 min"),
        (250, "4 min 10 s"),
        (7200, "2 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_and_instants_are_written_for_people() -> None:
    assert (number(1234567), number(0.25), number(None)) == ("1,234,567", "0.2", DASH)
    assert str(instant("2026-03-01T12:00:00.5+01:00")) == (
        '<time datetime="2026-03-01T11:00:00.500Z" data-relative>2026-03-01 11:00:00 UTC</time>'
    )


def test_templates_escape_what_they_show() -> None:
    values = {"listing": {"topics": [], "complete": True}, "name": "<script>", "first": 0}

    assert "&lt;script&gt;" in Renderer().render_regions("topics.html", ["topics"], values)


def test_no_two_views_have_one_url() -> None:
    urls = [(route.method, route.path) for route in ROUTES]

    assert len(urls) == len(set(urls))
    assert all(PageRoutes(ROUTES).find(method, path.replace("{", "").replace("}", "")) for method, path in urls)
