"""Requests as they are written, and responses as they are parsed, without a connection."""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple

import httpcore
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deferd.client import http1
from deferd.client.consuming import pop
from deferd.client.endpoint import Endpoint, alternating, parse_proxy_url
from deferd.client.errors import UnexpectedAnswer
from deferd.client.events import _read_event
from deferd.client.http1 import HttpResponse, MalformedResponse, RequestWriter, ResponseParser, ServerSentEvent
from deferd.client.requests import ApiRequest, request_for
from deferd.client.transport import HttpSettings, user_agent
from deferd.contract.operations.jobs import GET_JOB
from tests.drawn_input import drawn

OK = b"HTTP/1.1 200 OK\r\n"
TLS = ssl.create_default_context()


def parsed(*pieces: bytes, ended: bool = False, head_only: bool = False) -> tuple[HttpResponse | None, bool]:
    """The response in these pieces, and whether the connection can be reused."""
    parser = ResponseParser()
    parser.begin(head_only=head_only)
    response = None
    for piece in pieces:
        response = parser.receive(piece)
    if response is None and ended:
        response = parser.end()
    return response, parser.is_reusable


WHOLE = [
    (OK + b"content-length: 2\r\n\r\nab", HttpResponse(200, b"ab", None), True),
    (OK + b"Content-Length: 0\r\nRetry-After: 7\r\n\r\n", HttpResponse(200, b"", "7"), True),
    (OK + b"content-length: 0\r\nretry-after: 7\r\nretry-after: 8\r\n\r\n", HttpResponse(200, b"", "7, 8"), True),
    (OK + b"content-length: 2\r\nconnection: close\r\n\r\nab", HttpResponse(200, b"ab", None), False),
    (b"HTTP/1.0 200\r\ncontent-length: 2\r\n\r\nab", HttpResponse(200, b"ab", None), False),
    (
        OK + b"transfer-encoding: chunked\r\n\r\n1;x=y\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
        HttpResponse(200, b"abc", None),
        True,
    ),
    (
        OK + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nretry-after: 9\r\n\r\n",
        HttpResponse(200, b"a", None),
        True,
    ),
    (b"HTTP/1.1 204 No Content\r\n\r\n", HttpResponse(204, b"", None), True),
    (b"HTTP/1.1 304 x\r\ncontent-length: 9\r\n\r\n", HttpResponse(304, b"", None), True),
    (b"HTTP/1.1 100 x\r\n\r\nHTTP/1.1 201 x\r\ncontent-length: 1\r\n\r\na", HttpResponse(201, b"a", None), True),
    (
        b"HTTP/1.1 103 x\r\nretry-after: 1\r\n\r\nHTTP/1.1 503 x\r\nretry-after: 2\r\ncontent-length: 0\r\n\r\n",
        HttpResponse(503, b"", "2"),
        True,
    ),
]


