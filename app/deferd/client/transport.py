"""The interface of the transports, and the HTTP settings that both of them share.

The client is written once, as coroutines over a `Transport`. Over `AsyncTransport` they run on an event loop. Over
`BlockingTransport` every `await` blocks the thread and returns without suspending, so `run_blocking` runs a coroutine
to its end.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from deferd.client.endpoint import Endpoint, parse_proxy_url
from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, Unreachable
from deferd.client.http1 import HttpResponse, RequestClock, ServerSentEvent
from deferd.client.requests import ApiRequest
from deferd.contract.service_url import parse_service_url

URL_VARIABLE, KEY_VARIABLE, CA_FILE_VARIABLE = "DEFERD_URL", "DEFERD_KEY", "DEFERD_CA_FILE"
"""Environment variables with the service's URL (or several, separated by commas), the key, and a file in PEM form with
certificate authorities.
"""
DEFAULT_URL = "http://127.0.0.1:8000"
_READING_METHODS = frozenset({"GET", "HEAD"})
_LARGE_BYTES = 65_536
IDLE_S = 60
"""How long an idle connection is kept: less than the service's 75 s."""
_via: ContextVar[str | None] = ContextVar("deferd_via", default=None)


class Transport(Protocol):
    """Sends the requests of a client."""

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        """Send the request to the service at `url` once and wait for the response.

        Raises:
            Unreachable: it was not sent.
            NoAnswer: no response, or only a part of one, came in time.
        """

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def close(self) -> None:
        """Close each connection as soon as it is idle. Later requests raise Unreachable."""


class ResponseStream(Protocol):
    """A response whose body has not ended. Close it."""

    async def read(self, wait_s: float) -> list[ServerSentEvent]:
        """The next messages, also none: a comment came. Waits for `wait_s` at most.

        Raises:
            EOFError: the service has ended the stream.
            OSError, MalformedResponse: it broke off, or nothing came in time.
        """

    async def close(self) -> None:
        """Close the connection at once."""


class StreamingTransport(Transport, Protocol):
    """A transport that also opens streams."""

    async def open_stream(self, url: str, request: ApiRequest[Any]) -> ResponseStream:
        """Send the request on a connection of its own, which does not count as one of the pool.

        Raises:
            Unreachable, NoAnswer: as `exchange`.
            DeferdError: the service refused.
        """


