"""What does a call with options cost, against the plain call of its kind?

    python -m tests.benchmarks.cliff [--rounds 5] [--calls 6000] [--only PART] [--durable] [--tls]

Needs `wrk`. Measured is the CPU time of the service for each request, over 64 connections. Each round sends the plain
call of a kind and then all its variants, so that they share the state of the machine; the ratio to the plain call is
the median over the rounds. The service has a core to itself, its store shares the other one with wrk. With `--durable`
the store writes each change to its file, by default none.

Three services run: without keys, with a key, and with a key that has every limit, none of which is reached.
"""

from __future__ import annotations

import argparse
import contextlib
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from tests.acceptance.server.tls_files import TlsFiles
from tests.benchmarks.measuring import CpuMeter, MeasuredService, measured_service, options_of, show_target

SCRIPT = Path(__file__).with_suffix(".lua")
TOPICS = ("cliff.a", "cliff.b", "cliff.c")
BODY = {"order": 1042, "customer": "c-17"}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BATCH = 1000
MOST, MOST_WITH_LIMITS = 1.3, 1.2
WITH_LIMITS = 2
"""The target whose key has every limit."""
LIMITS = (
    "requests_per_second = 1000000\nmax_waiting_pops = 10000\nmax_jobs = 10000000\nmax_jobs_total = 10000000\n"
    "max_bytes_total = 10000000000\nmax_topics = 1000\nmax_retain = 604800\nmax_ttl = 604800\n"
    "max_dead_retain = 604800\nmax_body_bytes = 100000\nmax_batch = 1000\nmax_depth = 50\n"
)


