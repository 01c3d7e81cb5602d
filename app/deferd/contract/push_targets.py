"""Which hosts and addresses jobs may be pushed to: the patterns of `--push-allow`, the networks of `--push-network`.

A pattern is ``[scheme://]host[:port]``:

* ``host`` is a name, ``*.example.com`` for all names below example.com, ``*`` for any, or an address (``[::1]``).
* ``scheme`` is ``https``, the default, or ``http``, which must be written; loopback addresses and `localhost` may have
  either by default.
* ``port`` is by default that of the scheme; ``*`` is any.

A name that resolves to an address that is not public is refused, unless the address is in one of the networks. A
pattern with an address, or with ``localhost``, allows just that.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

LOCALHOST = "localhost"
_PATTERN = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[^:/\[\]@\s]+)(?::(\*|[0-9]{1,5}))?/?")
_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?")
_DEFAULT_PORTS = {"https": 443, "http": 80}
_PORT_MAX = 65_535
_NOT_PUBLIC_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "3fff::/20")  # with Teredo, 2001::/32
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class TargetRefused(ValueError):
    """Jobs must not be pushed to this URL or address; the message says why, to follow the name of the field."""


@dataclass(frozen=True, slots=True)
class TargetPattern:
    """One pattern of `--push-allow`; `schemes` and `port` None: any."""

    text: str
    host: str
    schemes: frozenset[str]
    port: int | None
    is_any_port: bool

    @classmethod
    def parse(cls, text: str) -> TargetPattern:
        """Read a pattern. Raises ValueError."""
        found = _PATTERN.fullmatch(text)
        if found is None:
            raise ValueError("is not a host, host:port or scheme://host:port")
        scheme, host, port = found[1], found[2].lower().removesuffix("."), found[3]
        address = address_of(host)
        if address is None and host != "*" and not _NAME.fullmatch(host):
            raise ValueError("is not a host, host:port or scheme://host:port")
        if port is not None and port != "*" and not 0 < int(port) <= _PORT_MAX:
            raise ValueError(f"has a port that is not from 1 to {_PORT_MAX}")
        is_local = host == LOCALHOST or (address is not None and address.is_loopback)
        schemes = frozenset({scheme} if scheme else {"https", "http"} if is_local else {"https"})
        number = None if port in {None, "*"} else int(port)
        return cls(text, host if address is None else str(address), schemes, number, port == "*")

    def match(self, scheme: str, host: str, port: int) -> bool:
        """Whether the pattern allows a target; `host` is in lower case, an address in its usual form."""
        if scheme not in self.schemes or not self._matches_host(host):
            return False
        return self.is_any_port or port == (_DEFAULT_PORTS[scheme] if self.port is None else self.port)

    def allow_address(self, address: IpAddress, port: int) -> bool:
        """Whether the pattern itself names an address that is not public, or `localhost`."""
        own = address_of(self.host)
        is_named = own == address if own is not None else self.host == LOCALHOST and address.is_loopback
        ports = {_DEFAULT_PORTS[scheme] for scheme in self.schemes} if self.port is None else {self.port}
        return is_named and (self.is_any_port or port in ports)

    def _matches_host(self, host: str) -> bool:
        if self.host == "*":
            return True
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads. `address` is set if its host is an address."""

    scheme: str
    host: str
    port: int
    address: IpAddress | None


class AllowedTargets:
    """Where the service may push to; nowhere without patterns."""

    def __init__(self, patterns: Sequence[str] = (), networks: Sequence[str] = ()) -> None:
        self.patterns = tuple(map(TargetPattern.parse, patterns))
        self._networks = tuple(map(ipaddress.ip_network, networks))

    def check_url(self, url: str) -> Target:
        """Where a URL leads.

        Raises:
            TargetRefused: no pattern allows it, or its host is an address that is not public.
        """
        target = target_of(url)
        if not self.patterns:
            raise TargetRefused("cannot be pushed to: pushing is off; start the service with --push-allow HOST")
        if not any(pattern.match(target.scheme, target.host, target.port) for pattern in self.patterns):
            allowed = ", ".join(pattern.text for pattern in self.patterns)
            raise TargetRefused(
                f"is not allowed by --push-allow: {target.scheme}://{_shown_host(target.host)}:{target.port} matches "
                f"none of {allowed}"
            )
        if target.address is not None:
            self.check_address(target.address, target.port)
        return target

    def check_resolved(self, host: str, address: IpAddress, port: int) -> None:
        """Check an address of the name `host`. Raises TargetRefused unless it is public or allowed."""
        is_named = address.is_loopback and any(
            pattern.host == LOCALHOST and pattern.allow_address(address, port) for pattern in self.patterns
        )
        if not (is_public(address) or self._in_network(address) or (host == LOCALHOST and is_named)):
            raise TargetRefused(f"resolves to {address}, which is not a public address")

    def check_address(self, address: IpAddress, port: int) -> None:
        """Check an address just before a connection to it. Raises TargetRefused unless it is public or allowed."""
        named = any(pattern.allow_address(address, port) for pattern in self.patterns)
        if not (is_public(address) or self._in_network(address) or named):
            raise TargetRefused(f"leads to {address}, which is not a public address")

    def _in_network(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)


def target_of(url: str) -> Target:
    """Where a URL leads. Raises TargetRefused when it is not the URL of a target."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise TargetRefused("must have visible ASCII characters only; write others as %XX, names as xn--")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its text quotes parts of the URL, which may be a password
        raise TargetRefused("is not a URL, or has a port that is not a number") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise TargetRefused("must begin with https:// or http://")
    _check_parts(parts, host, port)
    address = address_of(host)
    if address is None:
        host = host.removesuffix(".")
        last = host.rpartition(".")[2]
        if not _NAME.fullmatch(host) or last.isdigit() or last.startswith("0x"):  # some read these as IPv4 addresses
            raise TargetRefused(f"has {host!r:.100} in place of a host name")
    elif "%" in host:
        raise TargetRefused("must have no zone in its address")
    return Target(
        parts.scheme,
        host if address is None else str(address),
        _DEFAULT_PORTS[parts.scheme] if port is None else port,
        address,
    )


def _check_parts(parts: SplitResult, host: str, port: int | None) -> None:
    if not host:
        raise TargetRefused("must have a host")
    if port == 0:
        raise TargetRefused(f"must have a port from 1 to {_PORT_MAX}")
    if "@" in parts.netloc:
        raise TargetRefused("must have no user name or password: use `headers`")
    if parts.fragment:
        raise TargetRefused("must have no fragment")


def address_of(host: str) -> IpAddress | None:
    """The address that a host is, with or without brackets; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_public(address: IpAddress) -> bool:
    """Whether an address is one of the public internet: not private, loopback, link-local, shared, multicast, reserved.

    An IPv6 address that stands for an IPv4 address counts as that.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = _embedded(address)
        if inner is None:
            return address in _PUBLIC_V6 and not any(address in network for network in _NOT_PUBLIC_V6)
        address = inner
    return not any(address in network for network in _NOT_PUBLIC_V4)


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
