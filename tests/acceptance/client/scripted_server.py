"""A server that speaks HTTP byte by byte, as a test says: each connection runs a script in a thread of its own."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.deliveries import FIELDS

_TIMEOUT_S = 10.0
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")


class Peer:
    """The server's end of a connection."""

    def __init__(self, connected: socket.socket, number: int) -> None:
        self.socket = connected
        self.number = number
        """The number of the connection, from 0."""
        self._received = b""

    def head(self) -> str:
        """The head of the next request; EOFError when the client has closed the connection."""
        while b"\r\n\r\n" not in self._received:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._received += data
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        return head.decode()

    def request(self) -> str:
        """The path of the next request, once its body has been read."""
        head = self.head()
        length = _LENGTH.search(head.encode())
        left = int(length[1]) if length else 0
        while len(self._received) < left:
            self._received += self.socket.recv(65536)
        self._received = self._received[left:]
        return head.split(" ")[1]

    def send(self, data: bytes) -> None:
        """Send these bytes."""
        self.socket.sendall(data)

    def reset(self) -> None:
        """Close the connection with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def until_closed(self) -> bytes:
        """What still comes from the client until it closes the connection."""
        rest = b""
        while data := self.socket.recv(65536):
            rest += data
        return rest


Script = Callable[[Peer], None]


class ScriptedServer:
    """Runs `script` for each connection, and closes the connection at its end."""

    def __init__(self, script: Script, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.script = script
        self.connections = 0
        self.failures: list[BaseException] = []
        self._listener, self._tls = listener, tls
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL of this server."""
        if self._listener.family == getattr(socket, "AF_UNIX", None):
            return f"unix://{self._listener.getsockname()}"
        host = "[::1]" if self._listener.family == socket.AF_INET6 else "127.0.0.1"
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def serve(self) -> None:
        """Accept connections until `stop`."""
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                connected.settimeout(_TIMEOUT_S)
                self._open.append(connected)
                number, self.connections = self.connections, self.connections + 1
                thread = threading.Thread(target=self._run, args=(connected, number), daemon=True)
                thread.start()
                self._threads.append(thread)  # now `stop` may join it

    def _run(self, connected: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_side=True, suppress_ragged_eofs=False)
            with connected:
                self.script(Peer(connected, number))
        except (OSError, EOFError):
            connected.close()
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            self.failures.append(error)

    def stop(self) -> None:
        """Close all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in self._open:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        assert self.failures == []


@contextlib.contextmanager
def scripted_server(
    script: Script, *, path: Path | None = None, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """A server that runs until the end of the block, on a free port or on the unix socket at `path`."""
    if path is not None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=128)
    server = ScriptedServer(script, listener, tls)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(_TIMEOUT_S)


def job_response(path: str, *headers: str) -> bytes:
    """The response to a `look` at this path: a job with the id in it."""
    job = json.dumps({**FIELDS, "id": path.rpartition("/")[2]}).encode()
    lines = ["HTTP/1.1 200 OK", "content-type: application/json", f"content-length: {len(job)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + job


def responding(peer: Peer) -> None:
    """The script of a server without faults."""
    while True:
        peer.send(job_response(peer.request()))


def never_responding(peer: Peer) -> None:
    """The script of a server that reads, and sends nothing."""
    peer.until_closed()