@dataclass
class Target:
    """A service, and the client that prepares its jobs."""

    service: MeasuredService
    url: str
    token: str
    client: httpx.Client

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a response; a refusal ends the benchmark."""
        response = self.client.request(method, path, json=body)
        if not response.is_success:
            raise SystemExit(f"{method} {path}: {response.status_code} {response.text}")
        return response.json()

    def put(self, count: int, **fields: Any) -> list[str]:
        """Put jobs into the three topics in turn; their ids."""
        ids = [f"job-{at}" for at in range(count)]
        jobs = [
            {"topic": TOPICS[at % len(TOPICS)], "id": job_id, "body": BODY, **fields} for at, job_id in enumerate(ids)
        ]
        for start in range(0, count, BATCH):
            self.call("POST", "/jobs/batch", {"jobs": jobs[start : start + BATCH]})
        return ids

    def pop(self, count: int) -> list[dict[str, Any]]:
        """Put and pop jobs of one topic; the deliveries."""
        self.put(count, topic=TOPICS[0])
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.call("GET", f"/topics/{TOPICS[0]}/pop?count={BATCH}&ttr=3600")["jobs"]
        return found

    def purge(self) -> None:
        """Remove what a run has left."""
        for topic in TOPICS:
            self.client.delete(f"/topics/{topic}")

    def request(self, method: str, path: str, body: Any = None, headers: str = "") -> bytes:
        """A request as a client sends it."""
        content = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.service.port}\r\n"
        if self.token:
            head += f"Authorization: Bearer {self.token}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return f"{head}{headers}\r\n".encode() + content


Prepare = Callable[[Target, int], list[bytes]]


def puts(ids: int = 0, head: str = "", **fields: Any) -> Prepare:
    """Puts of delayed jobs; `ids`: with this many different ids in turn, -1 for an id each. `head`: more headers."""

    def prepare(target: Target, count: int) -> list[bytes]:
        job = {"topic": TOPICS[0], "delay": 3600, "body": BODY, **fields}
        if not ids:
            return [target.request("POST", "/jobs", job, head)] * count
        return [
            target.request("POST", "/jobs", {**job, "id": f"order-{at if ids < 0 else at % ids}"}, head)
            for at in range(count)
        ]

    return prepare


def pops(topics: str = TOPICS[0], query: str = "", *, all_topics: bool = False) -> Prepare:
    """Pops of one job each, that are there."""

    def prepare(target: Target, count: int) -> list[bytes]:
        target.put(count, **({} if all_topics else {"topic": TOPICS[0]}))
        return [
            target.request("GET", f"/topics/{topics}/pop{query and f'?{query}'}".replace("NUMBER", f"{at:06d}"))
            for at in range(count)
        ]

    return prepare


def settles(verb: str, **fields: Any) -> Prepare:
    """Calls about deliveries, with their receipts."""

    def prepare(target: Target, count: int) -> list[bytes]:
        return [
            target.request("POST", f"/jobs/{job['topic']}/{job['id']}/{verb}", {"receipt": job["receipt"], **fields})
            for job in target.pop(count)
        ]

    return prepare


def cancels(query: str = "") -> Prepare:
    """Cancels of delayed jobs."""

    def prepare(target: Target, count: int) -> list[bytes]:
        ids = target.put(count, topic=TOPICS[0], delay=3600)
        return [target.request("DELETE", f"/jobs/{TOPICS[0]}/{job_id}{query and f'?{query}'}") for job_id in ids]

    return prepare


class Case(NamedTuple):
    """A call: the service that it goes to (0: without keys, 1: with a key, 2: with a limited key), and its requests."""

    name: str
    prepare: Prepare
    target: int = 0
    has_both: bool = False
    """An option and limits: together they may cost what each of them may."""

    @property
    def most(self) -> float:
        """The most that it may cost, relative to the plain call."""
        if self.target != WITH_LIMITS:
            return MOST
        return MOST * MOST_WITH_LIMITS if self.has_both else MOST_WITH_LIMITS


def with_keys(plain: Prepare) -> list[Case]:
    return [Case("with a key", plain, 1), Case("with a limited key", plain, WITH_LIMITS)]


WINDOW = {"zone": "Europe/Berlin", "days": ["mon", "tue", "wed", "thu", "fri"], "from": "08:00", "to": "18:00"}
KINDS: dict[str, list[Case]] = {
    "put": [
        Case("plain", puts()),
        *with_keys(puts()),
        Case("id", puts(ids=-1)),
        Case("tags", puts(tags=["customer:17", "trial"])),
        Case("headers", puts(headers={"tenant": "acme", "region": "eu"})),
        Case("ttr and retain", puts(ttr=30, retain=60)),
        Case("deadline", puts(deadline=3600)),
        Case("unique_for", puts(ids=-1, unique_for=60)),
        Case("keep", puts(ids=-1, on_conflict="keep")),
        Case("keep, taken", puts(ids=100, on_conflict="keep")),
        Case("replace", puts(ids=-1, on_conflict="replace")),
        Case("replace, taken", puts(ids=100, on_conflict="replace")),
        Case("append", puts(ids=-1, on_conflict="append")),
        Case("append, taken", puts(ids=1000, on_conflict="append", max_items=100)),
        Case("if_reserved", puts(ids=-1, on_conflict="replace", if_reserved="after")),
        Case("window", puts(window=WINDOW)),
        Case("spread", puts(spread=60)),
        Case("traceparent", puts(traceparent=TRACEPARENT)),
        Case("traceparent in the head", puts(head=f"Traceparent: {TRACEPARENT}\r\n")),
        Case("tags, with a limited key", puts(tags=["customer:17", "trial"]), WITH_LIMITS, has_both=True),
    ],
    "pop": [
        Case("plain", pops()),
        *with_keys(pops()),
        Case("ttr", pops(query="ttr=60")),
        Case("consumer", pops(query="wait=20&consumer=worker-1")),
        Case("request_id", pops(query="wait=20&request_id=r-NUMBER")),
        Case("three topics", pops(",".join(TOPICS), all_topics=True)),
        Case("pattern", pops("cliff.*", all_topics=True)),
    ],
    "finish": [
        Case("plain", settles("finish")),
        *with_keys(settles("finish")),
        Case("result", settles("finish", result={"closed": True})),
        Case("release", settles("release")),
        Case("release with error", settles("release", error="TimeoutError: the shop is down", delay=60)),
        Case("touch", settles("touch")),
        Case("touch with ttr", settles("touch", ttr=60)),
        Case("bury", settles("bury", error="KeyError: 'tax_rate'")),
    ],
    "cancel": [
        Case("plain", cancels()),
        *with_keys(cancels()),
        Case("if_reserved", cancels("if_reserved=refuse")),
    ],
}


@contextlib.contextmanager
def running(folder: Path, limits: str | None, *, durable: bool, tls: TlsFiles | None) -> Iterator[Target]:
    """A service; with `limits` it has a key with these."""
    flags, token = list(tls.flags() if tls else ()), ""
    if limits is not None:
        keys = folder / f"keys-{len(limits)}.toml"
        command = [sys.executable, "-m", "deferd", "key", "new", "--name", "bench", "--scope", "admin"]
        made = subprocess.run(command, capture_output=True, text=True, check=True)
        token = made.stderr.split()[-1]
        keys.write_text(made.stdout.rstrip() + "\n" + limits)
        flags += ["--keys-file", str(keys)]
    with measured_service(*flags, in_memory=not durable) as service:
        url = f"http{'s' if tls else ''}://127.0.0.1:{service.port}"
        trust: ssl.SSLContext | bool = tls.trust() if tls else True
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=url, headers=bearer, timeout=60, verify=trust) as client:
            yield Target(service, url, token, client)


def cpu_us(target: Target, requests: list[bytes], connections: int) -> tuple[float, float]:
    """CPU time of the service and of its store for each request."""
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(b"%d\n%b" % (len(request), request) for request in requests)
        file.flush()
        command = ["wrk", "-t1", f"-c{connections}", "-d60", "--timeout", "20", "-s", str(SCRIPT), target.url]
        with CpuMeter(target.service.pid, target.service.store_pid) as cpu:
            output = subprocess.run(
                [*command, "--", file.name], stdout=subprocess.PIPE, text=True, check=True, timeout=120
            ).stdout
    [result] = [line.split() for line in output.splitlines() if line.startswith("RESULT ")]
    responses, failed = int(result[1]), int(result[2])
    if failed or responses < len(requests):
        raise SystemExit(f"{failed} of {responses} responses were no success; {len(requests)} requests")
    return cpu.us_each(target.service.pid, responses), cpu.us_each(target.service.store_pid, responses)


def measure(
    targets: list[Target], cases: list[Case], options: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    """CPU times by case, one for each round."""
    taken: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
    for _ in range(options.rounds):
        for case in cases:
            target = targets[case.target]
            requests = case.prepare(target, options.calls)
            taken[case.name].append(cpu_us(target, requests, options.connections))
            target.purge()
    return taken


def show(kind: str, cases: list[Case], taken: dict[str, list[tuple[float, float]]]) -> list[str]:
    """Print a line for each case; those that miss their target."""
    missed = []
    plain = [service_us for service_us, _ in taken["plain"]]
    print(f"{kind:<28}{'us':>8}{'of plain':>10}{'store us':>10}")
    for case in cases:
        service_us, store_us = (statistics.median(column) for column in zip(*taken[case.name], strict=True))
        ratio = statistics.median(own / of for (own, _), of in zip(taken[case.name], plain, strict=True))
        is_over = ratio > case.most
        print(
            f"  {case.name:<26}{service_us:>8.1f}{ratio:>10.2f}{store_us:>10.1f}{'  over' if is_over else ''}",
            flush=True,
        )
        if is_over:
            missed.append(f"{kind}, {case.name}")
    return missed


def main() -> None:
    options = options_of(
        __doc__,
        rounds=(5, "runs of each call; the medians count"),
        calls=(6000, "requests of a run"),
        connections=64,
        only=("", "kinds whose name contains this"),
        durable=(False, "a store that writes each change to its file"),
        tls=(False, "over HTTPS"),
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tls = TlsFiles(folder / "tls") if options.tls else None
        targets = [
            stack.enter_context(running(folder, limits, durable=options.durable, tls=tls))
            for limits in (None, "", LIMITS)
        ]
        missed = []
        for kind, cases in KINDS.items():
            if options.only in kind:
                missed += show(kind, cases, measure(targets, cases, options))
    show_target("calls that cost too much", len(missed), at_most=0)


if __name__ == "__main__":
    main()
