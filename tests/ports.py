"""Free TCP ports for servers of tests."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Iterator


def free_port() -> int:
    """A free TCP port on loopback, outside the range of outgoing connections."""
    with _bound_socket() as taken:
        return _port_of(taken)


def held_port(server: object) -> int:
    """A free port that no other test process gets until `server` is no longer used, also while it does not run.

    A socket that is bound to a port but does not listen keeps `free_port` from it, and lets the server listen.
    """
    taken = _bound_socket()
    weakref.finalize(server, taken.close)
    return _port_of(taken)


def _bound_socket() -> socket.socket:
    for port in _candidates:
        taken = socket.socket()
        try:
            taken.bind(("127.0.0.1", port))  # without SO_REUSEADDR this fails where another socket is bound
        except OSError:
            taken.close()
        else:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lets a server bind as well
            return taken
    raise RuntimeError("no port is free")


def _port_of(taken: socket.socket) -> int:
    port: int = taken.getsockname()[1]
    return port


def _ports() -> Iterator[int]:
    """20000 to 31999, from a random start, so that test processes do not race for the same ports."""
    start = int.from_bytes(os.urandom(2), "big")
    for step in range(12_000):
        yield 20_000 + (start + step) % 12_000


_candidates = _ports()
