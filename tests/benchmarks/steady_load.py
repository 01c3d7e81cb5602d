"""Jobs that are due at a steady rate for as long as a block lasts, and how late each came to its consumer.

Every tenth of a second the jobs of a tenth of a second are put in one batch, due at random instants one second later.
Consumers long-poll, note the arrival of each job, and finish what they popped in one call. Both clocks are this
machine's. It may run in a thread beside the benchmark: see `steady_load`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import new_event_loop, percentile

TOPIC = "bench.steady"
AHEAD_S = 1.0
TICK_S = 0.1
CONSUMERS = 4
COUNT = 100
GRACE_S = 30.0


class SteadyLoad:
    """The load over one service; `late_ms` has the lateness of each job that has arrived, by id."""

    def __init__(self, port: int, rate: int) -> None:
        self._port = port
        self._rate = rate
        self._due_s: dict[str, float] = {}
        self._stopping = asyncio.Event()
        self.late_ms: dict[str, float] = {}
        self.put_ms: list[float] = []
        """How long each batch of puts took."""

    async def run(self) -> None:
        """Put and consume until `stop`, then consume what is left."""
        [putter, *consumers] = await raw_http.connect_many(self._port, 1 + CONSUMERS)
        await putter.call("POST", "/jobs", {"topic": TOPIC})  # an unknown topic cannot be purged
        await putter.call("DELETE", f"/topics/{TOPIC}")  # also what an interrupted run has left
        consuming = [asyncio.create_task(self._consume(connection)) for connection in consumers]
        try:
            await self._put(putter)
            await raw_http.bounded(asyncio.gather(*consuming), AHEAD_S + GRACE_S, "all jobs arrived")
        finally:
            for task in consuming:
                task.cancel()
            for connection in (putter, *consumers):
                connection.close()

    def stop(self) -> None:
        """End the puts. To be called in the event loop of `run`."""
        self._stopping.set()

    async def _put(self, connection: raw_http.Connection) -> None:
        first_s = time.time() + AHEAD_S
        tick = 0
        while not self._stopping.is_set():
            from_s = first_s + tick * TICK_S
            jobs = [self._job(tick, number, from_s) for number in range(round(self._rate * TICK_S))]
            began = time.perf_counter()
            results = (await connection.call("POST", "/jobs/batch", {"jobs": jobs}))["results"]
            self.put_ms.append((time.perf_counter() - began) * 1000)
            if any(result["status"] != 201 for result in results):
                raise SystemExit(f"a put was refused: {results}")
            tick += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(first_s - AHEAD_S + tick * TICK_S - time.time(), 0)):
                    await self._stopping.wait()

    def _job(self, tick: int, number: int, from_s: float) -> dict[str, Any]:
        job_id = f"{tick}.{number}"
        due_s = round(from_s + random.random() * TICK_S, 3)
        self._due_s[job_id] = due_s
        run_at = datetime.fromtimestamp(due_s, UTC).isoformat()
        return {"topic": TOPIC, "id": job_id, "run_at": run_at, "body": {"order": number}}

    async def _consume(self, connection: raw_http.Connection) -> None:
        pop = raw_http.request_bytes("GET", f"/topics/{TOPIC}/pop?wait=1&count={COUNT}")
        while not (self._stopping.is_set() and len(self.late_ms) == len(self._due_s)):
            response = await connection.send(pop)
            now_s = time.time()
            jobs = response.json()["jobs"]
            for job in jobs:
                if job["id"] in self.late_ms:
                    raise SystemExit(f"job {job['id']} arrived twice")
                self.late_ms[job["id"]] = (now_s - self._due_s[job["id"]]) * 1000
            if jobs:
                finished = [{"id": job["id"], "receipt": job["receipt"]} for job in jobs]
                await connection.call("POST", f"/topics/{TOPIC}/finish", {"jobs": finished})

    def late_ms_between(self, began_s: float, ended_s: float) -> list[float]:
        """The lateness of the jobs that were due between these instants."""
        return [late for job_id, late in self.late_ms.items() if began_s <= self._due_s[job_id] <= ended_s]

    def report(self, began_s: float, ended_s: float) -> str:
        """The lateness of the jobs that were due between these instants, as a phrase."""
        late_ms = self.late_ms_between(began_s, ended_s)
        if not late_ms:
            return "no job was due"
        p50_ms, p99_ms = (percentile(late_ms, share) for share in (0.5, 0.99))
        return f"{len(late_ms)} jobs late by p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, most {max(late_ms):.0f} ms"


@contextlib.contextmanager
def steady_load(port: int, rate: int) -> Iterator[SteadyLoad]:
    """The load in a thread of its own during the block. At the end all its jobs have arrived, each once."""
    failed: list[BaseException] = []
    started = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    load = SteadyLoad(port, rate)

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        started.set()
        await load.run()

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(run())
        except BaseException as error:  # noqa: BLE001 (raised again where the block ends)
            failed.append(error)

    gc.collect()
    gc.freeze()  # a collection of all that a benchmark has imported would hold up the consumers for 50 ms
    thread = threading.Thread(target=work, daemon=True, name="steady-load")
    thread.start()
    started.wait()
    try:
        time.sleep(2 * AHEAD_S)  # the first jobs are due
        yield load
    finally:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            loops[0].call_soon_threadsafe(load.stop)
        thread.join(2 * GRACE_S)
        gc.unfreeze()
    if failed:
        raise failed[0]
