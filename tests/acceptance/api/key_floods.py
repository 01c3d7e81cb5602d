"""What a caller with a key and quotas can do to fill the memory of a service and its store, over HTTPS.

Each flood runs for a time, in a process of its own so that it does not slow down the measuring one. It counts the
statuses of the responses, and continues when it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.wire import Wire, connected, cut, request

QUOTA = """
max_jobs_total = 300
max_bytes_total = {max_bytes}
max_topics = 10
max_retain = 60
max_ttl = 60
max_dead_retain = 60
max_waiting_pops = 10
requests_per_second = 300
"""
LARGE_JOBS, LARGE_JOB_BYTES = 6, 900_000
SLOW_READERS = 12
SILENT_SOCKETS = 150
_REFUSED_PAUSE_S = 0.02
_AT_ONCE = 3


class Flood:
    """A flood of calls by the key of `token`, into topics that begin with `prefix`."""

    def __init__(self, port: int, trust: ssl.SSLContext, token: str, prefix: str) -> None:
        self.port = port
        self.trust = trust
        self.token = token
        self.prefix = prefix
        self.responses: Counter[int] = Counter()
        self.number = 0

    def raw(self, method: str, path: str, body: Any = None) -> bytes:
        return request(method, path, body, f"Authorization: Bearer {self.token}")

    async def call(self, wire: Wire, method: str, path: str, body: Any = None) -> Any:
        """The JSON of the service's response, None when it refuses."""
        wire.send(self.raw(method, path, body))
        response = await wire.read_response()
        self.responses[response.status] += 1
        if response.status == 429:
            await asyncio.sleep(_REFUSED_PAUSE_S)
        return response.json() if response.status < 300 else None

    async def put(self, wire: Wire, topic: str, **fields: Any) -> Any:
        return await self.call(wire, "POST", "/jobs", {"topic": f"{self.prefix}.{topic}", **fields})

    async def pop(self, wire: Wire, topic: str, query: str) -> list[Any]:
        popped = await self.call(wire, "POST", f"/topics/{self.prefix}.{topic}/pop?wait=0&{query}")
        return [] if popped is None else list(popped["jobs"])

    async def put_many(self, wire: Wire, topic: str, count: int) -> None:
        jobs = [{"topic": f"{self.prefix}.{topic}", "body": "x" * 500}] * count
        await self.call(wire, "POST", "/jobs/batch", {"jobs": jobs})

    async def repeat(self, step: Callable[[Flood, Wire], Awaitable[None]], end_s: float) -> None:
        """Repeat a step on a connection of its own."""
        async with connected(self.port, self.trust) as wire:
            while time.monotonic() < end_s:
                self.number += 1
                await step(self, wire)


class Outcome(NamedTuple):
    """How often a flood took its step, and how often it got each status."""

    steps: int
    responses: dict[str, int]


async def run_flood(name: str, port: int, authority: Path, token: str, *, seconds: float) -> Outcome:
    """The flood of this name, by the key of `token`, into topics that begin with its name."""
    options = json.dumps([name, port, str(authority), token, seconds])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, options), stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"the flood {name} ended early"
    return Outcome(*json.loads(output))


async def churn_ready_jobs(flood: Flood, wire: Wire) -> None:
    """A ready job is rescheduled, and is ready again, by a caller that may only put."""
    job_id = f"j{flood.number % 50}"
    await flood.put(wire, "t", id=job_id, on_conflict="replace", delay=60)
    await flood.put(wire, "t", id=job_id, on_conflict="replace")


async def leave_dead_jobs(flood: Flood, wire: Wire) -> None:
    """Jobs that die at once, and are kept."""
    await flood.put(wire, "t", ttl=0.001, body="x" * 500)


async def leave_finished_jobs(flood: Flood, wire: Wire) -> None:
    """Jobs that are kept after their end, with a result."""
    await flood.put(wire, "t", retain=60)
    for job in await flood.pop(wire, "t", "count=5"):
        await flood.call(wire, "POST", f"/jobs/{job['topic']}/{job['id']}/finish", {"result": "x" * 500})


async def leave_request_records(flood: Flood, wire: Wire) -> None:
    """What the service remembers of a pop with a request id, each a new id of the maximum length."""
    await flood.put_many(wire, "t", 20)
    jobs = await flood.pop(wire, "t", f"count=20&request_id={secrets.token_hex(127)}")
    finishes = {"jobs": [{"id": job["id"]} for job in jobs]}
    if jobs:
        await flood.call(wire, "POST", f"/topics/{flood.prefix}.t/finish", finishes)


async def leave_tombstones(flood: Flood, wire: Wire) -> None:
    """What the service remembers of a held job that was cancelled, until after its long lease."""
    await flood.put_many(wire, "t", 10)
    for job in await flood.pop(wire, "t", "count=10&ttr=3600"):
        await flood.call(wire, "DELETE", f"/jobs/{job['topic']}/{job['id']}")


async def use_new_topics(flood: Flood, wire: Wire) -> None:
    """A job in a topic of its own, cancelled at once so that the topic is empty."""
    job = await flood.put(wire, f"t{flood.number}-{secrets.token_hex(8)}")
    if job is not None:
        await flood.call(wire, "DELETE", f"/jobs/{job['topic']}/{job['id']}")


async def read_no_repeated_pops(flood: Flood, wire: Wire) -> None:
    """One large pop, repeated on many connections that do not read it."""
    if not await flood.call(wire, "GET", f"/jobs/{flood.prefix}.t/large0"):
        for number in range(LARGE_JOBS):
            await flood.put(wire, "t", id=f"large{number}", body="x" * LARGE_JOB_BYTES, on_conflict="keep")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(SLOW_READERS):
            raw = stack.enter_context(socket.socket())
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", flood.port))
            _, writer = await asyncio.open_connection(
                sock=raw, ssl=flood.trust, server_hostname="localhost", limit=1024
            )
            stack.push_async_callback(cut, writer)
            writer.write(flood.raw("POST", f"/topics/{flood.prefix}.t/pop?wait=0&count=10&ttr=3600&request_id=r"))
            await asyncio.sleep(0.02)


async def open_silent_sockets(flood: Flood, _wire: Wire) -> None:
    """Connections on which not even a TLS handshake begins."""
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT_SOCKETS):
            opened = stack.enter_context(socket.socket())
            opened.setblocking(False)
            opened.connect_ex(("127.0.0.1", flood.port))
        await asyncio.sleep(0.2)


FLOODS: dict[str, Callable[[Flood, Wire], Awaitable[None]]] = {
    "ready": churn_ready_jobs,
    "dead": leave_dead_jobs,
    "finished": leave_finished_jobs,
    "requests": leave_request_records,
    "tombstones": leave_tombstones,
    "topics": use_new_topics,
    "slow": read_no_repeated_pops,
    "silent": open_silent_sockets,
}
SCOPES = {"ready": ("put",)}


async def _main(name: str, port: int, authority: str, token: str, seconds: float) -> None:
    flood = Flood(port, ssl.create_default_context(cafile=authority), token, name)
    end_s = time.monotonic() + seconds
    await asyncio.gather(*(flood.repeat(FLOODS[name], end_s) for _ in range(_AT_ONCE)))
    print(json.dumps([flood.number, flood.responses]))


if __name__ == "__main__":
    asyncio.run(_main(*json.loads(sys.argv[1])))
