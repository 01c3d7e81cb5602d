"""Connections that write commands with hiredis. redis-py's asyncio connections do it in Python, which is a third of the
service's time for a large put; its blocking ones use hiredis already.
"""

from __future__ import annotations

from typing import Any

import hiredis
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection


class _Packing:
    def pack_command(self, *args: Any) -> list[bytes]:
        """One command in the store's protocol."""
        if isinstance(args[0], str) and " " in args[0]:  # such as SCRIPT LOAD
            args = (*args[0].split(), *args[1:])
        return [hiredis.pack_command(args)]


class PackingConnection(_Packing, Connection):
    """Over TCP."""


class PackingSSLConnection(_Packing, SSLConnection):
    """Over TLS."""


class PackingUnixConnection(_Packing, UnixDomainSocketConnection):
    """Over a unix socket."""


PACKING: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: PackingConnection,
    SSLConnection: PackingSSLConnection,
    UnixDomainSocketConnection: PackingUnixConnection,
}
"""For each of redis-py's connections the one that writes with hiredis."""
