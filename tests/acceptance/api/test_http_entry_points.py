"""The fast path for plain requests and the path through ASGI give the same responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.acceptance.http_calls import Http
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import Wire, connected, request


@pytest.fixture
async def wire(shared_service: ServiceProcess) -> AsyncIterator[Wire]:
    async with connected(shared_service.port) as wire:
        yield wire


CALLS: list[tuple[str, str, Any, tuple[str, ...]]] = [
    ("POST", "/jobs", {"topic": "{topic}", "id": "j"}, ()),
    ("POST", "/jobs", {"topic": "{topic}", "id": "taken"}, ()),
    ("POST", "/jobs", {"topic": "{topic}", "id": "j"}, (f"Traceparent: 00-{'a' * 32}-{'b' * 16}-01",)),
    ("POST", "/jobs", {"topic": "{topic}", "id": "j"}, ("Traceparent: 00-no-good",)),
    ("POST", "/jobs", {"topic": "{topic}", "id": "j"}, ("Deferd-Not-After: 9999999999999",)),
    ("POST", "/jobs", {"topic": "{topic}", "id": "j"}, ("Deferd-Not-After: 1000000000000",)),
    ("POST", "/jobs", {"topic": "{topic}", "id": "j"}, ("Deferd-Not-After: soon",)),
    ("POST", "/jobs", {"topic": "no good"}, ("Deferd-Not-After: 9999999999999",)),
    ("GET", "/jobs/{topic}/taken", None, ("Deferd-Not-After: 1000000000000",)),
    ("POST", "/jobs", {"topic": "no good"}, ()),
    ("POST", "/jobs", b"", ()),
    ("POST", "/jobs", b"{", ("Content-Type: application/json",)),
    ("POST", "/jobs", b"{}", ("Content-Type: text/plain",)),
    ("POST", "/jobs", b"{}", ("Content-Encoding: gzip",)),
    ("POST", "/jobs", b'{"topic": "t", "body": "' + b"x" * 1024 * 1024 + b'"}', ()),
    ("POST", "/jobs?unknown=1", {"topic": "{topic}"}, ()),
    ("POST", "/jobs/batch", {"jobs": [{"topic": "{topic}", "id": "a"}, {"topic": "{topic}", "id": "taken"}]}, ()),
    ("GET", "/jobs/{topic}/taken", None, ()),
    ("GET", "/jobs/{topic}/missing", None, ()),
    ("PATCH", "/jobs/{topic}/taken", {"delay": 5000.5, "ttr": 3}, ()),
    ("DELETE", "/jobs/{topic}/taken", None, ()),
    ("DELETE", "/jobs/{topic}/taken?if_reserved=maybe", None, ()),
    ("POST", "/jobs/{topic}/taken/finish", {"receipt": "x.1"}, ()),
    ("GET", "/topics/{topic}/pop?wait=0", None, ()),
    ("GET", "/topics/{topic}/pop?wait=61", None, ()),
    ("GET", "/topics/{topic}/pop?wait=0&wait=1", None, ()),
    ("GET", "/topics/{topic}", None, ()),
    ("GET", "/topics/missing", None, ()),
    ("GET", "/healthz", None, ()),
    ("GET", "/nowhere", None, ()),
    ("PUT", "/jobs", {}, ()),
]
_OF_THE_MOMENT = {"created_at", "due_at", "reserved_until", "oldest_ready_age", "next_due_at"}


def without_instants(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_instants(inner) for name, inner in value.items() if name not in _OF_THE_MOMENT}
    return [without_instants(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]} {call[1]}")
async def test_the_fast_path_and_asgi_respond_alike(
    http: Http, wire: Wire, call: tuple[str, str, Any, tuple[str, ...]]
) -> None:
    method, path, body, headers = call
    responses = []
    for through_asgi in (False, True):
        await http.put_job("taken", delay=1000)
        raw_body = body if isinstance(body, bytes | None) else json.dumps(body).replace("{topic}", http.topic).encode()
        raw = request(method, path.replace("{topic}", http.topic), raw_body, *headers, through_asgi=through_asgi)
        wire.send(raw)
        response = await wire.read_response()
        responses.append((response.status, sorted(response.headers), without_instants(response.json())))
        await http.client.delete(f"/topics/{http.topic}")
    assert responses[0] == responses[1]


async def test_a_request_that_arrives_byte_by_byte_is_read(http: Http, wire: Wire) -> None:
    for byte in request("POST", "/jobs", {"topic": http.topic, "id": "j"}):
        wire.send(bytes((byte,)))
        await wire.writer.drain()
        await asyncio.sleep(0)
    assert (await wire.read_response()).status == 201
    assert await http.has_job("j")


async def test_a_large_body_in_pieces_is_read(http: Http, wire: Wire) -> None:
    body = {"topic": http.topic, "id": "j", "body": "x" * 900_000}
    raw = request("POST", "/jobs", body)
    for at in range(0, len(raw), 100_000):
        wire.send(raw[at : at + 100_000])
        await wire.writer.drain()
        await asyncio.sleep(0.001)
    assert (await wire.read_response()).json()["body"] == body["body"]


async def test_one_connection_may_alternate_between_fast_path_and_asgi(http: Http, wire: Wire) -> None:
    for n in range(6):
        wire.send(request("POST", "/jobs", {"topic": http.topic, "id": f"j{n}"}, through_asgi=n % 2 == 1))
        assert (await wire.read_response()).status == 201


@pytest.mark.parametrize("through_asgi", [False, True])
async def test_a_connection_closes_when_the_client_asks_for_it(http: Http, wire: Wire, through_asgi: bool) -> None:
    body = {"topic": http.topic}
    wire.send(request("POST", "/jobs", body, "Connection: close", through_asgi=through_asgi))
    response = await wire.read_response()
    assert (response.status, response.headers["connection"]) == (201, "close")
    assert await wire.is_closed()


async def test_a_client_of_http_1_0_is_served(http: Http, wire: Wire) -> None:
    wire.send(f"GET /topics/{http.topic}/pop?wait=0 HTTP/1.0\r\n\r\n".encode())
    assert (await wire.read_response()).json() == {"jobs": []}
    assert await wire.is_closed()


@pytest.mark.parametrize(
    ("wait", "behind"),
    [("20", b""), ("%320", b""), ("20", request("GET", "/healthz"))],
    ids=["plain", "asgi", "pipelined"],
)
async def test_a_pop_whose_client_disconnects_holds_up_no_job(
    http: Http, wire: Wire, shared_service: ServiceProcess, wait: str, behind: bytes
) -> None:
    await asyncio.to_thread(shared_service.wait_for_waiting_pops, 0)
    wire.send(request("GET", f"/topics/{http.topic}/pop?wait={wait}"), behind)
    await asyncio.to_thread(shared_service.wait_for_waiting_pops, 1)
    wire.writer.close()
    await asyncio.to_thread(shared_service.wait_for_waiting_pops, 0)
    await http.put_job("j")
    [job] = await http.pop(wait=5)
    assert (job["id"], job["attempt"]) == ("j", 1)


async def test_a_response_is_sent_even_if_garbage_follows_the_request(http: Http, wire: Wire) -> None:
    wire.send(request("POST", "/jobs", {"topic": http.topic, "id": "j"}), b"BLA\x00 nonsense\r\n\r\n")
    response = await wire.read_response()
    assert (response.status, response.headers["connection"]) == (201, "close")
    assert await wire.is_closed()


async def test_a_pop_that_waits_does_not_end_when_more_is_sent(
    http: Http, wire: Wire, shared_service: ServiceProcess
) -> None:
    await asyncio.to_thread(shared_service.wait_for_waiting_pops, 0)
    wire.send(request("GET", f"/topics/{http.topic}/pop?wait=20"))
    await asyncio.to_thread(shared_service.wait_for_waiting_pops, 1)
    wire.send(request("GET", "/healthz"))
    await asyncio.sleep(0.1)
    await http.put_job("j")
    assert [job["id"] for job in (await wire.read_response()).json()["jobs"]] == ["j"]
    assert (await wire.read_response()).json() == {"status": "ok"}


async def test_a_malformed_request_gets_a_400(wire: Wire) -> None:
    wire.send(b"BLA\x00 /jobs HTTP/1.1\r\n\r\n")
    assert (await wire.read_response()).status == 400
    assert await wire.is_closed()
