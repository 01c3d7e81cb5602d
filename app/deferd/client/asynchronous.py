"""The client for asyncio."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from deferd.client.retry import Sender
from deferd.client.transport import AsyncNetwork, Wire
from deferd.client.verbs import Verbs


class AsyncClient(Verbs):
    """Calls a deferd service over connections that it keeps open; use it as a context manager, or close it.

    It belongs to the event loop of its first call.

    `url` is where the service is, or several URLs of replicas of it: calls go to one, and on to the next when that is
    away. Left out, the variable DEFERD_URL says it (with commas between several), else it is http://127.0.0.1:8000.
    `key` is sent as bearer key; left out, it is DEFERD_KEY, if there is one. `timeout` is the most seconds to wait for
    a connection, and then for the answer, beyond the `wait` of a pop. A call that finds trouble which passes (no
    connection, 429, 502, 503, 504) is sent again for up to `retry_for` seconds, where that does no harm. At most
    `connections` calls run at a time, further ones queue for their turn. `tls` replaces the context for https URLs, for
    a certificate authority of your own.

    Calls raise the error of `deferd.contract.errors` that the service names, NoAnswer (or Unreachable) when there is no
    response, and UnexpectedAnswer when the response is not one of the API.
    """

    def __init__(
        self,
        url: str | Iterable[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = 10.0,
        retry_for: float = 30.0,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        wire = Wire(url, timeout_s=timeout, key=key, connections=connections, tls=tls)
        network = AsyncNetwork(wire)
        super().__init__(network, Sender(network, wire.urls, retry_for_s=retry_for))

    async def close(self) -> None:
        """Close the connections, each when its call is answered. Further calls raise Unreachable."""
        await self._network.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