class HttpSettings:
    """The settings of a client, checked, and the errors that both transports raise.

    Raises:
        ValueError: a URL, the key, the proxy or the file of authorities is invalid; secrets are not shown.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None,
        *,
        timeout_s: float,
        key: str | None,
        connections: int,
        tls: ssl.SSLContext | None,
        ca_file: str | os.PathLike[str] | None,
        proxy: str | None,
    ) -> None:
        if urls is None:
            text = os.environ.get(URL_VARIABLE) or DEFAULT_URL
            # A password may contain a comma, so a URL with user information is never split; it is refused as a whole.
            urls = [text] if "@" in text else [url for url in text.split(",") if url.strip()]
        self.urls = [_checked_url(url) for url in ([urls] if isinstance(urls, str) else urls)]
        if not self.urls:
            raise ValueError("a client needs at least one URL")
        if connections < 1:
            raise ValueError(f"connections must be at least 1, not {connections}")
        key = _checked_key(os.environ.get(KEY_VARIABLE, "") if key is None else key)
        self.timeout_s = timeout_s
        self.connections = connections
        headers = {**({"authorization": f"Bearer {key}"} if key else {}), **_identification()}
        through = None if proxy is None else parse_proxy_url(proxy)
        self.clock = RequestClock()
        self.endpoints = {url: Endpoint(url, headers, through) for url in self.urls}
        # Loading the certificates takes longer than a hundred requests: only once, and not for plain HTTP.
        if tls is not None and ca_file is not None:
            raise ValueError("a client takes tls or ca_file, not both")
        encrypted = any(endpoint.server_name is not None for endpoint in self.endpoints.values())
        self.tls = (tls or _context(ca_file or os.environ.get(CA_FILE_VARIABLE) or None)) if encrypted else None
        if self.tls is not None:
            self.tls.set_alpn_protocols(["http/1.1"])

    def read_s(self, request: ApiRequest[Any]) -> float:
        """The longest time without a byte of the response."""
        return self.timeout_s + request.wait_s

    def first_byte_s(self, request: ApiRequest[Any], now_s: float, end_s: float) -> float:
        """When an exchange on a connection that is open now is given up if nothing of the response has come.

        A large request takes time to be sent.
        """
        if request.body is not None and len(request.body) > _LARGE_BYTES:
            return end_s
        return min(now_s + self.read_s(request), end_s)

    def message(self, endpoint: Endpoint, request: ApiRequest[Any], given_up_at_s: float) -> bytes:
        """The bytes of a request. One that changes something has no effect once it is given up; see RequestClock."""
        if request.method in _READING_METHODS:
            return endpoint.writer.write(request)
        return endpoint.writer.write(request, self.clock.line(given_up_at_s))

    def max_exchange_s(self, request: ApiRequest[Any]) -> float:
        """The longest time from connecting to the end of the response, even when that arrives slowly."""
        return 2 * self.timeout_s + request.wait_s

    def busy(self, request: ApiRequest[Any]) -> ClientBusy:
        """The error when no connection became free in time."""
        text = f"all {self.connections} connections of the client were in use for {self.timeout_s:g} s"
        return ClientBusy(f"{request.method} {request.path}: {text}")


def closed() -> ClientClosed:
    """The error of a call after `close`."""
    return ClientClosed("the client is closed")


def not_sent(url: str, request: ApiRequest[Any], error: Exception) -> Unreachable:
    """The error when there was no connection, because of `error`."""
    return Unreachable(_text(url, request, error))


def no_answer(url: str, request: ApiRequest[Any], error: Exception) -> NoAnswer:
    """The error when the exchange failed on a connection, because of `error`."""
    return NoAnswer(_text(url, request, error))


def _text(url: str, request: ApiRequest[Any], error: Exception) -> str:
    return f"{request.method} {url}{request.path}: {str(error) or type(error).__name__}"


def _checked_url(url: str) -> str:
    try:
        return parse_service_url(url)
    except ValueError as error:
        raise ValueError(f"the URL of the service {error}") from None


def _checked_key(key: str) -> str:
    """A key for the header; keys read from files end in a line break."""
    key = key.strip()
    if not all("!" <= character <= "~" for character in key):
        raise ValueError("the key has characters that are not visible ASCII (it is not shown here)")
    return key


def _context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        return default_context(ca_file)
    except OSError as error:
        text = f"the file with certificate authorities, {os.fspath(ca_file or '')!r}, cannot be used: {error}"
        raise ValueError(text) from None


def default_context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """A context that checks the certificate and the host name against the authorities of the system and of `ca_file`.

    Those of the system are what OpenSSL finds. Where it finds none, and neither SSL_CERT_FILE nor SSL_CERT_DIR says
    where they are, those of the certifi package are taken. Raises OSError when `ca_file` has no certificates.
    """
    context = ssl.create_default_context()
    is_told = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if not is_told and not context.cert_store_stats()["x509_ca"]:
        import certifi  # noqa: PLC0415 (most systems have authorities)

        context.load_verify_locations(cafile=certifi.where())
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    return context


def user_agent() -> str:
    """``deferd-python/0.2.0``."""
    from deferd.version import VERSION  # noqa: PLC0415 (takes a millisecond)

    return f"deferd-python/{VERSION}"


@contextmanager
def called_via(via: str) -> Iterator[None]:
    """Clients that are made in the block say that their requests come from people: by `cli`, or by the `console`."""
    token = _via.set(via)
    try:
        yield
    finally:
        _via.reset(token)


def _identification() -> dict[str, str]:
    """The headers of a client that is made now."""
    via = _via.get()
    return {"user-agent": user_agent(), **({} if via is None else {"deferd-via": via})}
