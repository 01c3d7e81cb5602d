"""How fast one process pushes, how soon after the due time a request arrives, and what a hanging target costs.

    python -m tests.benchmarks.push [--jobs 20000]

The service runs on one core; its store (fsync always), the target and this benchmark on another. The target is a plain
server on loopback, which responds to each request at once.

backlog: jobs that are all ready, from the first request to the last, with 200 requests under way.
due: jobs that come due one after the other, from the due time to the arrival of the request, by the machine's clock.
beside a hanging target: both again, while another topic has 1000 requests under way that never get a response.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import cast

import httpx
import uvloop

from tests.benchmarks.measuring import (
    CpuMeter,
    end_in_order,
    measured_service,
    options_of,
    percentile,
    pin,
    show_target,
)

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_IN_FLIGHT = 200
_HANGING = 1000
_BATCH = 1000
_RATE_OF_DUE, _DUE_JOBS = 200, 2000
_FIRST_DUE_S = 3.0
_OTHER_CORE = 1


class _Target(asyncio.Protocol):
    """Notes when requests arrive; responds to those of the path /fast."""

    received: list[tuple[bytes, float]]
    hanging = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = int(_header(head, b"content-length"))
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            if b"/hang" in head[: head.find(b"\r\n")]:
                _Target.hanging += 1
                continue
            _Target.received.append((_header(head, b"deferd-job-id"), time.time()))
            self._transport.write(_RESPONSE)


def _header(head: bytes, name: bytes) -> bytes:
    return head.partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0].strip()


def _run_target(pipe: Connection) -> None:
    """Serve in a process of its own: each message of the pipe asks for what came since the last."""

    async def serve() -> None:
        _Target.received = []
        server = await asyncio.get_running_loop().create_server(_Target, "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        while await asyncio.to_thread(pipe.recv) is not None:
            received, _Target.received = _Target.received, []
            pipe.send((received, _Target.hanging))

    uvloop.run(serve())


class Load:
    """The service, its API and the target."""

    def __init__(self, api: httpx.Client, pipe: Connection, port: int) -> None:
        self.api = api
        self.pipe = pipe
        self.port = port

    def set_push(self, topic: str, path: str, in_flight: int) -> None:
        body = {
            "url": f"http://127.0.0.1:{self.port}/{path}",
            "secrets": [_SECRET],
            "max_in_flight": in_flight,
            "timeout": 300,
        }
        self.api.put(f"/topics/{topic}/push", json=body).raise_for_status()

    def put(self, topic: str, jobs: list[dict[str, object]]) -> None:
        for start in range(0, len(jobs), _BATCH):
            some = [{"topic": topic, "body": {"order": 1042}, **one} for one in jobs[start : start + _BATCH]]
            self.api.post("/jobs/batch", json={"jobs": some}).raise_for_status()

    def received(self, number: int, within_s: float) -> list[tuple[bytes, float]]:
        """Wait until so many requests came; returns them."""
        found: list[tuple[bytes, float]] = []
        end_s = time.monotonic() + within_s
        while len(found) < number and time.monotonic() < end_s:
            time.sleep(0.2)
            self.pipe.send("more")
            some, _ = self.pipe.recv()
            found += some
        return found

    def hanging(self) -> int:
        self.pipe.send("more")
        _, hanging = self.pipe.recv()
        return int(hanging)


def backlog(load: Load, topic: str, jobs: int) -> float:
    """Pushes a second of jobs that are all ready."""
    load.api.put(f"/topics/{topic}", json={}).raise_for_status()
    load.api.post(f"/topics/{topic}/pause").raise_for_status()
    load.set_push(topic, "fast", _IN_FLIGHT)
    load.put(topic, [{"id": f"j{number}"} for number in range(jobs)])
    load.api.post(f"/topics/{topic}/resume").raise_for_status()
    found = load.received(jobs, 120)
    assert len({job_id for job_id, _ in found}) == jobs, f"{len(found)} of {jobs} were pushed"
    times = sorted(at for _, at in found)
    return (jobs - 1) / (times[-1] - times[0])


def lateness_ms(load: Load, topic: str) -> list[float]:
    """From the due time to the arrival of the request, of jobs that come due one after the other."""
    load.set_push(topic, "fast", _IN_FLIGHT)
    begin_s = time.time() + _FIRST_DUE_S
    due = {f"d{number}": begin_s + number / _RATE_OF_DUE for number in range(_DUE_JOBS)}
    instants = {
        job_id: f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at * 1000) % 1000:03d}Z"
        for job_id, at in due.items()
    }
    load.put(topic, [{"id": job_id, "run_at": at} for job_id, at in instants.items()])
    found = load.received(_DUE_JOBS, _FIRST_DUE_S + _DUE_JOBS / _RATE_OF_DUE + 60)
    assert len(found) == _DUE_JOBS
    return [(at - int(due[job_id.decode()] * 1000) / 1000) * 1000 for job_id, at in found]


def main() -> None:
    jobs = options_of(__doc__, jobs=20_000).jobs
    end_in_order()
    pipe, other = multiprocessing.get_context("spawn").Pipe()
    target = multiprocessing.get_context("spawn").Process(target=_run_target, args=(other,), daemon=True)
    target.start()
    port = pipe.recv()
    if target.pid is not None:
        pin(target.pid, _OTHER_CORE)
    with (
        measured_service("--push-allow", "127.0.0.1:*") as service,
        httpx.Client(base_url=service.url, timeout=60, trust_env=False) as api,
    ):
        load = Load(api, pipe, port)
        for name in ("alone", "beside a hanging target"):
            if name != "alone":
                load.set_push("hanging", "hang", _HANGING)
                load.put("hanging", [{"id": f"h{number}"} for number in range(_HANGING)])
                while load.hanging() < _HANGING:
                    time.sleep(0.1)
            print(f"{name}:")
            with CpuMeter(service.pid, service.store_pid) as cpu:
                rate = backlog(load, f"backlog-{len(name)}", jobs)
            print(
                f"  CPU a push: service {cpu.us_each(service.pid, jobs):.0f} us, "
                f"store {cpu.us_each(service.store_pid, jobs):.0f} us"
            )
            show_target("pushes a second, 200 under way", rate, at_least=3000)
            late = lateness_ms(load, f"due-{len(name)}")
            print(f"  due to request at {_RATE_OF_DUE}/s: p50 {percentile(late, 0.5):.1f} ms, max {max(late):.1f} ms")
            show_target("ms from due to request, p99", percentile(late, 0.99), at_most=20)
    pipe.send(None)
    target.join(5)


if __name__ == "__main__":
    main()
