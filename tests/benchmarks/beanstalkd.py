"""A beanstalkd process and the fastest client for it: raw bytes over one socket, many commands per write."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port
from tests.waiting import wait_until

START_S = 10.0
RESPONSE_TIMEOUT_S = 60.0
_CHUNK = 1 << 20


class BeanstalkdMissing(Exception):
    """The program is not installed."""


class Beanstalkd:
    """A beanstalkd on a free loopback port. With `log_folder` it syncs every write to a log there."""

    def __init__(self, log_folder: Path | None = None) -> None:
        self.port = free_port()
        self._flags = () if log_folder is None else ("-b", str(log_folder), "-f", "0")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "beanstalkd is not running"
        return self._process.pid

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        program = shutil.which("beanstalkd")
        if program is None:
            raise BeanstalkdMissing("beanstalkd is not installed: `apt-get install beanstalkd`")
        self._process = subprocess.Popen([program, "-l", "127.0.0.1", "-p", str(self.port), *self._flags])
        try:
            wait_until(self._listens, START_S, "beanstalkd listens")
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(RESPONSE_TIMEOUT_S)


class Pipeline:
    """One raw socket. Each method writes all its commands at once and then reads all the replies, in bulk.

    `body` is the body of every job, ready as bytes; replies are counted and checked, ids are taken out, and nothing
    more is done with them, so that the client takes almost no time. Bodies must not hold a line end.
    """

    def __init__(self, port: int, body: bytes) -> None:
        self._put = b"put 0 0 60 %d\r\n%s\r\n" % (len(body), body)
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=RESPONSE_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def put(self, count: int) -> None:
        """Put `count` jobs."""
        self._socket.sendall(self._put * count)
        _expect(self._lines(count), b"INSERTED ", count)

    def reserve_and_delete(self, count: int) -> None:
        """Reserve `count` jobs, which must be there, and delete them: two writes, since a delete needs the id."""
        self._socket.sendall(b"reserve-with-timeout 0\r\n" * count)
        self._socket.sendall(_deletes(self._lines(2 * count)))
        _expect(self._lines(count), b"DELETED", count)

    def flow(self, batches: int, count: int) -> None:
        """Run `batches` of `count` jobs through the full cycle with one write per batch.

        Each write puts and reserves one batch and deletes the one before.
        """
        ahead = self._put * count + b"reserve-with-timeout 0\r\n" * count
        deletes, deleted = b"", 0
        for _ in range(batches):
            self._socket.sendall(deletes + ahead)
            lines = self._lines(deleted + 3 * count)
            _expect(lines[:deleted], b"DELETED", deleted)
            _expect(lines[deleted : deleted + count], b"INSERTED ", count)
            deletes, deleted = _deletes(lines[deleted + count :]), count
        self._socket.sendall(deletes)
        _expect(self._lines(count), b"DELETED", count)

    def _lines(self, count: int) -> list[bytes]:
        """The next `count` lines; fails if there are more."""
        replies = bytearray()
        missing = count
        while missing > 0:
            piece = self._socket.recv(_CHUNK)
            if not piece:
                raise ConnectionError("beanstalkd closed the connection")
            missing -= piece.count(b"\n")
            replies += piece
        lines = bytes(replies).split(b"\r\n")
        if missing < 0 or lines.pop():
            raise RuntimeError(f"beanstalkd sent an unexpected reply: {lines[-1]!r}")
        return lines

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()


def _deletes(reserved: list[bytes]) -> bytes:
    """`delete` for each of the replies to `reserve`: a line with the id, then one with the body."""
    heads = reserved[::2]
    _expect(heads, b"RESERVED ", len(heads))
    return b"".join([b"delete %s\r\n" % head.split(b" ", 2)[1] for head in heads])


def _expect(lines: list[bytes], start: bytes, count: int) -> None:
    if len(lines) != count or not all(map(start.__eq__, [line[: len(start)] for line in lines])):
        other = next((line for line in lines if not line.startswith(start)), b"")
        raise RuntimeError(f"beanstalkd replied {other[:100]!r} instead of {start!r}")