@pytest.mark.parametrize(("data", "response", "is_reusable"), WHOLE)
def test_a_response_is_the_same_however_its_bytes_arrive(
    data: bytes, response: HttpResponse, *, is_reusable: bool
) -> None:
    assert (response, is_reusable) == parsed(data)
    assert (response, is_reusable) == parsed(*(data[at : at + 1] for at in range(len(data))))
    for at in range(1, len(data)):
        assert (response, is_reusable) == parsed(data[:at], data[at:])
        with pytest.raises(MalformedResponse):
            parsed(data[:at], ended=True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert (HttpResponse(200, b"abc", None), False) == parsed(OK + b"\r\nab", b"c", ended=True)
    assert parsed(OK + b"\r\n")[0] is None


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nretry-after: 1\r\n\r\nb", b"H", b"\0"])
def test_a_connection_with_bytes_after_the_response_is_not_reused(more: bytes) -> None:
    assert (HttpResponse(200, b"a", None), False) == parsed(OK + b"content-length: 1\r\n\r\na" + more)


def test_the_next_response_on_a_connection_has_nothing_of_the_one_before() -> None:
    parser = ResponseParser()
    for count in range(1, 4):
        parser.begin()
        head = OK + (b"content-length: 1\r\nretry-after: 5\r\n\r\n" if count == 1 else b"content-length: 1\r\n\r\n")
        assert parser.receive(head + b"%d" % count) == HttpResponse(200, b"%d" % count, "5" if count == 1 else None)
        assert parser.is_reusable


@pytest.mark.parametrize("headers", [b"", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"])
def test_a_response_to_head_has_no_body(headers: bytes) -> None:
    assert (HttpResponse(200, b"", None), False) == parsed(OK + headers + b"\r\n", head_only=True)


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"SSH-2.0-x\r\n",
        b"HTTP/2\r\n",
        b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        OK + b"content-length: -1\r\n\r\n",
        OK + b"content-length: 1, 2\r\n\r\n",
        OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        OK + b"content-length: " + b"9" * 30 + b"\r\n\r\n",
        OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        OK + b"a\0b: c\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        parsed(data, ended=True)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (OK + b"x: ", b"y" * 1000),
        (OK, b"x: y\r\n" * 200),
        (b"", b"\r\n" * 500),
        (b"", b"HTTP/1.1 100 x\r\n\r\n" * 100),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 200),
        (OK + b"transfer-encoding: chunked\r\n\r\n1;", b"x" * 1000),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ", b"x" * 1000),
    ],
    ids=["header", "headers", "line breaks", "100 Continue", "trailers", "chunk extension", "trailer"],
)
def test_an_endless_head_is_refused(start: bytes, piece: bytes) -> None:
    with pytest.raises(MalformedResponse, match="head of the response is larger"):
        parsed(start, *([piece] * (http1.HEAD_MAX_BYTES // len(piece) + 1)))


def test_an_endless_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "BODY_MAX_BYTES", 10_000)
    with pytest.raises(MalformedResponse, match="larger than 10000"):
        parsed(OK + b"\r\n", *([b"x" * 1000] * 11))
    with pytest.raises(MalformedResponse, match="larger than 10000"):
        parsed(OK + b"transfer-encoding: chunked\r\n\r\n", *([b"3e8\r\n" + b"x" * 1000 + b"\r\n"] * 11))


# The parser against that of httpx

statuses = st.sampled_from([b"200 OK", b"201", b"204 x", b"304 x", b"404 Not Found", b"503 x y", b"999 x"])
versions = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"])
other_headers = st.sampled_from(
    [
        *(b"date: x", b"x:y", b"X-Y:  z ", b"retry-after: 3", b"Retry-After:\t4", b"content-type: text/html"),
        *(b"connection: close", b"connection: keep-alive", b"Connection: Keep-Alive, x", b"retry-after: \xe9"),
    ]
)
bodies = st.binary(max_size=40)


class Generated(NamedTuple):
    """A response, and whether its last byte is known without the end of the connection."""

    data: bytes
    is_framed: bool


@st.composite
def generated(draw: st.DrawFn) -> Generated:
    """A response in one of the three framings, sometimes after 1xx ones, sometimes damaged."""
    version, status = draw(versions), draw(statuses)
    body, headers = draw(bodies), draw(st.lists(other_headers, max_size=4))
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    if framing == "chunked" and version == b"HTTP/1.0":
        framing = "length"
    has_body = status[:3] not in {b"204", b"304"}
    content = body if has_body else b""
    if framing == "length":
        headers.append(b"content-length: %d" % len(body))
    elif framing == "chunked" and has_body:
        headers.append(b"Transfer-Encoding: chunked")
        cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if a < b]
        content = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    before = b"HTTP/1.1 100 Continue\r\n\r\n" * draw(st.integers(0, 2))
    data = before + b"\r\n".join([version + b" " + status, *headers, b"", content])
    if draw(st.booleans()):
        data = data[: draw(st.integers(0, len(data)))]
    return Generated(data, framing != "close" or not has_body)


def by_httpx(data: bytes) -> HttpResponse | None:
    """The response as httpx reads it from a connection that ends after `data`; None: an error."""
    stream = httpcore.MockStream([data[at : at + 7] for at in range(0, len(data), 7)])
    origin = httpcore.Origin(b"http", b"h", 80)
    with httpcore.HTTP11Connection(origin, stream) as connection:
        try:
            response = connection.handle_request(httpcore.Request("GET", "http://h/", headers={"host": "h"}))
            content = response.read()
        except (httpcore.ProtocolError, httpcore.NetworkError):
            return None
    headers = httpx.Headers(response.headers)
    return HttpResponse(response.status, content, headers.get("retry-after"), headers.get("content-type", "").encode())


@drawn(800)
@given(response=generated(), piece=st.integers(1, 60))
@example(response=Generated(OK + b"\r\n", is_framed=False), piece=60)
def test_responses_are_read_as_by_httpx(response: Generated, piece: int) -> None:
    data = response.data
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    try:
        own, _ = parsed(*pieces, ended=True)
    except MalformedResponse:
        own = None
    assert own == by_httpx(data)


@drawn(800)
@given(data=st.binary(max_size=80) | st.builds(lambda end: OK + end, st.binary(max_size=60)), piece=st.integers(1, 60))
def test_any_bytes_are_a_response_or_malformed(data: bytes, piece: int) -> None:
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    try:
        response, is_reusable = parsed(*pieces, ended=True)
    except MalformedResponse:
        return
    assert response is not None
    assert not (is_reusable and b"content-length" not in data.lower())


# Requests


def head_lines(settings: HttpSettings, request: ApiRequest[Any]) -> list[str]:
    [endpoint] = settings.endpoints.values()
    return endpoint.writer.write(request).decode().split("\r\n")


def http_settings(url: str, *, proxy: str | None = None, key: str | None = "k3y") -> HttpSettings:
    return HttpSettings(url, timeout_s=1, key=key, connections=1, tls=TLS, ca_file=None, proxy=proxy)


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://h:8000", "h:8000", "/jobs/t/a"),
        ("http://h:80/base/", "h", "/base/jobs/t/a"),
        ("https://h:443", "h", "/jobs/t/a"),
        ("https://h:80", "h:80", "/jobs/t/a"),
        ("http://[::1]:8000", "[::1]:8000", "/jobs/t/a"),
        ("http://b\u00fccher.example/\u00e4", "xn--bcher-kva.example", "/%C3%A4/jobs/t/a"),
        ("unix:///run/d.sock", "localhost", "/jobs/t/a"),
    ],
)
def test_a_request_names_host_and_path_of_the_url(url: str, host: str, path: str) -> None:
    headers = [f"host: {host}", "authorization: Bearer k3y", f"user-agent: {user_agent()}"]
    expected = [f"GET {path} HTTP/1.1", *headers, "", ""]
    assert expected == head_lines(http_settings(url), request_for(GET_JOB, "t", "a"))


