"""A TCP proxy that rewrites a server's replies to INFO, so that it resembles another product."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from tests.in_thread import in_thread
from tests.proxy_server import PIECE_BYTES, ProxyServer, forward

_INFO = re.compile(rb"\$(\d+)\r\n(?=# Server\r\n)")


class InfoProxy(ProxyServer):
    """Applies `rewrite` to each reply to INFO and forwards all else unchanged."""

    def __init__(self, port: int, rewrite: Callable[[str], str]) -> None:
        super().__init__("127.0.0.1", port)
        self._rewrite = rewrite
        self.rewritten = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def relay(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        return forward(client[0], server[1]), self._forward_replies(server[0], client[1])

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = b""
        while piece := await reader.read(PIECE_BYTES):
            held += piece
            info = _INFO.search(held)
            if info is not None:
                end = info.end() + int(info[1])
                if len(held) < end:
                    continue
                text = self._rewrite(held[info.end() : end].decode()).encode()
                held = held[: info.start()] + b"$%d\r\n" % len(text) + text + held[end:]
                self.rewritten += 1
            writer.write(held)
            await writer.drain()
            held = b""


def info_proxy(port: int, rewrite: Callable[[str], str]) -> AbstractContextManager[InfoProxy]:
    """A proxy that runs in a thread until the end of the block."""
    return in_thread(InfoProxy(port, rewrite))


def with_server_section(lines: str) -> Callable[[str], str]:
    """A rewrite that replaces the section Server with these lines and keeps the other sections."""
    section = "# Server\r\n" + "".join(f"{line}\r\n" for line in lines.split())

    def rewrite(info: str) -> str:
        _, blank, others = info.partition("\r\n\r\n")
        return section + blank + others

    return rewrite
