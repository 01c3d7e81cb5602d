"""The listening socket, bound before anything else is started so that a port in use is reported first."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator

from deferd.server.startup_errors import CannotServe
from deferd.settings import flag, variable

BACKLOG = 4096
"""Connections that may wait to be accepted; the operating system may allow fewer."""

_KEYS_REQUIRED = (
    f"{flag('host')} ({variable('host')}) is {{host}}, which other machines can reach, and no key is required: set "
    f"keys with {flag('keys_file')} ({variable('keys_file')}) or {variable('keys')}, which `deferd key new` makes; or "
    f"listen on 127.0.0.1; or set {flag('insecure')} ({variable('insecure')}=true) to let anyone who can connect do "
    "everything"
)


@contextlib.contextmanager
def listen(host: str, port: int, *, allow_public: bool, port_setting: str = "port") -> Iterator[socket.socket]:
    """A bound and listening socket, closed at the end.

    Port 0 takes a free one; `port_setting` is the setting that it comes from. For a name with several addresses the
    first is used. Without `allow_public` it must be a loopback address.

    Raises:
        CannotServe: the port is taken, or this machine does not have the address, or it needs `allow_public`.
    """
    settings = f"{flag('host')} {variable('host')}, {flag(port_setting)} {variable(port_setting)}"
    where = f"{host} port {port} ({settings})"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if not allow_public and not _is_loopback(str(address[0])):
            raise CannotServe(_KEYS_REQUIRED.format(host=host))
        listener = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise CannotServe(f"cannot listen on {where}: {exc.strerror or exc}") from exc
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as exc:
            raise CannotServe(f"cannot listen on {where}: {exc.strerror or exc}") from exc
        yield listener


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback  # ::ffff:127.0.0.1 is 127.0.0.1
