"""Who makes a request that comes through proxies: what `X-Forwarded-For` says, where the networks are trusted."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from deferd.api.responses import Header

_HEADER = b"x-forwarded-for"
_HOPS_MAX = 50
_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The networks of `--trusted-proxy`.

    Each proxy appends the address that it was called from, so the caller is the last address that is not of a trusted
    proxy: what precedes it, anybody may have written. RFC 7239's `Forwarded` is not read, because a proxy that writes
    one of the two headers passes on the other one as its client sent it.
    """

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def is_trusted(self, host: str) -> bool:
        """Whether a connection from this address is that of a proxy."""
        address = _address(host) if self._networks else None
        return address is not None and self._has(address)

    def caller(self, host: str, headers: Iterable[Header]) -> str:
        """The address of who made a request that came from `host`, a trusted proxy."""
        hops = b",".join(value for name, value in headers if name == _HEADER).decode("latin-1").split(",")
        for hop in reversed(hops[-_HOPS_MAX:]):
            address = _address(_without_port(hop.strip()))
            if address is None:  # empty, or a name: nobody knows more
                break
            host = str(address)
            if not self._has(address):
                break
        return host

    def _has(self, address: _IpAddress) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> _IpAddress | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    # Without its scope, any text after a %, which says something only on the machine that wrote it.
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))


def _without_port(hop: str) -> str:
    """``192.0.2.1`` of ``192.0.2.1:4711``, ``2001:db8::1`` of ``[2001:db8::1]:4711``: some proxies write the port."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