def test_query_and_body_are_in_the_request() -> None:
    line, *_ = head_lines(http_settings("http://h"), pop(["a", "b:c"], wait=1.5, consumer="a b&\u00e4\r\n"))
    assert line == "POST /topics/a,b:c/pop?count=1&wait=1.5&consumer=a+b%26%C3%A4%0D%0A HTTP/1.1"
    lines = head_lines(http_settings("http://h", key=""), ApiRequest("PUT", "/x", bytes, body=b"{}"))
    headers = ["host: h", f"user-agent: {user_agent()}", "content-type: application/json", "content-length: 2"]
    assert lines == ["PUT /x HTTP/1.1", *headers, "", "{}"]


def test_no_text_gets_out_of_the_first_line() -> None:
    writer = RequestWriter("", {"host": "h"})
    assert writer.write(ApiRequest("GET", "/x", bytes)) == b"GET /x HTTP/1.1\r\nhost: h\r\n\r\n"
    paths = ("/x y", "/x\r\nhost: evil", "/\0", "/\u00e4", "/x HTTP/1.1\n")
    methods = ("GET /x HTTP/1.1\r\nx:", "GE T", "G\u00c4T")
    for method, path in [*(("GET", path) for path in paths), *((method, "/x") for method in methods)]:
        with pytest.raises(ValueError, match="first line"):
            writer.write(ApiRequest(method, path, bytes))


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "\0", "\u00e4", "\x7f"])
def test_no_header_has_control_characters(value: str) -> None:
    with pytest.raises(ValueError, match="header") as refused:
        RequestWriter("", {"authorization": value})
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "target", "tunnel"),
    [
        ("http://h:81/base", "http://h:81/base/jobs/t/a", None),
        ("https://h", "/jobs/t/a", "CONNECT h:443 HTTP/1.1"),
        ("https://[::1]:81", "/jobs/t/a", "CONNECT [::1]:81 HTTP/1.1"),
        ("unix:///run/d.sock", "/jobs/t/a", None),
    ],
)
def test_the_proxy_gets_what_it_needs_and_no_more(url: str, target: str, tunnel: str | None) -> None:
    settings = http_settings(url, proxy="http://me:p%40ss@proxy:3128")
    [endpoint] = settings.endpoints.values()
    lines = head_lines(settings, request_for(GET_JOB, "t", "a"))
    assert lines[0] == f"GET {target} HTTP/1.1"
    credentials = "proxy-authorization: Basic bWU6cEBzcw=="
    assert (credentials in lines) == (url.startswith("http:"))
    tunnel_lines = endpoint.tunnel.decode().split("\r\n") if endpoint.tunnel is not None else [None]
    assert tunnel_lines[0] == tunnel
    if tunnel is not None:
        assert credentials in tunnel_lines
        assert not any(line.startswith("authorization") for line in tunnel_lines if line)
    assert (endpoint.host, endpoint.port) == (("localhost", 0) if url.startswith("unix") else ("proxy", 3128))


