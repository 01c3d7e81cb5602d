"""Connections that write commands with hiredis. redis-py's asyncio connections do it in Python, which is a third of the
service's time for a large put; its blocking ones use hiredis already.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection
from redis.connection import HiredisRespSerializer

_WRITER = HiredisRespSerializer()


class _Packing:
    def pack_command(self, *args: Any) -> list[bytes]:
        """One command in the store's protocol."""
        packed: list[bytes] = _WRITER.pack(*args)
        return packed


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
