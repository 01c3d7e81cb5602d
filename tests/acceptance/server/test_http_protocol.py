"""HTTP itself: paths, methods, media types, sizes, and connections that stay usable."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from tests.acceptance.http_calls import Http, ok, problem, refusal
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import connected, request

_LIMIT = 1024 * 1024


@pytest.mark.parametrize("path", ["/nowhere", "/jobs/", "/jobs/a/b/c", "/jobs/a/b/finish/", "/topics/a/", "//jobs"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_an_unknown_path_is_not_found(http: Http, method: str, path: str) -> None:
    problem(await http.client.request(method, f"{http.client.base_url}".rstrip("/") + path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/jobs", "POST"),
        ("GET", "/jobs/cancel", "POST"),
        ("DELETE", "/jobs/batch", "POST"),
        ("PUT", "/jobs/t/j", "DELETE, GET, HEAD, PATCH"),
        ("GET", "/jobs/t/j/finish", "POST"),
        ("POST", "/topics", "GET, HEAD"),
        ("POST", "/topics/t", "DELETE, GET, HEAD, PUT"),
        ("GET", "/topics/t/pause", "POST"),
        ("PUT", "/topics/t/pop", "GET, POST"),
        ("OPTIONS", "/topics/t/pop", "GET, POST"),
        ("PURGE", "/topics/t/pop", "GET, POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_gets_the_allowed_ones(http: Http, method: str, path: str, allowed: str) -> None:
    response = await http.client.request(method, path)
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])
async def test_a_head_gets_what_a_get_would_without_the_body(
    http: Http, shared_service: ServiceProcess, through_asgi: bool
) -> None:
    await http.put_job("j")
    await http.client.put("/schedules/head", json={"topic": http.topic, "every": 3600})
    gets = [path for path, verbs in (await http.get("/openapi.json")).json()["paths"].items() if "get" in verbs]
    gets += ["/openapi.json", "/docs", "/docs/favicon.png", "/", "/console", "/console/topics", "/nowhere"]
    async with connected(shared_service.port) as wire:
        for template in gets:
            path = template.replace("{topic}", http.topic).replace("{id}", "j").replace("{name}", "head")
            if path.endswith("/pop") or path == "/events":
                continue
            wire.send(request("GET", path, through_asgi=through_asgi))
            got = await wire.read_response()
            wire.send(request("HEAD", path, through_asgi=through_asgi), request("GET", "/healthz"))
            status_line, *lines = (await wire.head()).rstrip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            assert (path, got.status) == (path, int(status_line.split()[1]))
            changing = {"date", "content-length", "content-security-policy"}
            assert {name: got.headers[name] for name in got.headers.keys() - changing} == {
                name: headers[name] for name in headers.keys() - changing
            }
            assert (int(headers["content-length"]) > 0) == (got.body != b"")
            assert b'{"status":"ok"}' == (await wire.read_response()).body, path


async def test_a_head_of_a_stream_ends(shared_service: ServiceProcess) -> None:
    async with connected(shared_service.port) as wire:
        wire.send(request("HEAD", "/events"))
        assert "content-type: text/event-stream" in await wire.head()
        wire.send(request("GET", "/healthz"))
        assert 200 == (await wire.read_response()).status


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml", "multipart/form-data", "json"]
)
async def test_a_body_of_another_media_type_is_refused(http: Http, media_type: str) -> None:
    raw = f'{{"topic": "{http.topic}", "id": "j"}}'
    response = await http.post("/jobs", content=raw, headers={"content-type": media_type})
    assert media_type in problem(response, 415, "unsupported_media_type")["detail"]
    assert not await http.has_job("j")


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json", None]
)
async def test_all_media_types_of_json_are_read(http: Http, media_type: str | None) -> None:
    headers = {} if media_type is None else {"content-type": media_type}
    ok(await http.post("/jobs", content=f'{{"topic": "{http.topic}"}}', headers=headers), 201)


async def test_a_compressed_body_is_refused(http: Http) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    problem(await http.post("/jobs", content=b"\x1f\x8b\x08", headers=headers), 415, "unsupported_media_type")


async def test_a_streamed_body_is_read(http: Http) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield f'{{"topic": "{http.topic}", '.encode()
        yield b'"id": "j"}'

    ok(await http.post("/jobs", content=pieces(), headers={"content-type": "application/json"}), 201)
    assert await http.has_job("j")


async def test_a_connection_stays_usable_after_a_body_over_the_limit(shared_service: ServiceProcess) -> None:
    with _connection(shared_service) as connection:
        head = b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % (2 * _LIMIT) + b" " * 2 * _LIMIT)
        assert _read_response(connection).startswith(b"HTTP/1.1 413 ")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert _read_response(connection).startswith(b"HTTP/1.1 200 ")


async def test_an_announced_length_over_the_limit_is_refused_before_it_is_sent(shared_service: ServiceProcess) -> None:
    with _connection(shared_service) as connection:
        connection.sendall(b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        assert _read_response(connection).startswith(b"HTTP/1.1 413 ")


async def test_a_disconnect_within_a_body_stores_nothing(http: Http, shared_service: ServiceProcess) -> None:
    with _connection(shared_service) as connection:
        body = f'{{"topic": "{http.topic}"}}'.encode()
        head = b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % (len(body) + 10) + body)
    problem(await http.get(http.topic_path()), 404, "topic_not_found")
    assert "Traceback" not in shared_service.output()


async def test_a_query_that_is_not_utf_8_is_refused(http: Http) -> None:
    assert refusal(await http.get(http.topic_path("pop") + "?consumer=%ff"), "query") == "must be UTF-8"


async def test_too_many_parameters_are_refused(http: Http) -> None:
    query = "&".join(f"p{number}=1" for number in range(200))
    assert "at most 100" in refusal(await http.get(http.topic_path("pop") + "?" + query), "query")


def _connection(service: ServiceProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=10)


def _read_response(connection: socket.socket) -> bytes:
    """One response, head and body; bodies in these tests have a length or end the connection."""
    response = b""
    while b"\r\n\r\n" not in response:
        response += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = response.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head
