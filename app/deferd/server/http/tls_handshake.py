"""TLS on a connection that was counted when it was accepted.

`create_server(ssl=...)` tells the application of a connection once its handshake is done. So sockets that are opened
and left silent would be counted nowhere, and use up the process's file descriptors. Here a connection is counted first.
With the first bytes it is handed to the same TLS protocol that `create_server` would have used; until then it costs
little.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from uvloop import loop as uvloop_loop

from deferd.server.http.limits import Connections
from deferd.server.http.protocol import LimitedProtocol

_TlsProtocol: Any = vars(uvloop_loop)["SSLProtocol"]
"""uvloop's TLS protocol, which its stub does not name; pyproject.toml bounds uvloop's version for that. The loop's
`start_tls` would lose what the client has sent before it is called."""


class TlsHandshake(asyncio.Protocol):
    """A connection from when it is accepted until its handshake has ended; `make` makes the protocol that follows.

    One connection too many is closed without a word, since saying so would take a handshake, which costs the service
    more than the client.
    """

    _transport: asyncio.Transport

    def __init__(self, limited: Connections, context: ssl.SSLContext, make: Callable[[], LimitedProtocol]) -> None:
        self._limited = limited
        self._context = context
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        if self._limited.enter(self):
            self._limited.expect(self, self._limited.head_timeout_s)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """The handshake begins."""
        self._limited.settle(self)
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
            ssl_handshake_timeout=self._limited.head_timeout_s,
            ssl_shutdown_timeout=self._limited.answer_timeout_s,  # the last response goes out within it
        )
        self._transport.set_protocol(tls)
        tls.connection_made(self._transport)
        while data:
            buffer = tls.get_buffer(len(data))
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            tls.buffer_updated(taken)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (why is the same here)
        """The client has hung up, or was cut off, before it sent anything."""
        self._limited.settle(self)
        self._limited.leave(self)

    def _handshake_ended(self, ended: asyncio.Future[None]) -> None:
        self._limited.leave(self)
        if not ended.cancelled() and ended.exception() is not None:
            self.cut_off()

    def overdue(self) -> None:
        """It has not sent anything in time."""
        self.cut_off()

    def cut_off(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def is_idle(self) -> bool:
        """Not one that was served before."""
        return False
