"""An HTTP proxy between the client and the service, as the `proxy` setting names it.

A request to an http:// service is sent to the proxy with the absolute URL as its target (RFC 9112, section 3.2.2). For
an https:// service the proxy opens a tunnel (CONNECT, RFC 9110, section 9.3.6), so it sees host and port only.
"""

from __future__ import annotations

import base64
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from deferd.client.http1 import ResponseParser

_DEFAULT_PORT = 80


class Proxy(NamedTuple):
    """Where the proxy is. `headers` authenticate the client to it."""

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
        host, port = parts.hostname, _DEFAULT_PORT if parts.port is None else parts.port
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
