"""TLS on a connection that counts against the limit from when it is accepted.

`create_server(ssl=...)` reports a connection only after its handshake. Sockets that are opened and left silent would
not be counted and could use up the process's file descriptors. Here a connection is counted first, and handed to the
TLS protocol that `create_server` would have used once its first bytes arrive.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from uvloop import loop as uvloop_loop

from deferd.server.http.connections import Connections
from deferd.server.http.protocol import LimitedProtocol

_TlsProtocol: Any = vars(uvloop_loop)["SSLProtocol"]
"""uvloop's TLS protocol, which its stub does not name; pyproject.toml bounds uvloop's version for that.

The public ways do less: the loop's `start_tls` would lose what the client has sent before it is called, its
`connect_accepted_socket` hides the transport below TLS, whose buffer tells which clients read slowly, and asyncio's
own protocol is slower.
"""


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake has ended; `make` makes the protocol that follows.

    A connection above the limit is closed without a response: that would need a handshake, which costs the service more
    than the client.
    """

    _transport: asyncio.Transport

    def __init__(self, limits: Connections, context: ssl.SSLContext, make: Callable[[], LimitedProtocol]) -> None:
        self._limits = limits
        self._context = context
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        if self._limits.add(self):
            self._limits.set_deadline(self, self._limits.head_timeout_s)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """The handshake begins."""
        self._limits.clear_deadline(self)
        loop = asyncio.get_running_loop()
        protocol = self._make()
        protocol.begin_after(self, self._transport)
        ended: asyncio.Future[None] = loop.create_future()
        ended.add_done_callback(self._handshake_ended)
        tls = _TlsProtocol(
            loop,
            protocol,
            self._context,
            ended,
            server_side=True,
            ssl_handshake_timeout=self._limits.head_timeout_s,
            ssl_shutdown_timeout=self._limits.response_timeout_s,  # the last response goes out within it
        )
        self._transport.set_protocol(tls)
        tls.connection_made(self._transport)
        while data:
            buffer = tls.get_buffer(len(data))
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            tls.buffer_updated(taken)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the reason makes no difference)
        """The connection was closed before the client sent anything."""
        self._limits.clear_deadline(self)
        self._limits.remove(self)

    def _handshake_ended(self, ended: asyncio.Future[None]) -> None:
        self._limits.remove(self)
        if not ended.cancelled() and ended.exception() is not None:
            self.cut_off()

    def deadline_passed(self) -> None:
        """The client has not sent anything in time."""
        self.cut_off()

    def cut_off(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def is_idle(self) -> bool:
        """False: it is replaced as a silent connection, not as an idle one."""
        return False
