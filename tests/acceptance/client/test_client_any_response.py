"""The client against a server that responds with arbitrary bytes: the caller gets a result or a DeferdError."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd import Client
from deferd.contract.errors import DeferdError
from tests.acceptance.client.scripted_server import Peer, scripted_server
from tests.drawn_input import contents, drawn

_TIMEOUT_S = 5.0


class ArbitraryResponse:
    """The script of a server that responds to the first bytes of a connection with `content` and closes it."""

    content = b""

    def __call__(self, peer: Peer) -> None:
        peer.socket.recv(65536)
        peer.send(self.content)
        peer.socket.shutdown(socket.SHUT_WR)
        peer.until_closed()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, ArbitraryResponse]]:
    script = ArbitraryResponse()
    with scripted_server(script) as server:
        yield server.url, script


status_lines = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 201 ",
        b"HTTP/1.0 200",
        b"HTTP/1.1 503 x",
        b"HTTP/1.1 100 x",
        b"HTTP/1.1 999 x",
        b"HTTP/2",
    ]
)
header_lines = st.sampled_from(
    [
        *(
            b"content-length: 5",
            b"content-length: 99999",
            b"content-length: -1",
            b"content-length: 1, 2",
            b": x",
            b"\0",
        ),
        *(
            b"transfer-encoding: chunked",
            b"transfer-encoding: gzip",
            b"content-encoding: gzip",
            b"content-encoding: br",
        ),
        *(
            b"retry-after: 1",
            b"retry-after: " + b"9" * 400,
            b"x: " + b"y" * 70_000,
            b"content-type: \xff",
            b"location: //",
        ),
    ]
)
responses = st.one_of(
    st.binary(max_size=80),
    st.builds(
        lambda status, headers, body: b"\r\n".join([status, *headers, b"", body]),
        status_lines,
        st.lists(header_lines, max_size=3),
        contents | st.sampled_from([b"5\r\nabcde\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"zz\r\n"]),
    ),
)


@drawn(200)
@given(response=responses)
def test_any_bytes_as_a_response_are_a_result_or_a_deferd_error(
    server: tuple[str, ArbitraryResponse], response: bytes
) -> None:
    url, script = server
    script.content = response
    with Client(url, timeout=_TIMEOUT_S, retry_for=0) as client:
        with contextlib.suppress(DeferdError):
            client.put("t", id="a")
        with contextlib.suppress(DeferdError):
            client.pop("t", wait=0)
