"""A load of plain HTTP clients, which repeat nothing, for tests that restart services under it.

Each caller has a connection of its own and keeps it, as HTTP/1.1 allows. Before it uses the connection again it looks
whether the server has closed it, as HTTP clients do. Whatever else goes wrong is a failed request.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import select
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.wire import Wire, WireResponse, cut, request
from tests.waiting import until

RATE_PER_S = 1000.0
"""Requests a second of all callers together. A goal: a slow machine has fewer."""
_PRODUCERS = 10
_CANCELLERS = 4
_CONSUMERS = 16
_PARKED = 10
"""Callers whose pops always wait: their topic has no jobs."""
_OCCASIONAL = 20
"""Callers that leave their connections idle between two requests, for a second on average."""
_JOBS_PER_S = RATE_PER_S / 5
"""A job is put, read, popped and finished; the other callers make a fifth of the requests."""
_WAIT_S = 5
_RESPONSE_S = 60.0
_DELIVERED_S = 120.0
_TOPIC = "orders.close"


class Endpoints:
    """The ports to which new connections go, in turn.

    As kube-proxy: it decides when a connection is opened, and an endpoint that is withdrawn keeps its connections.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._turn = itertools.count()
        self._opening: Counter[int] = Counter()

    def add(self, port: int) -> None:
        self._ports.append(port)

    def withdraw(self, port: int) -> None:
        self._ports.remove(port)

    def pick(self) -> int:
        """Where the next connection goes. It counts as being opened until `opened`."""
        port = self._ports[next(self._turn) % len(self._ports)]
        self._opening[port] += 1
        return port

    def opened(self, port: int) -> None:
        self._opening[port] -= 1

    def is_settled(self, port: int) -> bool:
        """Whether no connection to it is being opened."""
        return self._opening[port] == 0


@dataclass
class LoadOutcome:
    """What the callers have seen."""

    responses: Counter[str] = field(default_factory=Counter)
    """By request and status."""
    failures: list[str] = field(default_factory=list)
    connections: int = 0
    put: set[str] = field(default_factory=set)
    deliveries: Counter[str] = field(default_factory=Counter)
    """By job, and by `JOB again` where the service counts more than one attempt."""
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return self.responses.total() + len(self.failures)

    @property
    def is_clean(self) -> bool:
        """No request has failed, and each job was delivered once."""
        return not self.failures and self.deliveries == Counter(self.put)

    def report(self) -> str:
        """The counts, a line each."""
        never, repeated = self.put - self.deliveries.keys(), self.deliveries - Counter(self.put)
        lines = [
            f"{self.requests} requests in {self.seconds:.1f} s, {self.requests / self.seconds:.0f} a second",
            *(f"  {count:8} {what}" for what, count in sorted(self.responses.items())),
            f"{self.connections} connections",
            f"{len(self.put)} jobs put, {len(never)} of them never delivered, {len(repeated)} more than once",
            f"{len(self.failures)} failed requests",
            *(f"  {failure}" for failure in self.failures[:20]),
        ]
        return "\n".join(lines)


@asynccontextmanager
async def running_load(endpoints: Endpoints) -> AsyncIterator[LoadOutcome]:
    """The callers run during the block; after it all jobs that were put are delivered, or 120 s have passed."""
    outcome = LoadOutcome()
    began_s = time.monotonic()
    putting, consuming = asyncio.Event(), asyncio.Event()
    putting.set()
    consuming.set()
    async with asyncio.TaskGroup() as callers:

        def start(calls: _Calls, callers_number: int, goes_on: asyncio.Event) -> None:
            for number in range(callers_number):
                callers.create_task(_run(calls, _Caller(endpoints, outcome), number, goes_on))

        start(_produce, _PRODUCERS, putting)
        start(_put_and_cancel, _CANCELLERS, putting)
        start(_look_now_and_then, _OCCASIONAL, putting)
        start(_wait_for_nothing, _PARKED, putting)
        start(_consume, _CONSUMERS, consuming)
        try:
            yield outcome
            putting.clear()
            await until(
                lambda: outcome.failures != [] or outcome.put <= outcome.deliveries.keys(),
                "all jobs are delivered",
                within_s=_DELIVERED_S,
            )
        finally:
            putting.clear()
            consuming.clear()
    outcome.seconds = time.monotonic() - began_s


