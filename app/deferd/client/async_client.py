"""The client for asyncio, and the methods of both clients as coroutines: one for each operation of the HTTP API.

The methods are grouped by what people do; a group is a class in a module of its own. There a method makes its request,
or uses a function beside it, if others make the same request.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from deferd.client.async_transport import AsyncTransport
from deferd.client.batches import BatchMethods
from deferd.client.batching import AsyncBatching, Batching
from deferd.client.bulk import BulkMethods
from deferd.client.consuming import ConsumerMethods
from deferd.client.events import EventMethods
from deferd.client.inspection import InspectionMethods
from deferd.client.joined_calls import JoinedCalls
from deferd.client.producing import ProducerMethods
from deferd.client.requests import ApiRequest, Result
from deferd.client.scheduling import ScheduleMethods
from deferd.client.sender import Sender
from deferd.client.spans import NO_SPANS, Spans
from deferd.client.topics import TopicMethods
from deferd.client.transport import HttpSettings, StreamingTransport

if TYPE_CHECKING:
    from deferd.client.cipher import Cipher
    from deferd.client.tracing import Tracing


TRACING_VARIABLE = "DEFERD_TRACING"
"""Environment variable that switches tracing on where the program says nothing; also a setting of the service."""
_ON = frozenset({"1", "true", "t", "yes", "y", "on"})


class ApiMethods(
    ProducerMethods,
    ConsumerMethods,
    TopicMethods,
    BulkMethods,
    BatchMethods,
    ScheduleMethods,
    EventMethods,
    InspectionMethods,
):
    """The operations of the HTTP API. Each raises the error that the service names, or CallFailed.

    The base class of AsyncClient; `Client` runs the same coroutines over a blocking transport.
    """

    def __init__(
        self,
        transport: StreamingTransport,
        sender: Sender,
        batching: Batching | None = None,
        spans: Spans = NO_SPANS,
        cipher: Cipher | None = None,
    ) -> None:
        self._transport = transport
        self._sender = sender
        self._calls = JoinedCalls(sender, batching)
        self.spans = spans
        self.cipher = cipher

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of the service, or those of its replicas."""
        return self._sender.urls

    async def send(self, call: ApiRequest[Result], *, retry_for: float | None = None) -> Result:
        """Send a request made by `deferd.client.requests.request_for`, for operations that have no method.

        `retry_for` overrides that of the client.
        """
        return await self._sender.send(call, retry_for_s=retry_for)


class AsyncClient(ApiMethods):
    """A client of a deferd service, with a pool of connections; use it as a context manager, or close it.

    It belongs to the event loop of its first call.

    `url` is the URL of the service (`unix:///path/of.sock` for a unix socket), or several URLs of its replicas:
    requests go to one of them, and to the next when that fails. The default is the environment variable DEFERD_URL
    (several separated by commas), then http://127.0.0.1:8000. `key` is sent as a bearer token; the default is
    DEFERD_KEY, if set. `timeout` is the longest time in seconds to wait for a connection, and then for the response, in
    addition to the `wait` of a pop. A request that fails with a transient error (no connection, 408, 429, 502, 503,
    504) is retried for up to `retry_for` seconds, where that does no harm. While the service does not respond,
    `retry_for` counts from the beginning of that outage: once it is older, calls fail at once with Unreachable, except
    one at a time that asks whether the service is back. Choose both by how long your callers may wait, with `retry_for`
    greater than `timeout`, so that a request that was lost in the network is sent again: in a web handler
    `timeout=1, retry_for=2`, for example, with which a put usually takes at most 3 s.

    At most `connections` requests run at a time; further ones wait. Certificates of https URLs must be signed by an
    authority of the system (SSL_CERT_FILE and SSL_CERT_DIR name others), or of the PEM file `ca_file`; the default is
    DEFERD_CA_FILE, if set. `tls` replaces the whole context, for example to use a client certificate. `proxy` is the
    URL of an HTTP proxy, `http://user:password@host:3128`, for all URLs but unix sockets; proxies named by the
    environment are not used.

    `tracing`: True for spans of OpenTelemetry from the program's tracer provider, or a `deferd.client.tracing.Tracing`;
    the default is DEFERD_TRACING, if set, else no spans.

    `cipher` encrypts what the calls put and decrypts what they return; see Cipher. A job that it cannot decrypt does
    not affect the others of a call: to read its body, result or headers raises Undecryptable.

    Methods raise the error of `deferd.contract.errors` that the service names, NoAnswer (or Unreachable) when there is
    no response, and UnexpectedAnswer when the response is not one of the API.
    """

    def __init__(
        self,
        url: str | Iterable[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = 5.0,
        retry_for: float = 10.0,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        proxy: str | None = None,
        tracing: bool | Tracing | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        settings = HttpSettings(
            url, timeout_s=timeout, key=key, connections=connections, tls=tls, ca_file=ca_file, proxy=proxy
        )
        spans = spans_of(tracing).of_service(settings.urls)
        transport = spans.transport(AsyncTransport(settings))
        sender = sender_for(transport, settings.urls, retry_for, cipher)
        super().__init__(transport, sender, AsyncBatching(), spans, cipher)

    async def close(self) -> None:
        """Close each connection as soon as it is idle. Later calls raise Unreachable."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


def sender_for(transport: StreamingTransport, urls: Sequence[str], retry_for_s: float, cipher: Cipher | None) -> Sender:
    """The sender of a client."""
    if cipher is None:
        return Sender(transport, urls, retry_for_s=retry_for_s)
    from deferd.client.cipher import check_cipher  # noqa: PLC0415 (for those who encrypt)
    from deferd.client.encrypted_calls import EncryptingSender  # noqa: PLC0415

    check_cipher(cipher)
    return EncryptingSender(transport, urls, retry_for_s=retry_for_s, cipher=cipher)


def spans_of(tracing: bool | Tracing | None) -> Spans:
    """The spans of a client with this `tracing` argument; None: what DEFERD_TRACING says, by default none.

    Raises:
        ImportError: tracing is on and opentelemetry-api is not installed.
    """
    if tracing is None:
        tracing = os.environ.get(TRACING_VARIABLE, "").strip().lower() in _ON
    if tracing is False:
        return NO_SPANS
    if tracing is not True:
        return tracing
    try:
        from deferd.client.tracing import Tracing  # noqa: PLC0415 (imports opentelemetry, for those who trace)
    except ImportError as error:
        from deferd.version import how_to_install  # noqa: PLC0415 (takes a millisecond)

        text = f"tracing needs opentelemetry-api: {how_to_install('otel')}"
        raise ImportError(text, name=error.name) from error
    return Tracing()
