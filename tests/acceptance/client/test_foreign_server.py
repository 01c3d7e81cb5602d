"""The client and the commands with the URL of a web site: the error says so, and has only a beginning of its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deferd import AsyncClient, Client
from deferd.client.errors import UnexpectedAnswer
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.client.scripted_server import Peer, scripted_server

PAGE = b"<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body>" + b"\n<p>Hello</p>\n" * 2000
CALLS: dict[str, Callable[[Any], Any]] = {
    "put": lambda client: client.put("t"),
    "put of a batch": lambda client: client.put_batch([{"topic": "t"}] * 2),
    "pop": lambda client: client.pop("t", wait=0),
    "look": lambda client: client.get("t", "a"),
    "topic": lambda client: client.topic("t"),
}


def page(status: int) -> Callable[[Peer], None]:
    head = f"HTTP/1.1 {status} x\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(PAGE)}\r\n\r\n"

    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(head.encode() + PAGE)

    return script


@pytest.fixture(params=[200, 404])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with scripted_server(page(request.param)) as server:
        yield f"http://127.0.0.1:{server.port}"


def check(error: Exception, url: str) -> None:
    text = str(error)
    assert url in text
    assert "does not respond as a deferd service does: the response has text/html; charset=utf-8" in text
    assert "'<!DOCTYPE html> <html><head><title>Welcome" in text
    assert len(text) < 500


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_says_what_responded(url: str, call: Callable[[Any], Any]) -> None:
    with Client(url) as client, pytest.raises(UnexpectedAnswer) as raised:
        call(client)
    check(raised.value, url)


async def test_both_clients_follow_no_page_as_a_stream_of_events(url: str) -> None:
    async with AsyncClient(url) as client:
        with pytest.raises(UnexpectedAnswer) as raised:
            await anext(client.events())
    check(raised.value, url)
    with Client(url) as blocking, pytest.raises(UnexpectedAnswer) as raised:
        next(iter(blocking.events()))
    check(raised.value, url)


@pytest.mark.parametrize("words", [("put", "t", "1"), ("pop", "t"), ("topics",), ("now",), ("tail", "t")])
def test_a_command_says_what_responded_and_how_to_set_the_url(url: str, words: tuple[str, ...]) -> None:
    done = Shell(url).run(*words)
    [line] = done.stderr.splitlines()
    check(AssertionError(line), url)
    assert "DEFERD_URL" in line
