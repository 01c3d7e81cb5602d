"""The load generator reaches a deployment by a unix socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deferd.bench.connection import Connection
from deferd.client import requests


async def test_the_url_may_be_a_unix_socket(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_unix_server(talk, tmp_path / "d.sock")
    connection = Connection(f"unix://{tmp_path}/d.sock", timeout_s=2)
    await connection.send(requests.ready())
    connection.close()
    server.close()
