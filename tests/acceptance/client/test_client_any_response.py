"""The client against a server that responds with arbitrary bytes: the caller gets a result or a DeferdError."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd import Client
from deferd.contract.errors import DeferdError
from tests.drawn_input import contents, drawn

_LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 5.0


class ArbitraryServer:
    """Listens on loopback; responds to the first bytes of a connection with `response` and closes it."""

    def __init__(self) -> None:
        self.response = b""
        self._listener = socket.create_server((_LOOPBACK, 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_TIMEOUT_S)
                if connection.recv(65536):
                    connection.sendall(self.response)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_TIMEOUT_S)


@pytest.fixture(scope="module")
def server() -> Iterator[ArbitraryServer]:
    with ArbitraryServer() as server:
        yield server


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
def test_any_bytes_as_a_response_are_a_result_or_a_deferd_error(server: ArbitraryServer, response: bytes) -> None:
    server.response = response
    with Client(server.url, timeout=_TIMEOUT_S, retry_for=0) as client:
        with contextlib.suppress(DeferdError):
            client.put("t", id="a")
        with contextlib.suppress(DeferdError):
            client.pop("t", wait=0)
