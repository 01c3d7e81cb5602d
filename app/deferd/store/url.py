"""Store URLs: their forms and options.

::

    redis://[user:password@]host[:port][/db]               one server; rediss:// the same over TLS
    unix://[user:password@]/path/of/the/socket[?db=]
    redis+sentinel://[user:password@]host:port,.../master-name[?db=&sentinel_username=&sentinel_password=]
    redis+cluster://[user:password@]host:port,...

`rediss+sentinel://` and `rediss+cluster://` speak TLS with every node. TLS takes the options `ssl_ca_certs`,
`ssl_certfile`, `ssl_keyfile` (paths), `ssl_cert_reqs` (required, optional, none) and `ssl_check_hostname` (true,
false). Reserved characters in names, passwords and paths are percent-encoded. Other options are refused: redis-py's
own could switch on retries, and a put must never be sent twice.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_to_bytes, urlsplit

_SERVER_PORT = 6379
_SENTINEL_PORT = 26379
_DB_DIGITS = 9
_TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"})
_LINE_ENDS = str.maketrans("", "", "\t\r\n")
_KINDS: dict[str, Literal["server", "unix", "sentinel", "cluster"]] = {
    "redis": "server",
    "rediss": "server",
    "unix": "unix",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}


class StoreUrlError(ValueError):
    """The text is not a store URL. The message says what is expected and shows no part of the text, to hide secrets."""


@dataclass(frozen=True)
class StoreUrl:
    """A parsed store URL. `hosts` are the server, the sentinels or some nodes of the cluster."""

    scheme: str
    kind: Literal["server", "unix", "sentinel", "cluster"]
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    master_name: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """The URL without user, password and TLS options, for logs."""
        if self.kind == "unix":
            return f"unix://{self.path}" + (f"?db={self.db}" if self.db else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        if self.kind == "sentinel":
            return f"{self.scheme}://{hosts}/{self.master_name}" + (f"?db={self.db}" if self.db else "")
        return f"{self.scheme}://{hosts}" + (f"/{self.db}" if self.db else "")


def parse_store_url(url: str) -> StoreUrl:
    """Parse a store URL.

    Raises:
        StoreUrlError: the text is not a store URL, or has an option or a part that this kind of store does not support.
    """
    netloc, parts = _split(url.strip())
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        _refuse("a store URL that begins with " + ", ".join(f"{scheme}://" for scheme in _KINDS))
    login, _, hosts = netloc.rpartition("@")
    name, colon, password = login.partition(":")
    options = _options(parts, kind)
    return StoreUrl(
        scheme=parts.scheme,
        kind=kind,
        hosts=() if kind == "unix" else _hosts(hosts, _SENTINEL_PORT if kind == "sentinel" else _SERVER_PORT),
        path=_socket_path(parts, hosts) if kind == "unix" else "",
        db=_db(parts, kind, options),
        username=unquote(name) or None,
        password=unquote(password) if colon else None,
        master_name=_master_name(parts) if kind == "sentinel" else "",
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=parts.scheme.startswith("rediss"),
        tls_options=tuple(
            (option, _tls_value(option, text)) for option, text in options.items() if option[:4] == "ssl_"
        ),
    )


def _split(url: str) -> tuple[str, SplitResult]:
    """What is between `//` and the path, and the URL without that.

    For urlsplit it is one host: since the fixes for CVE-2025-0938 it refuses a bracketed one behind another text.
    """
    url = url.translate(_LINE_ENDS)  # as urlsplit does: a secret in it may have ended with a line
    scheme, _, rest = url.partition("://")
    netloc = ""
    if scheme.lower() in _KINDS:
        netloc = rest[: min((rest.index(end) for end in "/?#" if end in rest), default=len(rest))]
    try:
        return netloc, urlsplit(url.replace(f"://{netloc}", "://", 1))
    except ValueError:
        _refuse("a well-formed URL")


def _options(parts: SplitResult, kind: str) -> dict[str, str]:
    if parts.fragment:
        _refuse("a store URL without # (write it as %23 inside a password)")
    allowed = {"db"} if kind in {"server", "unix", "sentinel"} else set()
    if kind == "sentinel":
        allowed |= {"sentinel_username", "sentinel_password"}
    if parts.scheme.startswith("rediss"):
        allowed |= _TLS_OPTIONS
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not options.keys() <= allowed:
        _refuse(f"a {parts.scheme}:// URL whose options are among: {', '.join(sorted(allowed)) or 'none'}")
    return options


def _hosts(text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for item in text.split(","):
        try:
            # urlsplit parses every form of a host, bracketed IPv6 too, but only one at a time.
            parts = urlsplit(f"//{item}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host:
            _refuse("a store URL with host:port, several of them joined by commas")
        hosts.append((host, default_port if port is None else port))
    return tuple(hosts)


def _socket_path(parts: SplitResult, host: str) -> str:
    if host or not parts.path.startswith("/"):
        _refuse("a unix:// URL with the absolute path of a socket, as in unix:///run/valkey.sock")
    return os.fsdecode(unquote_to_bytes(os.fsencode(parts.path)))


def _master_name(parts: SplitResult) -> str:
    name = unquote(parts.path).strip("/")
    if not name or "/" in name:
        _refuse(f"a {parts.scheme}:// URL that ends with /<master name>")
    return name


def _db(parts: SplitResult, kind: str, options: dict[str, str]) -> int:
    in_path = parts.path.strip("/") if kind in {"server", "cluster"} else ""
    text = options.get("db") or in_path or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= _DB_DIGITS):
        _refuse(f"a {parts.scheme}:// URL whose database is a number")
    if kind == "cluster" and int(text) != 0:
        _refuse("a cluster URL without a database: a cluster has only number 0")
    return int(text)


def _tls_value(option: str, text: str) -> str | bool:
    if option == "ssl_cert_reqs" and text not in {"required", "optional", "none"}:
        _refuse("a store URL whose ssl_cert_reqs is required, optional or none")
    if option != "ssl_check_hostname":
        return text
    if text.lower() not in {"true", "false"}:
        _refuse("a store URL whose ssl_check_hostname is true or false")
    return text.lower() == "true"


def _refuse(wanted: str) -> NoReturn:
    # The wrong part may be a mistyped password, so the URL is never shown. `from None` for the same reason.
    raise StoreUrlError(wanted) from None
