"""Sockets of clients in a forked child: it lets go of those that it has inherited.

The child never uses them, but its copies would keep the connections open when the parent process has died. The service
would not notice, and hand out jobs to a pop that nobody waits for.
"""

from __future__ import annotations

import os
import socket

_inodes: dict[int, int] = {}
"""The inodes of sockets by file descriptor. One that was closed is left here: its number is checked before use."""


def note(new: socket.socket) -> None:
    """Remember a new socket of this process, before it is connected: another thread may fork meanwhile."""
    fd = new.fileno()
    _inodes[fd] = os.fstat(fd).st_ino


def _let_go() -> None:
    if not _inodes:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd, inode in _inodes.items():
        try:
            is_same = inode != 0 and os.fstat(fd).st_ino == inode
        except OSError:  # it is closed
            continue
        if is_same:
            os.dup2(null, fd, inheritable=False)  # not closed: an object has this number, and would close another file
    os.close(null)
    _inodes.clear()


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=_let_go)