@pytest.mark.parametrize(
    "url",
    ["proxy:3128", "https://s3cret@h", "socks5://s3cret@h", "http://", "http://a:s3cret@h:x", "http://s3cret@h/x"],
)
def test_an_invalid_proxy_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="proxy") as refused:
        parse_proxy_url(url)
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(parse_proxy_url("http://user:s3cret@h"))


@pytest.mark.parametrize("url", ["unix://host/path", "unix:///", "unix:", "http://" + "x" * 64, "http://a..b"])
def test_a_url_that_names_no_service_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        http_settings(url)


def test_addresses_of_both_families_alternate() -> None:
    six, four = [(10, 1, 6, "", (f"::{n}", 1, 0, 0)) for n in range(3)], [(2, 1, 6, "", ("127.0.0.1", 1))]
    assert [six[0], four[0], six[1], six[2]] == alternating([*six, *four])


def test_an_address_needs_no_resolver() -> None:
    assert Endpoint("http://127.0.0.1:1", {}, None).numeric_address() is not None
    assert Endpoint("http://[::1]:1", {}, None).numeric_address() is not None
    assert Endpoint("http://localhost:1", {}, None).numeric_address() is None


def test_a_notice_of_a_later_service_is_an_event() -> None:
    event = _read_event(ServerSentEvent(None, "moved", '{"topic":"orders","shard":3}'))
    assert event.fields == {"topic": "orders", "event": "moved"}


@pytest.mark.parametrize("data", ["[]", "x", '{"topic":5}'])
def test_what_is_no_event_is_an_unexpected_answer(data: str) -> None:
    with pytest.raises(UnexpectedAnswer, match="it has no event"):
        _read_event(ServerSentEvent(None, "put", data))
