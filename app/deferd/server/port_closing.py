"""Closing a port without resetting a connection."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Iterator

_SO_ATTACH_FILTER = 26
"""Linux's; `socket` has no name for it."""

_FLAGS_AT, _SYN, _SYN_OR_ACK = 13, 0x02, 0x12
_DROP_FIRST_SEGMENTS = b"".join(
    struct.pack("=HBBI", *instruction)  # struct sock_filter: code, jump if true, jump if false, operand
    for instruction in (
        (0x30, 0, 0, _FLAGS_AT),  # load the flags of the TCP header, where the filter's view of a segment begins
        (0x54, 0, 0, _SYN_OR_ACK),  # and
        (0x15, 0, 1, _SYN),  # SYN without ACK: the first segment of a handshake
        (0x06, 0, 0, 0),  # drop it
        (0x06, 0, 0, 0xFFFFFFFF),  # pass it
    )
)


def admit_no_more(listener: socket.socket) -> None:
    """Let the system drop each attempt to connect from now on. Close the port soon.

    Between the last accept and the close there is always time for one more connection, which the close resets: a client
    that has sent a request cannot know whether it had an effect. An attempt that is dropped is repeated by the client's
    system after a second, which a proxy notices: the time until the close must be short. The filter belongs to the
    port, not to this process: only who ends the whole service may call this. Where the system has no such filter (other
    than Linux) some of a chance remains.
    """
    instructions = ctypes.create_string_buffer(_DROP_FIRST_SEGMENTS, len(_DROP_FIRST_SEGMENTS))
    program = struct.pack("HP", len(_DROP_FIRST_SEGMENTS) // 8, ctypes.addressof(instructions))  # struct sock_fprog
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def last_connections(listener: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections that wait for that, then close the socket, which would have reset them."""
    with listener, contextlib.suppress(OSError):  # none waits, or too many files are open
        while True:
            yield listener.accept()[0]