class _Caller:
    """A client with one connection, which it keeps for as long as the service does."""

    def __init__(self, endpoints: Endpoints, outcome: LoadOutcome) -> None:
        self._endpoints = endpoints
        self.outcome = outcome
        self._wire: Wire | None = None
        self._due_s = time.monotonic()

    async def pause(self, rate_per_s: float) -> None:
        """Until the next of so many events a second. What a slow machine does not reach in time is left out."""
        self._due_s += min(random.expovariate(rate_per_s), 2 / rate_per_s)
        now_s = time.monotonic()
        if now_s > self._due_s + 1:
            self._due_s = now_s
        await asyncio.sleep(self._due_s - now_s)

    async def call(self, name: str, expected: Sequence[int], method: str, path: str, body: Any = None) -> Any:
        """The body of the response; None if the request failed, which is noted."""
        was_kept = self._is_kept()
        sent_s = time.monotonic()
        try:
            response = await self._exchange(request(method, path, body, "Content-Type: application/json"))
        except (OSError, EOFError, TimeoutError) as error:
            after_s = time.monotonic() - sent_s
            kept = "a kept" if was_kept else "a new"
            self.outcome.failures.append(f"{name} on {kept} connection after {after_s:.3f} s: {error!r}")
            await self.drop()
            return None
        if response.status not in expected:
            self.outcome.failures.append(f"{name}: {response.status} {response.body[:300]!r}")
            return None
        self.outcome.responses[f"{name} {response.status}"] += 1
        return json.loads(response.body) if response.body else None

    async def _exchange(self, content: bytes) -> WireResponse:
        if self._is_kept():
            assert self._wire is not None
            self._wire.send(content)
            response = await self._wire.read_response(_RESPONSE_S)
        else:
            await self.drop()
            port = self._endpoints.pick()
            try:
                self._wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
                self.outcome.connections += 1
                self._wire.send(content)
                response = await self._wire.read_response(_RESPONSE_S)
            finally:
                self._endpoints.opened(port)
        if response.headers.get("connection") == "close":
            await self.drop()
        return response

    def _is_kept(self) -> bool:
        """Whether there is a connection, and the server has not closed it as far as can be seen from here."""
        if self._wire is None or self._wire.writer.is_closing():
            return False
        readable, _, _ = select.select([self._wire.writer.get_extra_info("socket")], [], [], 0)
        return not readable

    async def drop(self) -> None:
        """Close the connection, if there is one."""
        if self._wire is not None:
            wire, self._wire = self._wire, None
            await cut(wire.writer)


_Calls = Callable[[_Caller, int, asyncio.Event], Coroutine[Any, Any, None]]


async def _run(calls: _Calls, caller: _Caller, number: int, goes_on: asyncio.Event) -> None:
    try:
        await calls(caller, number, goes_on)
    finally:
        await caller.drop()


async def _produce(caller: _Caller, number: int, goes_on: asyncio.Event) -> None:
    for turn in itertools.count():
        await caller.pause(_JOBS_PER_S / _PRODUCERS)
        if not goes_on.is_set():
            return
        job_id = f"{number}-{turn}"
        job = {"topic": _TOPIC, "id": job_id, "delay": random.choice((0, 0, 0, 0.5)), "ttr": 600}
        if await caller.call("put", (201,), "POST", "/jobs", job) is not None:
            caller.outcome.put.add(job_id)
            await caller.call("get", (200, 404), "GET", f"/jobs/{_TOPIC}/{job_id}")  # 404: it is finished already


async def _put_and_cancel(caller: _Caller, number: int, goes_on: asyncio.Event) -> None:
    for turn in itertools.count():
        await caller.pause(_JOBS_PER_S / 4 / _CANCELLERS)
        if not goes_on.is_set():
            return
        job = {"topic": "orders.remind", "id": f"{number}-{turn}", "delay": 600}
        if await caller.call("put", (201,), "POST", "/jobs", job) is not None:
            await caller.call("cancel", (200,), "DELETE", f"/jobs/orders.remind/{number}-{turn}")


async def _look_now_and_then(caller: _Caller, _: int, goes_on: asyncio.Event) -> None:
    while goes_on.is_set():
        await caller.call("topics", (200,), "GET", "/topics")
        await caller.pause(1.0)


async def _wait_for_nothing(caller: _Caller, _: int, goes_on: asyncio.Event) -> None:
    while goes_on.is_set():
        await caller.call("parked pop", (200,), "GET", f"/topics/nothing/pop?wait={_WAIT_S}")


async def _consume(caller: _Caller, _: int, goes_on: asyncio.Event) -> None:
    while goes_on.is_set():
        popped = await caller.call("pop", (200,), "GET", f"/topics/{_TOPIC}/pop?wait={_WAIT_S}")
        for job in (popped or {}).get("jobs", ()):
            caller.outcome.deliveries[job["id"]] += 1
            if job["attempt"] != 1:
                caller.outcome.deliveries[f"{job['id']} again"] += 1
            finish = {"receipt": job["receipt"]}
            await caller.call("finish", (200,), "POST", f"/jobs/{_TOPIC}/{job['id']}/finish", finish)
