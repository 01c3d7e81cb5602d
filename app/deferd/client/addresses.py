"""From the URL of a service to the addresses that a socket connects to."""

from __future__ import annotations

import itertools
import select
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from deferd.client.http1 import RequestWriter, connect_request
from deferd.client.proxy import Proxy

_DEFAULT_PORTS = {"http": 80, "https": 443}
_RESET = struct.pack("ii", 1, 0)

AddressInfo = tuple[int, int, int, str, Any]
"""What `socket.getaddrinfo` returns for each address: family, type, protocol, canonical name and address."""


class Endpoint:
    """How to reach the service at one URL: what to connect to, and how to write its requests.

    `socket_path` is that of a unix socket; otherwise `host` and `port` are those of the service or of the proxy.
    `tunnel` is the request that asks the proxy for a tunnel. `server_name` is the name in the certificate of the
    service; None means no TLS.

    Raises:
        ValueError: the host name is invalid.
    """

    def __init__(self, url: str, headers: Mapping[str, str], proxy: Proxy | None) -> None:
        parts = urlsplit(url)
        self.url = url
        self.socket_path: str | None = None
        self.tunnel: bytes | None = None
        self.server_name: str | None = None
        if parts.scheme == "unix":
            self.socket_path, self.host, self.port = unquote(parts.path), "localhost", 0
            self.writer = RequestWriter("", {"host": "localhost", **headers})
            return
        try:
            self.host = (parts.hostname or "").encode("idna").decode()
        except UnicodeError:
            raise ValueError(f"the URL of the service has an invalid host name: {parts.hostname!r}") from None
        default_port = _DEFAULT_PORTS[parts.scheme]
        self.port = parts.port or default_port
        name = f"[{self.host}]" if ":" in self.host else self.host
        host_header = name if self.port == default_port else f"{name}:{self.port}"
        target, headers = _quoted(parts.path), {"host": host_header, **headers}
        if parts.scheme == "https":
            self.server_name = self.host
        if proxy is not None:
            if self.server_name is not None:
                self.tunnel = connect_request(f"{name}:{self.port}", proxy.headers)
            else:
                target, headers = f"http://{host_header}{target}", {**headers, **proxy.headers}
            self.host, self.port = proxy.host, proxy.port
        self.writer = RequestWriter(target, headers)

    def numeric_address(self) -> Sequence[AddressInfo] | None:
        """The address, when `host` is one. Does not block."""
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        try:
            return socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=flags)
        except socket.gaierror:
            return None


def alternating(addresses: Iterable[AddressInfo]) -> list[AddressInfo]:
    """The addresses of a host with those of IPv6 and IPv4 in turn, as RFC 8305 asks, in their order otherwise."""
    families: dict[int, list[AddressInfo]] = {}
    for address in addresses:
        families.setdefault(address[0], []).append(address)
    turns = itertools.zip_longest(*families.values())
    return [address for turn in turns for address in turn if address is not None]


def is_readable(descriptor: int) -> bool:
    """Whether a read from the socket would not block: something has arrived, or the connection was closed."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def reset_on_close(connected: socket.socket) -> None:
    """Let the next close of a connection drop what the kernel has not sent. It would go on sending it otherwise."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _quoted(path: str) -> str:
    """The path of a URL in ASCII."""
    return "".join(character if character.isascii() else _percent(character) for character in path)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
