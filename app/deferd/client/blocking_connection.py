"""One HTTP/1.1 connection on a plain socket, whose exchanges block the calling thread."""

from __future__ import annotations

import contextlib
import socket
import ssl

from deferd.client import inherited_sockets
from deferd.client.addresses import AddressInfo, Endpoint, alternating, is_readable, reset_on_close
from deferd.client.http1 import HttpResponse, ResponseParser
from deferd.client.proxy import TunnelResponse
from deferd.client.transport import IDLE_S, HttpSettings
from deferd.contract.real_time import monotonic_s

_READ_BYTES = 65_536


class BlockingConnection:
    """A connection to the service, for one exchange at a time."""

    def __init__(self, endpoint: Endpoint, settings: HttpSettings) -> None:
        """Connect.

        Raises:
            OSError, MalformedResponse: it failed.
        """
        self.endpoint = endpoint
        self._parser = ResponseParser(settings.clock)
        self._timeout_s = timeout_s = settings.timeout_s
        self._is_idle = True
        self._idle_until_s = 0.0
        end_s = monotonic_s() + timeout_s
        connected = _connected(endpoint, end_s)
        try:
            if endpoint.tunnel is not None:
                _open_tunnel(connected, endpoint.tunnel, end_s)
            if endpoint.server_name is not None and settings.tls is not None:
                connected.settimeout(_left(end_s))
                connected = settings.tls.wrap_socket(connected, server_hostname=endpoint.server_name)
            connected.settimeout(timeout_s)
        except BaseException:
            connected.close()
            raise
        self._socket = connected

    def exchange(
        self, message: bytes, *, first_byte_s: float, read_s: float, end_s: float, head_only: bool
    ) -> HttpResponse:
        """Send a request and wait for the response.

        The exchange ends at `first_byte_s` if nothing of the response has come, and later when nothing comes for
        `read_s`; at `end_s` it ends in any case.

        Raises:
            OSError, MalformedResponse: there is no whole response.
        """
        self._is_idle = False
        parser = self._parser
        parser.begin(head_only=head_only)
        self._wait_at_most(self._timeout_s)
        sent_whole = True
        try:
            self._socket.sendall(message)
        except OSError:  # the service may have responded without reading the whole body
            sent_whole = False
        # Not before `first_byte_s`; later does no harm, and a time-out that is the same each time costs nothing.
        wait_s = _left(end_s) if first_byte_s == end_s else min(read_s, _left(end_s))
        while True:
            self._wait_at_most(wait_s)
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                raise TimeoutError(f"nothing was received for {wait_s:.3g} s") from None
            response = parser.receive(data) if data else parser.end()
            if response is not None:
                break
            wait_s = min(read_s, _left(end_s))
        self._is_idle = parser.is_reusable and sent_whole and not self._has_unread_bytes()
        self._idle_until_s = monotonic_s() + IDLE_S
        return response

    def begin_stream(self, message: bytes) -> None:
        """Send a request whose response is read by `receive`. Raises OSError."""
        self._is_idle = False
        self._socket.sendall(message)

    def receive(self, wait_s: float) -> bytes:
        """The next bytes, b'' at the end. Raises OSError, also when nothing comes within `wait_s`."""
        self._wait_at_most(wait_s)
        return self._socket.recv(_READ_BYTES)

    def _has_unread_bytes(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _wait_at_most(self, seconds: float) -> None:
        if self._socket.gettimeout() != seconds:
            self._socket.settimeout(seconds)

    def is_idle(self) -> bool:
        """Whether the last exchange was completed and the connection can be used for another one."""
        return self._is_idle

    def is_alive(self) -> bool:
        """Whether an idle connection is not too old, and the server has not closed it."""
        return monotonic_s() < self._idle_until_s and not is_readable(self._socket.fileno())

    def close(self) -> None:
        """Close the connection: an idle one with the end of TLS, another one at once. Does not wait."""
        if not self._is_idle:
            reset_on_close(self._socket)
        elif isinstance(self._socket, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self._socket.settimeout(0)
                self._socket.unwrap()
        self._socket.close()


def _left(end_s: float) -> float:
    left_s = end_s - monotonic_s()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s


def _connected(endpoint: Endpoint, end_s: float) -> socket.socket:
    if endpoint.socket_path is not None:
        return _connected_to((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", endpoint.socket_path), _left(end_s))
    addresses = alternating(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
    errors: list[str] = []
    for index, address in enumerate(addresses):
        try:
            return _connected_to(address, _left(end_s) / (len(addresses) - index))
        except OSError as error:
            errors.append(str(error))
    raise OSError("; ".join(errors))


def _connected_to(address: AddressInfo, timeout_s: float) -> socket.socket:
    family, kind, protocol, _, where = address
    new = socket.socket(family, kind, protocol)
    try:
        inherited_sockets.note(new)
        new.settimeout(timeout_s)
        if family != getattr(socket, "AF_UNIX", None):
            new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        new.connect(where)
    except BaseException:
        new.close()
        raise
    return new


def _open_tunnel(connected: socket.socket, request: bytes, end_s: float) -> None:
    response = TunnelResponse()
    connected.settimeout(_left(end_s))
    connected.sendall(request)
    while not response.receive(connected.recv(_READ_BYTES)):
        connected.settimeout(_left(end_s))
