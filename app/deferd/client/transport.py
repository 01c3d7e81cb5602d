"""What the clients need from the outside world, and the HTTP settings that both transports share.

The client is written once, as coroutines over a `Transport`. Over `AsyncTransport` they run on an event loop. Over
`BlockingTransport` every `await` blocks the thread and returns without suspending, so `run_blocking` runs a coroutine
to its end.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

import httpx

from deferd.client.errors import ClientBusy, NoAnswer, Unreachable
from deferd.client.requests import ApiRequest
from deferd.contract.service_url import parse_service_url

URL_VARIABLE, KEY_VARIABLE = "DEFERD_URL", "DEFERD_KEY"
"""Environment variables with the service's URL (or several, separated by commas) and the key."""
DEFAULT_URL = "http://127.0.0.1:8000"
_IDLE_S = 60
"""How long an idle connection is kept: less than the service's 75 s."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class HttpResponse(NamedTuple):
    """A response as it was received. `retry_after` is the header of that name."""

    status: int
    content: bytes
    retry_after: str | None


class Transport(Protocol):
    """What the client needs from the outside world."""

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        """Send the request to the service at `url` once and wait for the response.

        Raises:
            Unreachable: it was not sent.
            NoAnswer: no response, or only a part of one, came in time.
        """

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def lock(self) -> AbstractAsyncContextManager[Any]:
        """A new lock."""

    async def close(self) -> None:
        """Close each connection as soon as it is idle. Later requests raise Unreachable."""


class HttpSettings:
    """The settings of a client, checked, and the httpx requests made from them.

    Raises:
        ValueError: a URL or the key is invalid; secrets are not shown.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None,
        *,
        timeout_s: float,
        key: str | None,
        connections: int,
        tls: ssl.SSLContext | None,
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
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._headers_with_body = {**self._headers, "content-type": "application/json"}
        # Loading the system's certificates takes longer than a hundred requests: only once, and not for plain HTTP.
        encrypted = any(url.startswith("https:") for url in self.urls)
        self.tls = tls or (httpx.create_ssl_context(trust_env=False) if encrypted else False)
        self.limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE_S)

    def http_request(self, url: str, request: ApiRequest[Any]) -> httpx.Request:
        """The request as httpx sends it."""
        timeout = httpx.Timeout(self.timeout_s, read=self.timeout_s + request.wait_s)
        return httpx.Request(
            request.method,
            url + request.path,
            params=request.query,
            content=request.body,
            headers=self._headers if request.body is None else self._headers_with_body,
            extensions={"timeout": timeout.as_dict()},
        )

    def max_exchange_s(self, request: ApiRequest[Any]) -> float:
        """The longest time from connecting to the end of the response, even when that arrives slowly."""
        return 2 * self.timeout_s + request.wait_s

    def too_slow(self, request: ApiRequest[Any]) -> NoAnswer:
        """The error when that time is over."""
        return NoAnswer(f"{request.method} {request.path}: no complete response in {self.max_exchange_s(request):g} s")

    def busy(self, request: ApiRequest[Any]) -> ClientBusy:
        """The error when no connection became free in time."""
        text = f"all {self.connections} connections of the client were in use for {self.timeout_s:g} s"
        return ClientBusy(f"{request.method} {request.path}: {text}")


def http_failure(url: str, request: ApiRequest[Any], error: httpx.HTTPError) -> NoAnswer:
    """An error of httpx as one of the client."""
    kind = Unreachable if isinstance(error, _NEVER_SENT) else NoAnswer
    return kind(f"{request.method} {url}{request.path}: {str(error) or type(error).__name__}")


def http_response(response: httpx.Response, content: bytes) -> HttpResponse:
    """A response of httpx, whose body was read already."""
    return HttpResponse(response.status_code, content, response.headers.get("retry-after"))


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
