"""How to reach the service: its URL, an HTTP proxy on the way, the addresses to connect to, and the sockets."""

from __future__ import annotations

import base64
import itertools
import os
import select
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from deferd.client.http1 import RequestWriter, ResponseParser, connect_request

_DEFAULT_PORTS = {"http": 80, "https": 443}
_RESET = struct.pack("ii", 1, 0)
AddressInfo = tuple[int, int, int, str, Any]
"""What `socket.getaddrinfo` returns for each address: family, type, protocol, canonical name and address."""
_inodes: dict[int, int] = {}
"""The inodes of sockets by file descriptor. One that was closed is left here: its number is checked before use."""


class Endpoint:
    """How to reach the service at one URL: what to connect to, and how to write its requests.

    `socket_path` is the path of a unix socket; otherwise `host` and `port` name the service or the proxy.
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
    """The addresses of a host, alternating between IPv6 and IPv4, as RFC 8305 asks, in their order otherwise."""
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


class Proxy(NamedTuple):
    """An HTTP proxy between the client and the service. `headers` authenticate the client to it.

    A request to an http:// service is sent to the proxy with the absolute URL as its target (RFC 9112, section 3.2.2).
    For an https:// service the proxy opens a tunnel (CONNECT, RFC 9110, section 9.3.6), so it sees host and port only.
    """

    host: str
    port: int
    headers: dict[str, str]

    def __repr__(self) -> str:
        return f"Proxy({self.host!r}, {self.port})"  # `headers` have the password


def parse_proxy_url(url: str) -> Proxy:
    """The proxy at `http://[user:password@]host[:port]`; the port is 80 by default.

    Raises:
        ValueError: not such a URL; the text does not quote it, because of the password.
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, _DEFAULT_PORTS["http"] if parts.port is None else parts.port
        is_valid = parts.scheme == "http" and url.isprintable() and parts.path in {"", "/"}
        name = (host or "").encode("idna").decode()
    except ValueError:
        is_valid, name = False, ""
    if not is_valid or not name or parts.query or parts.fragment:
        raise ValueError("the proxy must be a URL such as http://user:password@host:3128 (it is not shown here)")
    if parts.username is None:
        return Proxy(name, port, {})
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(name, port, {"proxy-authorization": f"Basic {base64.b64encode(user.encode()).decode()}"})


class TunnelResponse:
    """Reads the response of the proxy to CONNECT."""

    def __init__(self) -> None:
        self._parser = ResponseParser()
        self._parser.begin(head_only=True)

    def receive(self, data: bytes) -> bool:
        """Parse the next bytes, none at the end of the connection. Returns whether the tunnel is open.

        Raises:
            ConnectionError: the proxy has refused.
            MalformedResponse: the response is not HTTP.
        """
        response = self._parser.receive(data) if data else None
        if response is None:
            if data:
                return False
            raise ConnectionError("the proxy closed the connection")
        if not 200 <= response.status < 300:
            raise ConnectionError(f"the proxy refused to connect to the service: status {response.status}")
        if self._parser.has_more:
            raise ConnectionError("the proxy sent data before the service")
        return True


def new_socket(address: AddressInfo) -> socket.socket:
    """A socket to be connected to an address. A forked child lets go of it, and never uses it."""
    family, kind, protocol, _, _ = address
    new = socket.socket(family, kind, protocol)
    try:
        fd = new.fileno()
        _inodes[fd] = os.fstat(fd).st_ino  # before it is connected: another thread may fork at any time
        if family != getattr(socket, "AF_UNIX", None):
            new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        new.close()
        raise
    return new


def _drop_inherited() -> None:
    """Let go of the sockets of the parent process.

    The child's copies would keep the connections open when the parent process has died. The service would not notice,
    and would hand out jobs to a pop that nobody waits for.
    """
    if not _inodes:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd, inode in _inodes.items():
        try:
            is_same = inode != 0 and os.fstat(fd).st_ino == inode
        except OSError:  # it is closed
            continue
        if is_same:
            os.dup2(null, fd, inheritable=False)  # not closed: an object has this number, and would close another file
    os.close(null)
    _inodes.clear()


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=_drop_inherited)
