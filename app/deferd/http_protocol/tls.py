"""TLS on a connection that was counted when it was accepted.

`create_server(ssl=...)` tells the application of a connection once its handshake is done. So sockets that are opened
and left silent would be counted nowhere, and use up the process's file descriptors. Here the connection is counted
first, and then handed to the same TLS protocol that `create_server` would have used.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from uvloop import loop as uvloop_loop

from deferd.http_protocol.connections import Connections
from deferd.http_protocol.limited import LimitedProtocol

_TlsProtocol: Any = vars(uvloop_loop)["SSLProtocol"]
"""uvloop's TLS protocol, which its stub does not name. `start_tls` would not do: it begins a turn of the loop after
`connection_made`, and what the client has sent by then would be lost. pyproject.toml bounds uvloop's version for that.
"""


class TlsHandshake(asyncio.Protocol):
    """A connection from when it is accepted until its handshake has ended; `make` makes the protocol that follows.

    One connection too many is closed without a word, since saying so would take a handshake, which costs the service
    more than the client.
    """

    def __init__(self, limited: Connections, context: ssl.SSLContext, make: Callable[[], LimitedProtocol]) -> None:
        self._limited = limited
        self._context = context
        self._make = make
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected: count it, and begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._limited.enter(self):
            self._transport.abort()
            return
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
        tls.connection_made(transport)

    def _handshake_ended(self, ended: asyncio.Future[None]) -> None:
        self._limited.leave(self)
        if not ended.cancelled() and ended.exception() is not None:
            self.cut_off()

    def cut_off(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_idle(self) -> bool:
        """Not one that was served before."""
        return False
