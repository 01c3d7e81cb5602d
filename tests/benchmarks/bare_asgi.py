"""The baseline for single calls: the minimum that an ASGI application with the same JSON bodies can do.

    python -m tests.benchmarks.bare_asgi --port 8001 --responses FILE

FILE has a response of deferd for each of the three calls: status, headers and JSON. The application parses each
request's JSON and sends a response of the same shape and size; it validates and stores nothing. It runs on uvicorn with
the timeouts and the backlog of deferd.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import uvicorn

from deferd.server.http.connections import KEEP_ALIVE_S
from deferd.server.http_server import BACKLOG
from tests.benchmarks.measuring import new_event_loop

Message = dict[str, Any]


class BareApplication:
    """Responds to `POST /jobs`, `GET .../pop` and `POST .../finish` with the given responses."""

    def __init__(self, responses: dict[str, dict[str, Any]]) -> None:
        self._responses = {
            call: (
                response["status"],
                [(name.encode(), value.encode()) for name, value in response["headers"]],
                response["json"],
            )
            for call, response in responses.items()
        }

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        path = scope["path"]
        call = "put" if path == "/jobs" else "pop" if path.endswith("/pop") else "finish"
        status, headers, content = self._responses[call]
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if body:
            sent = orjson.loads(body)
            if call == "put":
                content = {**content, "topic": sent["topic"], "body": sent["body"]}
        raw = orjson.dumps(content)
        length = (b"content-length", b"%d" % len(raw))
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": raw})


async def _live(receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--responses", type=Path, required=True)
    options = parser.parse_args()
    config = uvicorn.Config(
        BareApplication(orjson.loads(options.responses.read_bytes())),
        host="127.0.0.1",
        port=options.port,
        http="httptools",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
